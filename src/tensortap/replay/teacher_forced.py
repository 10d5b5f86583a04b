"""Run a model teacher-forced: record each selected activation, then continue with the reference's."""

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
from tensortap.comparison.sides.entry import AlignmentNote, Entry, InMemoryRef
from tensortap.comparison.sides.load import side_from_records
from tensortap.core.errors import TensortapError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.dtensor import (
    dtensor_placement,
    is_distributed,
    parse_shard,
    wait_local,
    wrap_local,
)
from tensortap.frameworks.torch_precision import (
    as_tensor_like,
)
from tensortap.kernels.hashing import checksum
from tensortap.recording.capture import capture
from tensortap.recording.model_facts import describe_model
from tensortap.replay.isolate import call_model, preserved_state
from tensortap.replay.layouts import align_layouts
from tensortap.replay.reference import ReferenceActivations
from tensortap.sources.hooks.eager_mode import run_eagerly
from tensortap.sources.hooks.editing import ReplacementHooks
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import SelectedSite, class_name, walk_modules

_REPLACED_KINDS = ("output", "input")

Perturbation = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class TeacherForcedRun:
    """What a model computed from the reference's activations: (reference, own) pairs, unmatched entries."""

    pairs: list[tuple[Entry, Entry]] = field(default_factory=list)
    unmatched: list[Entry] = field(default_factory=list)
    not_replaced: dict[str, str] = field(default_factory=dict)  # name -> reason
    missing: list[str] = field(default_factory=list)
    alignments: dict[int, AlignmentNote] = field(default_factory=dict)  # by the id of the own entry
    assembled: dict[str, int] = field(default_factory=dict)  # summary of the placement -> count


def run_teacher_forced(
    model: Any,
    batch: Any,
    patterns: Sequence[Any],
    activations: ReferenceActivations,
    perturbation: Perturbation | None = None,
) -> TeacherForcedRun:
    """Run the model with every selected input and output replaced by the reference's, inputs also perturbed.

    Hooks, buffers, gradients, modes and random states of the model are restored afterwards."""
    run = _ActivationExchange(
        activations,
        {".".join(names): class_name(module) for names, module in walk_modules(model)},
        perturbation,
    )
    wanted = [
        wanted_site
        for wanted_site in resolve_patterns(model, patterns)
        if wanted_site.site.kind in _REPLACED_KINDS
    ]
    with contextlib.ExitStack() as stack:
        captured = stack.enter_context(capture(model, *patterns, keep="cow", to=run.on_record))
        stack.enter_context(preserved_state(model))
        # Hooks run in order of registration: the model's own output is recorded before it is replaced.
        stack.enter_context(replacing_activations(model, wanted, run))
        run_batch(model, batch)
    if run.failure is not None:
        raise run.failure
    run.result.missing = [
        f"{site.name} was selected and never came: {site.reason}" for site in captured.missing
    ]
    return run.result


@contextlib.contextmanager
def replacing_activations(model: Any, wanted: Sequence[SelectedSite], run: _ActivationExchange) -> Any:
    source = ReplacementHooks(model, wanted, run.exchange)
    with run_eagerly():
        source.start()
        try:
            yield
        finally:
            source.stop()


def run_batch(model: Any, batch: Any) -> None:
    """Call `model(**batch)`, `model(*batch)`, `model(batch)` or `batch(model)`, without gradients."""
    with torch.no_grad():
        if callable(batch):
            batch(model)
        else:
            call_model(model, _copy_batch(batch))


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def weight_dtypes(model: Any) -> set[torch.dtype]:
    """The dtypes of the model's floating-point parameters."""
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def expected_shard_digests(model: Any, reference: Any) -> dict[str, list[Any] | None]:
    """Per sharded parameter: dtype, shape and digest of the shard this rank should hold.

    None where the reference does not hold the full parameter."""
    reference_parameters = dict(reference.named_parameters()) if is_model(reference) else {}
    digests: dict[str, list[Any] | None] = {}
    for name, parameter in model.named_parameters():
        if is_distributed(type(parameter.data)):
            shard_placement = dtensor_placement(parameter.data)
            reference_parameter = reference_parameters.get(name)
            is_full = (
                reference_parameter is not None and tuple(reference_parameter.shape) == shard_placement.shape
            )
            digests[name] = (
                _digest_shard(ShardedRef(InMemoryRef(reference_parameter), shard_placement))
                if is_full
                else None
            )
    return digests


def _digest_shard(shard: ShardedRef) -> list[Any]:
    operand = shard.operand()
    return [operand.dtype, list(operand.bits.shape), checksum(np.ascontiguousarray(operand.bits))]


def _copy_batch(batch: Any) -> Any:
    """A deep copy where possible: the model may write to a cache in the batch, and the next run reads it."""
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError):
        return batch


