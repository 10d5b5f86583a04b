"""Run with the reference's activations.

Run a model with another's values: each one is recorded, and then the model goes on with the other's.

What is known of a reference and a candidate themselves, whatever they compute.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tensortap.comparison.alignment.align import assemble_pair
from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sharding.derived import ShardedRef, UnresolvedRef, shards_of
from tensortap.comparison.sides.alignment_note import AlignmentNote
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.load import side_from_records
from tensortap.comparison.sides.value_ref import InMemoryRef
from tensortap.core.errors import TensortapError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.dtensor import (
    dtensor_placement,
    is_distributed,
    parse_shard,
    wait_local,
    wrap_local,
)
from tensortap.kernels.hashing import checksum
from tensortap.recording.capture import capture
from tensortap.recording.model_facts import describe_model
from tensortap.replay.isolate import preserved_state
from tensortap.replay.layouts import align_layouts
from tensortap.replay.reference import ReferenceActivations, to_tensor
from tensortap.sources.hooks.compiled import plain_python
from tensortap.sources.hooks.editing import Replacing
from tensortap.sources.selection.select import selection
from tensortap.sources.sites import Wanted, class_name, walk

_REPLACED_KINDS = ("output", "input")
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

Perturbation = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class TeacherForcedRun:
    """What a model made of another's values: pairs of (the other's, its own), and what has no partner."""

    pairs: list[tuple[Entry, Entry]] = field(default_factory=list)
    unmatched: list[Entry] = field(default_factory=list)
    not_replaced: dict[str, str] = field(default_factory=dict)  # values that were not replaced, and why
    missing: list[str] = field(default_factory=list)
    plans: dict[int, AlignmentNote] = field(
        default_factory=dict
    )  # of another arrangement, by the id of its own value
    assembled: dict[str, int] = field(default_factory=dict)  # ways in which pieces of ranks were put together


def run_teacher_forced(
    model: Any,
    batch: Any,
    patterns: Sequence[Any],
    activations: ReferenceActivations,
    change: Perturbation | None = None,
) -> TeacherForcedRun:
    """Run the model, every selected input and output replaced by what is on the activations, inputs by what
    `change` makes of it. Afterwards the model is what it was: hooks, buffers, gradients, modes and random
    states."""
    run = _ActivationExchange(
        activations, {".".join(names): class_name(module) for names, module in walk(model)}, change
    )
    wanted = [
        wanted_site for wanted_site in selection(model, patterns) if wanted_site.site.kind in _REPLACED_KINDS
    ]
    with contextlib.ExitStack() as stack:
        captured = stack.enter_context(capture(model, *patterns, keep="cow", to=run.on_record))
        stack.enter_context(preserved_state(model))
        # Hooks run in their order: what is recorded is what the model made, before it is replaced.
        stack.enter_context(replacing_activations(model, wanted, run))
        run_batch(model, batch)
    if run.failure is not None:
        raise run.failure
    run.result.missing = [
        f"{site.name} was selected and never came: {site.reason}" for site in captured.missing
    ]
    return run.result


@contextlib.contextmanager
def replacing_activations(model: Any, wanted: Sequence[Wanted], run: _ActivationExchange) -> Any:
    source = Replacing(model, wanted, run.exchange)
    with plain_python():
        source.start()
        try:
            yield
        finally:
            source.stop()


def run_batch(model: Any, batch: Any) -> None:
    """A dict is `model(**batch)`, a tuple or list `model(*batch)`, a function `batch(model)`."""
    with torch.no_grad():
        if callable(batch):
            batch(model)
            return
        arguments = _copy_batch(batch)
        if isinstance(arguments, Mapping):
            model(**arguments)
        else:
            model(*arguments) if isinstance(arguments, (tuple, list)) else model(arguments)


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def weight_dtypes(model: Any) -> set[torch.dtype]:
    """Of its floating weights."""
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def expected_shard_digests(model: Any, reference: Any) -> dict[str, list[Any] | None]:
    """Of each sharded weight the type, the shape and the digest that the piece of this rank should have; None
    where the other is no model that holds the whole."""
    reference_parameters = dict(reference.named_parameters()) if is_model(reference) else {}
    digests: dict[str, list[Any] | None] = {}
    for name, parameter in model.named_parameters():
        if is_distributed(type(parameter.data)):
            shard_placement, reference_parameter = (
                dtensor_placement(parameter.data),
                reference_parameters.get(name),
            )
            is_whole = (
                reference_parameter is not None and tuple(reference_parameter.shape) == shard_placement.shape
            )
            digests[name] = (
                _digest_shard(ShardedRef(InMemoryRef(reference_parameter), shard_placement))
                if is_whole
                else None
            )
    return digests


def _digest_shard(shard: ShardedRef) -> list[Any]:
    operand = shard.operand()
    return [operand.dtype, list(operand.bits.shape), checksum(np.ascontiguousarray(operand.bits))]


def _copy_batch(batch: Any) -> Any:
    """A copy: a cache among the inputs is written by the model, and the next run would find it full."""
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError):
        return batch


class _ActivationExchange:
    """One run: what is seen of it, and what is waiting to be put in the place of what was just seen."""

    def __init__(
        self,
        activations: ReferenceActivations,
        classes: Mapping[str, str],
        change: Perturbation | None = None,
    ) -> None:
        self._reference, self._classes, self._perturbation = activations, classes, change
        self._replacements: dict[str, Entry] = {}
        self.result = TeacherForcedRun()
        self.failure: Exception | None = None

    def on_record(self, record: Record) -> None:
        try:
            self._process(record)
        except Exception as error:  # noqa: BLE001 - a capture would only log it; raised afterwards
            self.failure = self.failure or error

    def _process(self, record: Record) -> None:
        (own,) = side_from_records([record], self._classes).entries
        own.order = len(self.result.pairs) + len(self.result.unmatched)
        own_placement = record.placement
        other = self._reference.lookup(record, own.shape if own_placement is None else own_placement.shape)
        own.step = self._reference.step_of(record)
        other = (
            other if other is None or own_placement is None else self._take_shard(own, other, own_placement)
        )
        plan = None
        if other is not None and shards_of(other):
            other, plan = self._assemble(own, other)
        if other is None:
            self.result.unmatched.append(own)
            return
        other = replace(other, rank=own.rank, call=own.call, order=own.order)
        if plan is not None and not plan.is_usable:
            self._add_pair(other, own, plan)
            return
        self._replacements[record.name] = other
        aligned = align_layouts(other, own)
        if isinstance(aligned, str):
            self.result.not_replaced.update({own.name: aligned} if aligned else {})
            self._add_pair(other, own, plan)
            return
        self._replacements[record.name] = aligned.replacement
        self._add_pair(
            aligned.reference,
            aligned.candidate,
            aligned.layout.annotate(plan or AlignmentNote(other.name, "", ())),
        )

    def _add_pair(self, other: Entry, own: Entry, plan: AlignmentNote | None) -> None:
        self.result.pairs.append((other, own))
        if plan is not None:
            self.result.plans[id(own)] = plan

    def _assemble(self, own: Entry, other: Entry) -> tuple[Entry, AlignmentNote | None]:
        """The pieces of several ranks of the reference put together, as they say or as this value tells.
        Which of copies that are not equal is right nobody knows: none of them is put."""
        pair = assemble_pair(EntryPair(other, own))
        plan = pair.alignment
        if plan is not None and plan.is_usable and plan.replica_mismatch:
            reason = f"the reference has it on several ranks, and {plan.replica_mismatch}"
            plan = replace(plan, details=(*plan.details[:-1], reason), is_usable=False)
            pair = replace(pair, a=replace(pair.a, reference=UnresolvedRef(plan.details[-1])))
        if plan is None or not plan.is_usable:
            self.result.not_replaced[own.name] = plan.details[-1] if plan is not None else "it is in pieces"
            return pair.a, plan
        self.result.assembled[plan.summary] = self.result.assembled.get(plan.summary, 0) + 1
        return pair.a, plan

    def _take_shard(self, own: Entry, other: Entry, own_placement: Placement) -> Entry | None:
        """Of a sharded value the piece of this rank; nothing where the whole does not tell what that is."""
        if other.placement == own_placement or other.shape != own_placement.shape:
            return other
        partial = next(
            (part for part in own_placement.parts if part != "replicate" and not parse_shard(part)), ""
        )
        if partial:
            self.result.not_replaced[own.name] = (
                f"it is {partial} here, of which only all ranks together are the whole"
            )
            return None
        reference = ShardedRef(other.reference, own_placement)
        return replace(other, reference=reference, shape=own.shape, placement=own_placement, checksum="")

    def exchange(self, name: str, value: torch.Tensor) -> torch.Tensor:
        entry = self._replacements.pop(name, None)
        if entry is None:
            return value
        try:
            tensor = as_tensor_like(entry.load(), value)
            is_kept = self._perturbation is None or entry.kind != "input"
            return tensor if is_kept else _perturb(tensor, name, self._perturbation)
        except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, TensortapError) as error:
            self.result.not_replaced.setdefault(name, str(error))
            return value


def as_tensor_like(value: Any, like: torch.Tensor) -> torch.Tensor:
    """The given numbers as a tensor of that type, on that device; a copy, for the model may write to it.

    Of a distributed tensor they are the piece of this rank."""
    local_tensor: torch.Tensor = wait_local(like)
    if local_tensor is not like:
        local_value: torch.Tensor = as_tensor_like(value, local_tensor)
        return wrap_local(like, local_value) if is_distributed(type(like)) else local_value
    if type(like) not in _PLAIN_TYPES or like.layout != torch.strided:
        raise TypeError(f"what is a {type(like).__name__} ({like.layout}) cannot be replaced")
    tensor = to_tensor(value)
    if tensor.shape != like.shape:
        raise ValueError(f"shape {list(tensor.shape)} against {list(like.shape)}")
    if _number_class(tensor) != _number_class(like):
        raise ValueError(f"{tensor.dtype} against {like.dtype}".replace("torch.", ""))
    return torch.empty_like(like).copy_(_clamp_to_dtype(tensor, like.dtype))


def _perturb(value: torch.Tensor, name: str, change: Perturbation | None) -> torch.Tensor:
    """Of a distributed tensor the piece of this rank is."""
    local_tensor: torch.Tensor = wait_local(value)
    perturbed = local_tensor if change is None else change(name, local_tensor)
    return perturbed if local_tensor is value else wrap_local(value, perturbed)


def _number_class(value: torch.Tensor) -> tuple[bool, ...]:
    return value.is_floating_point(), value.is_complex(), value.dtype == torch.bool


def _clamp_to_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The lowest number of a wide type stands for a mask: it becomes the lowest of a narrow one, not minus
    infinity, of which a softmax makes NaN."""
    if not value.is_floating_point() or torch.finfo(value.dtype).max <= torch.finfo(dtype).max:
        return value
    most = torch.finfo(dtype).max
    return torch.where(value.isfinite(), value.clamp(-most, most), value)


def collect_model_facts(reference: Any, candidate: Any) -> list[dict[str, Any]]:
    """For each a digest of each weight, and settings where they are of one class; those of two
    implementations have nothing to do with each other."""
    if not is_model(reference) and not isinstance(reference, Mapping):
        return [{}, {}]
    known = [describe_model(model) if is_model(model) else model for model in (reference, candidate)]
    shard_digests = expected_shard_digests(candidate, reference)
    known = [{**facts, "weights": {**(facts.get("weights") or {})}} for facts in known]
    for name, digest in shard_digests.items():
        # The piece that this rank should have; where that is not known, nothing is said of the weight.
        known[0]["weights"][name] = digest
        if digest is None:
            del known[0]["weights"][name], known[1]["weights"][name]
    if known[0].get("class") != known[1].get("class"):
        known = [{"weights": facts.get("weights")} for facts in known]
    return [{"model": facts} for facts in known]
