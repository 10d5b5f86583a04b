"""The rounding error of each module in isolation, computed from the reference's activations."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensortap.comparison.noise.floor import Floor, NoiseMeasurements, entry_key
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.values.metrics import measure
from tensortap.comparison.values.noise import DEFAULT_LIMIT, UNIT_ROUNDOFF, Noise, analytic_noise
from tensortap.frameworks.torch_precision import convert_batch, dtype_named, perturb_by_one_ulp
from tensortap.replay.reference import ReferenceActivations
from tensortap.replay.teacher_forced import Perturbation, TeacherForcedRun, run_teacher_forced

_FINER_DTYPES = ("float64", "float32")
_ULP_RERUN = "each part one ulp off"
_ROUNDING_SHARE = 0.5  # ulp: the largest rounding error
# With few rows, the noise of a column varies between runs.
_COLUMN_SLACK, _FEW_ROWS = 4.0, 16


def coarsest_output_dtype(entries: Iterable[Entry]) -> str:
    """The output dtype with the largest unit roundoff; "" if none is floating."""
    return coarsest_dtype(*(entry.dtype for entry in entries if entry.kind == "output"))


def coarsest_dtype(*dtypes: str) -> str:
    return max(
        (dtype for dtype in dtypes if dtype in UNIT_ROUNDOFF),
        key=lambda dtype: UNIT_ROUNDOFF[dtype],
        default="",
    )


@dataclass(frozen=True, slots=True)
class IsolatedRuns:
    """Two teacher-forced runs of a model: in another dtype, and with inputs perturbed by one ulp.

    Where a sum nearly cancels, a run in another dtype shows too little of its noise."""

    dtype: str
    converted: TeacherForcedRun
    perturbed: TeacherForcedRun | None
    is_coarser: bool  # the dtype; then the converted model is the perturbed one


class IsolatedRounding:
    """Reruns a model teacher-forced, so that each module shows its own rounding only."""

    def __init__(self, model: Any, batch: Any, patterns: Sequence[Any]) -> None:
        self._model, self._batch, self._patterns = model, batch, patterns
        self.skipped: list[str] = []

    def rerun(
        self, own: str, other: str, activations: Callable[[], ReferenceActivations]
    ) -> IsolatedRuns | None:
        """Rerun in a dtype finer than `own`, or in `other` if that one is coarser; None if no rerun works."""
        is_coarser = UNIT_ROUNDOFF.get(other, 0.0) > UNIT_ROUNDOFF.get(own, 0.0)
        choices = (
            [other]
            if is_coarser
            else [dtype for dtype in _FINER_DTYPES if UNIT_ROUNDOFF[dtype] < UNIT_ROUNDOFF.get(own, 0.0)]
        )
        for name in choices:
            run = self._run(name, activations())
            if run is not None:
                perturbed_run = self._run(name if is_coarser else "", activations(), _perturb_input)
                return IsolatedRuns(name, run, perturbed_run, is_coarser)
        return None

    def _run(
        self, name: str, activations: ReferenceActivations, perturbation: Perturbation | None = None
    ) -> TeacherForcedRun | None:
        """Run in that dtype, or unconverted without a name; None if the model fails, noted in `skipped`."""
        try:
            model, batch = self._model, self._batch
            if name:
                dtype = dtype_named(name)
                model, batch = copy.deepcopy(model).to(dtype), convert_batch(batch, dtype)
            return run_teacher_forced(model, batch, self._patterns, activations, perturbation)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            self.skipped.append(f"{name or _ULP_RERUN}: the model does not run in it ({error})")
            return None


def _perturb_input(name: str, value: Any) -> Any:
    """Seeded by name: equal in each run, but different per site, as two values may be subtracted."""
    return perturb_by_one_ulp(value, seed=zlib.crc32(name.encode()))


def floor_from_isolated_runs(
    runs: IsolatedRuns, base: TeacherForcedRun | None, skipped: Sequence[str], *, lowest: str, are_mixed: bool
) -> Floor:
    """The noise floor of the reruns against the reference, or against a `base` run on the same activations.

    A base may be wrong itself, so its noise is capped at what is typical for the `lowest` dtype."""
    measurements = NoiseMeasurements(is_intrinsic=not (runs.is_coarser or are_mixed))
    for other, base_value, own in _pair_with_base(runs.converted, base):
        measurements.add(f"each part alone in {runs.dtype}", other, measure(base_value.load(), own.load()))
    for other, base_value, own in _pair_with_base(
        runs.perturbed, runs.converted if runs.is_coarser else base
    ):
        measurements.add(_ULP_RERUN, other, measure(base_value.load(), own.load()), _ROUNDING_SHARE)
    floor = measurements.floor(skipped, DEFAULT_LIMIT)
    pairs = (base or runs.converted).pairs
    dtypes = {entry_key(other): coarsest_dtype(other.dtype, own.dtype) for other, own in pairs}
    rows = {entry_key(other): max(math.prod(other.shape[:-1]), 1) for other, _ in pairs}
    widest: dict[str, float] = {}
    for key, value_noise in floor.noise.items():
        widest[key[0]] = max(widest.get(key[0], 0.0), value_noise.column)
    noise = {}
    for key, value_noise in floor.noise.items():
        dtype = dtypes.get(key, "")
        # A finer rerun has the same weights; with mixed dtypes the weights were rounded too.
        has_lower_bound = dtype == "float32" or (are_mixed and runs.dtype in _FINER_DTYPES)
        lower_bound = UNIT_ROUNDOFF.get(dtype, 0.0) if has_lower_bound else 0.0
        value_noise = _widen_short_columns(value_noise, rows.get(key, 1), widest[key[0]])
        noise[key] = _bound_noise(
            value_noise, lower_bound, analytic_noise(lowest) if base is not None and lowest else None
        )
    return Floor(noise, floor.limit, floor.twins, floor.skipped)


def _pair_with_base(
    run: TeacherForcedRun | None, base: TeacherForcedRun | None
) -> Iterator[tuple[Entry, Entry, Entry]]:
    """Per value of a run: the reference entry, the entry to compare with (of the base, if any), the own."""
    base_pairs = {} if base is None else {entry_key(own): (other, own) for other, own in base.pairs}
    for other, own in [] if run is None else run.pairs:
        if base is None:
            yield other, other, own
        elif entry_key(own) in base_pairs:
            yield *base_pairs[entry_key(own)], own


def _widen_short_columns(noise: Noise, rows: int, widest: float) -> Noise:
    """For few rows, use the largest column noise of all steps, plus slack."""
    column = widest if rows < _FEW_ROWS else noise.column
    return replace(noise, column=column * (1 + _COLUMN_SLACK / rows))


def _bound_noise(noise: Noise, lower_bound: float, upper_bound: Noise | None) -> Noise:
    """The noise within bounds: at least one rounding where a rerun cannot show it, at most `upper_bound`."""
    if upper_bound is not None and noise.relative_l2 > upper_bound.relative_l2:
        return replace(upper_bound, flips=noise.flips)
    row, column = max(noise.row, lower_bound), max(noise.column, lower_bound)
    return replace(noise, relative_l2=max(noise.relative_l2, lower_bound), row=row, column=column)