class _ActivationExchange:
    """Records the model's own values and keeps the replacement of each until its hook asks for it."""

    def __init__(
        self,
        activations: ReferenceActivations,
        classes: Mapping[str, str],
        perturbation: Perturbation | None = None,
    ) -> None:
        self._reference, self._classes, self._perturbation = activations, classes, perturbation
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
        reference = self._reference.lookup(
            record, own.shape if own_placement is None else own_placement.shape
        )
        own.step = self._reference.step_of(record)
        reference = (
            reference
            if reference is None or own_placement is None
            else self._take_shard(own, reference, own_placement)
        )
        alignment = None
        if reference is not None and shards_of(reference):
            reference, alignment = self._assemble(own, reference)
        if reference is None:
            self.result.unmatched.append(own)
            return
        reference = replace(reference, rank=own.rank, call=own.call, order=own.order)
        if alignment is not None and not alignment.is_usable:
            self._add_pair(reference, own, alignment)
            return
        self._replacements[record.name] = reference
        aligned = align_layouts(reference, own)
        if isinstance(aligned, str):
            self.result.not_replaced.update({own.name: aligned} if aligned else {})
            self._add_pair(reference, own, alignment)
            return
        self._replacements[record.name] = aligned.replacement
        self._add_pair(
            aligned.reference,
            aligned.candidate,
            aligned.layout.annotate(alignment or AlignmentNote(reference.name, "", ())),
        )

    def _add_pair(self, reference: Entry, own: Entry, alignment: AlignmentNote | None) -> None:
        self.result.pairs.append((reference, own))
        if alignment is not None:
            self.result.alignments[id(own)] = alignment

    def _assemble(self, own: Entry, reference: Entry) -> tuple[Entry, AlignmentNote | None]:
        """Assemble the reference's shards, by declared or inferred placement.

        If replicas differ, none of them is used: nothing tells which one is right."""
        pair = assemble_pair(EntryPair(reference, own))
        alignment = pair.alignment
        if alignment is not None and alignment.is_usable and alignment.replica_mismatch:
            reason = f"the reference has it on several ranks, and {alignment.replica_mismatch}"
            alignment = replace(alignment, details=(*alignment.details[:-1], reason), is_usable=False)
            pair = replace(pair, a=replace(pair.a, reference=UnresolvedRef(alignment.details[-1])))
        if alignment is None or not alignment.is_usable:
            self.result.not_replaced[own.name] = (
                alignment.details[-1] if alignment is not None else "it is in pieces"
            )
            return pair.a, alignment
        self.result.assembled[alignment.summary] = self.result.assembled.get(alignment.summary, 0) + 1
        return pair.a, alignment

    def _take_shard(self, own: Entry, reference: Entry, own_placement: Placement) -> Entry | None:
        """This rank's shard of a full reference value; None for a partial placement, which has no shard."""
        if reference.placement == own_placement or reference.shape != own_placement.shape:
            return reference
        partial = next(
            (part for part in own_placement.parts if part != "replicate" and not parse_shard(part)), ""
        )
        if partial:
            self.result.not_replaced[own.name] = (
                f"it is {partial} here, of which only all ranks together are the whole"
            )
            return None
        shard = ShardedRef(reference.reference, own_placement)
        return replace(reference, reference=shard, shape=own.shape, placement=own_placement, checksum="")

    def exchange(self, name: str, value: torch.Tensor) -> torch.Tensor:
        entry = self._replacements.pop(name, None)
        if entry is None:
            return value
        try:
            tensor = as_tensor_like(entry.load(), value)
            is_exact = self._perturbation is None or entry.kind != "input"
            return tensor if is_exact else _perturb(tensor, name, self._perturbation)
        except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, TensortapError) as error:
            self.result.not_replaced.setdefault(name, str(error))
            return value


def _perturb(value: torch.Tensor, name: str, perturbation: Perturbation | None) -> torch.Tensor:
    """Perturb the tensor; for a DTensor its local shard."""
    local_tensor: torch.Tensor = wait_local(value)
    perturbed = local_tensor if perturbation is None else perturbation(name, local_tensor)
    return perturbed if local_tensor is value else wrap_local(value, perturbed)


def collect_model_facts(reference: Any, candidate: Any) -> list[dict[str, Any]]:
    """Weight digests of reference and candidate, and their configs if both are of one class."""
    if not is_model(reference) and not isinstance(reference, Mapping):
        return [{}, {}]
    both = [describe_model(model) if is_model(model) else model for model in (reference, candidate)]
    shard_digests = expected_shard_digests(candidate, reference)
    both = [{**facts, "weights": {**(facts.get("weights") or {})}} for facts in both]
    for name, digest in shard_digests.items():
        # Compare with the shard this rank should hold; if that is unknown, leave the weight out.
        both[0]["weights"][name] = digest
        if digest is None:
            del both[0]["weights"][name], both[1]["weights"][name]
    # Configs of two implementations are not comparable.
    if both[0].get("class") != both[1].get("class"):
        both = [{"weights": facts.get("weights")} for facts in both]
    return [{"model": facts} for facts in both]
