"""`tt.floor`: measure the noise floor by reruns with harmless perturbations (repeat, ulp, float64)."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensortap.comparison.noise.floor import Floor, NoiseMeasurements
from tensortap.comparison.sides.entry import Entry, module_of
from tensortap.comparison.sides.load import side_from_run
from tensortap.comparison.values.metrics import measure
from tensortap.comparison.values.noise import DEFAULT_LIMIT, INTRINSIC_ROUNDING
from tensortap.core.record import Record
from tensortap.core.settings import is_on
from tensortap.frameworks.pytree import leaves
from tensortap.frameworks.torch_precision import (
    PRECISIONS,
    SEED,
    convert_batch,
    is_perturbable,
    perturb_by_one_ulp,
)
from tensortap.readers.run import Run
from tensortap.recording.capture import capture
from tensortap.recording.edit import edit
from tensortap.replay.isolate import call_model, preserved_state
from tensortap.sinks.run_directory import RunDirectory
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import require_module

DEFAULT_RERUNS = ("repeat", "ulp", "float64")
_DEFAULT_PATTERNS = ("**", "**.in")
_MARGIN = 1.5
# An optimizer amplifies tiny gradients: a single perturbation may miss them.
_ULP_RERUNS_OF_TRAINING = 3


def floor(
    model: Any,
    batch: Any,
    *patterns: str,
    twins: Sequence[Any] = DEFAULT_RERUNS,
    limit: float | None = None,
) -> Floor:
    """How noisy every value of the model is: it runs on the batch several times, with changes that should
    not matter.

    >>> floor = tt.floor(model, batch)                            # all inputs and outputs
    >>> floor = tt.floor(model, batch, "**", "**.grad")           # runs the backward pass too
    >>> floor = tt.floor(model, lambda model: train(model, data)) # your own way to run it

    `batch`: a dict is `model(**batch)`, a tuple or list `model(*batch)`, a function `batch(model)`.
    `twins`: "repeat" the same again; "ulp" the first floating values moved to a neighbouring number,
    three times where an optimizer does steps;
    "float64", "float32", "bfloat16", "float16" a copy of the model in that type; a model, or a function of
    the model, that is known to be harmless: it calibrates the limit.

    Modes, buffers, gradients, random states and the count of steps are afterwards what they were before.
    """
    require_module(model)
    if not is_on():
        return Floor()
    _check_reruns(twins)
    runs = _PerturbedReruns(model, batch, patterns or _DEFAULT_PATTERNS)
    with tempfile.TemporaryDirectory(prefix="tensortap-floor-") as folder:
        runs.write_base(folder)
        for number, twin in enumerate(twins):
            runs.add(twin, number)
    return runs.floor(limit)


def _check_reruns(twins: Sequence[Any]) -> None:
    known = ("repeat", "ulp", *PRECISIONS)
    unknown = [rerun for rerun in twins if isinstance(rerun, str) and rerun not in known]
    if unknown or not twins or isinstance(twins, str):
        raise ValueError(
            f"twins={twins!r}; give some of {', '.join(known)}, a model, or a function of the model"
        )


class _PerturbedReruns:
    """Reruns of one model on one batch, and the noise measured between them and the base run."""

    def __init__(self, model: Any, batch: Any, patterns: Sequence[str]) -> None:
        self._model, self._batch, self._patterns = model, batch, patterns
        self._has_gradients = any(
            wanted_site.site.is_gradient for wanted_site in resolve_patterns(model, patterns)
        )
        self._measurements, self._skipped = NoiseMeasurements(), list[str]()
        self._harmless: list[str] = []
        self._base: dict[tuple[str, int, int], Entry] = {}
        self._is_trained = False

    def write_base(self, folder: str) -> None:
        """Run once and write the values to a folder, from which each rerun reads them one by one."""
        sink = RunDirectory(folder)
        try:
            with (
                capture(self._model, *self._patterns, to=sink),
                preserved_state(self._model),
                self._detect_optimizer_steps(),
            ):
                self._run(self._model, self._batch, has_gradients=self._has_gradients)
        finally:
            sink.close()
        side = side_from_run(Run(folder))
        if not side.entries:
            raise ValueError("the model ran, and nothing of what the patterns select was seen; see tt.sites")
        first = side.entries[0].first_step
        self._base = {(entry.name, entry.first_step - first, entry.call): entry for entry in side.entries}

    @contextmanager
    def _detect_optimizer_steps(self) -> Iterator[None]:
        """Note whether an optimizer does a step."""

        def mark_trained(*_: Any) -> None:
            self._is_trained = True

        hook = register_optimizer_step_post_hook(mark_trained)
        try:
            yield
        finally:
            hook.remove()

    def add(self, rerun: Any, number: int) -> None:
        if rerun == "repeat":
            self._add("repeat", self._model, self._batch)
        elif rerun == "ulp":
            self._add_ulp()
        elif isinstance(rerun, str):
            self._add_precision(rerun)
        elif isinstance(rerun, torch.nn.Module):
            self._add_harmless(f"harmless {number}", rerun, self._batch)
        else:
            self._add_harmless(f"harmless {number}", self._model, rerun)

    def floor(self, limit: float | None) -> Floor:
        own_reruns = [
            rerun for rerun in self._measurements.reruns if rerun not in (*self._harmless, INTRINSIC_ROUNDING)
        ]
        if self._harmless or any(
            rerun in PRECISIONS and not self._is_finer(PRECISIONS[rerun]) for rerun in own_reruns
        ):
            self._measurements.drop([INTRINSIC_ROUNDING])  # other harmless changes may do more than round
        if limit is None and self._harmless and own_reruns:
            worst = max(self._measurements.worst_ratio_to(rerun, own_reruns) for rerun in self._harmless)
            limit = max(DEFAULT_LIMIT, _MARGIN * worst)
            self._measurements.drop(self._harmless)
        return self._measurements.floor(self._skipped, limit)

    def _add_harmless(self, name: str, model: Any, batch: Any) -> None:
        self._harmless.append(name)
        self._add(name, model, batch)

    def _add_ulp(self) -> None:
        sites = self._first_floating()
        if sites is None:
            self._skipped.append("ulp: no floating value goes in, and there is no embedding")
            return
        for index in range(_ULP_RERUNS_OF_TRAINING if self._is_trained else 1):
            with edit(self._model, dict.fromkeys(sites, partial(perturb_by_one_ulp, seed=SEED + index))):
                self._add("ulp", self._model, self._batch)

    def _first_floating(self) -> list[str] | None:
        """Sites to perturb: floating inputs of the model, else embeddings, else the first floating output."""
        has_floats = any(
            isinstance(leaf, torch.Tensor) and is_perturbable(leaf)
            for _, leaf in leaves(None if callable(self._batch) else self._batch)
        )
        if has_floats:
            return ["in"]
        if any(isinstance(module, torch.nn.Embedding) for module in self._model.modules()):
            return ["<Embedding>"]
        floating = (entry for entry in self._base.values() if entry.dtype.startswith(("float", "bfloat")))
        names = [entry.name for entry in floating if entry.kind == "output"]
        return names[:1] or None

    def _add_precision(self, name: str) -> None:
        """Rerun a copy of the model in that dtype; the model's own weights are never changed."""
        dtype = PRECISIONS[name]
        try:
            converted = copy.deepcopy(self._model).to(dtype)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            self._skipped.append(f"{name}: the model cannot be copied ({error})")
            return
        batch = convert_batch(self._batch, dtype)
        try:
            self._add(name, converted, batch)
            if self._is_finer(dtype) and not (callable(batch) and self._has_gradients):
                self._add_intrinsic(converted, batch)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            self._measurements.drop([name, INTRINSIC_ROUNDING])
            self._skipped.append(f"{name}: the model does not run in it ({error})")
            # Some kernels have no float64; for a model in half precision float32 does as well.
            if name == "float64" and self._is_finer(torch.float32):
                self._add_precision("float32")

    def _is_finer(self, dtype: torch.dtype) -> bool:
        """Whether the dtype is more precise than the least precise of the model's parameters."""
        own_dtypes = [
            parameter.dtype for parameter in self._model.parameters() if parameter.is_floating_point()
        ]
        return bool(own_dtypes) and max(map(_epsilon, own_dtypes)) > _epsilon(dtype)

    def _add_intrinsic(self, converted_model: Any, batch: Any) -> None:
        """Rerun with every module's output replaced by the base run's: each shows its own rounding only."""
        recorded: dict[str, RecordedOutputs] = {}
        for entry in self._base.values():
            if entry.kind == "output" and "float" in entry.dtype and module_of(entry.name, "output"):
                recorded.setdefault(entry.name, RecordedOutputs([])).entries.append(entry)
        with torch.no_grad():
            self._add(INTRINSIC_ROUNDING, converted_model, batch, recorded)

    def _add(self, name: str, model: Any, batch: Any, edits: Mapping[Any, Any] | None = None) -> None:
        failures: list[Exception] = []

        def measure_record(record: Record) -> None:
            try:
                self._measure(name, record, steps)
            except Exception as error:  # noqa: BLE001 - a capture would only log it; raised below
                failures.append(error)

        steps: list[int] = []
        # Edits come last: the model's own output is measured before it is replaced.
        with (
            capture(model, *self._patterns, keep="ref", to=measure_record),
            preserved_state(model),
            edit(model, edits or {}),
        ):
            self._run(model, batch, has_gradients=self._has_gradients and name != INTRINSIC_ROUNDING)
        if failures:
            raise failures[0]

    def _measure(self, name: str, record: Record, steps: list[int]) -> None:
        step = record.step if isinstance(record.step, int) else record.step[0]
        steps[:] = steps or [step]
        entry = self._base.get((record.name, step - steps[0], record.call))
        if entry is not None:
            self._measurements.add(name, entry, measure(entry.load(), record.value))

    def _run(self, model: Any, batch: Any, *, has_gradients: bool) -> None:
        if callable(batch):
            batch(model)
            return
        with torch.set_grad_enabled(has_gradients):
            output = call_model(model, batch)
            if has_gradients:
                _total_loss(output).backward()  # type: ignore[no-untyped-call]


class RecordedOutputs:
    """An edit that returns the recorded outputs of a site, call by call."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self._next = 0

    def __call__(self, value: Any) -> Any:
        entry = self.entries[self._next] if self._next < len(self.entries) else None
        self._next += 1
        if entry is None or not isinstance(value, torch.Tensor) or tuple(value.shape) != entry.shape:
            return value
        return torch.as_tensor(entry.load()).to(value)


def _total_loss(output: Any) -> torch.Tensor:
    """The model's `loss`, else the sum of all outputs that require a gradient."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.sum()
    outputs = [leaf for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not outputs:
        raise ValueError("the patterns ask for gradients, and nothing that the model gave has one")
    return torch.stack([tensor.sum().float() for tensor in outputs]).sum()


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
