"""How much each part of a model rounds by itself, when all that comes in is given."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensortap.comparison.entries import Entry
from tensortap.comparison.floor import DEFAULT_LIMIT, UNIT_ROUNDOFF, Floor, NoiseMeasurements, EntryKey, Noise, analytic_noise
from tensortap.comparison.forced import Perturbation, TeacherForcedRun, run_teacher_forced
from tensortap.comparison.metrics import measure
from tensortap.comparison.moving import perturb_by_one_ulp
from tensortap.comparison.shelf import ReferenceActivations
from tensortap.frameworks.nested import map_leaves

_FINER_DTYPES = ("float64", "float32")
_ULP_RERUN = "each part one ulp off"
_ROUNDING_SHARE = 0.5  # of a unit in the last place: what rounding moves a number by at most
# How far two draws of the noise of a column are apart is luck where it has few rows.
_COLUMN_SLACK, _FEW_ROWS = 4.0, 16


def coarsest_output_dtype(entries: Iterable[Entry]) -> str:
    """The type of the outputs that rounds most; empty where none is floating."""
    return coarsest_dtype(*(entry.dtype for entry in entries if entry.kind == "output"))


def coarsest_dtype(*dtypes: str) -> str:
    return max((one for one in dtypes if one in UNIT_ROUNDOFF), key=lambda one: UNIT_ROUNDOFF[one], default="")


@dataclass(frozen=True, slots=True)
class IsolatedRuns:
    """What each part of a model makes of what a run had there: in another type, and of inputs that are moved
    to a neighbouring number. Where a sum nearly cancels, its type alone tells too little of its noise."""

    name: str  # of the type
    twin: TeacherForcedRun
    moved: TeacherForcedRun | None
    is_coarser: bool  # then it is the twin whose inputs are moved


class IsolatedRounding:
    """A model that is run again, each part of it with what a run had there."""

    def __init__(self, model: Any, batch: Any, patterns: Sequence[Any]) -> None:
        self._model, self._batch, self._patterns = model, batch, patterns
        self.skipped: list[str] = []

    def twin(self, own: str, other: str, shelf: Callable[[], ReferenceActivations]) -> IsolatedRuns | None:
        """The twin rounds less than the model, unless the other side rounds more: then as that one does."""
        is_coarser = UNIT_ROUNDOFF.get(other, 0.0) > UNIT_ROUNDOFF.get(own, 0.0)
        choices = [other] if is_coarser else [one for one in _FINER_DTYPES if UNIT_ROUNDOFF[one] < UNIT_ROUNDOFF.get(own, 0.0)]
        for name in choices:
            made = self._made(name, shelf())
            if made is not None:
                again = self._made(name if is_coarser else "", shelf(), _perturb_input)
                return IsolatedRuns(name, made, again, is_coarser)
        return None

    def _made(self, name: str, shelf: ReferenceActivations, change: Perturbation | None = None) -> TeacherForcedRun | None:
        """In that type; as it is where none is named."""
        try:
            model, batch = self._model, self._batch
            if name:
                dtype = getattr(torch, name)
                model, batch = copy.deepcopy(model).to(dtype), convert_batch(batch, dtype)
            return run_teacher_forced(model, batch, self._patterns, shelf, change)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            self.skipped.append(f"{name or _ULP_RERUN}: the model does not run in it ({error})")
            return None


def _perturb_input(name: str, value: torch.Tensor) -> torch.Tensor:
    """By the same lot in each run, by another at each place: two that are subtracted must not move alike."""
    made: torch.Tensor = perturb_by_one_ulp(value, seed=zlib.crc32(name.encode()))
    return made


def floor_from_isolated_runs(
    alone: IsolatedRuns, base: TeacherForcedRun | None, skipped: Sequence[str], *, lowest: str, are_mixed: bool
) -> Floor:
    """The noise of every value: of the twin against what it was given, or against another that was given the
    same. Of the latter nobody knows that it is right: what is more than is usual for the `lowest` type on
    its way is no noise of it."""
    gathered = NoiseMeasurements(is_alone=not (alone.is_coarser or are_mixed))
    for other, value, own in _pair_with_base(alone.twin, base):
        gathered.add(f"each part alone in {alone.name}", other, measure(value.load(), own.load()))
    for other, value, own in _pair_with_base(alone.moved, alone.twin if alone.is_coarser else base):
        gathered.add(_ULP_RERUN, other, measure(value.load(), own.load()), _ROUNDING_SHARE)
    found = gathered.floor(skipped, DEFAULT_LIMIT)
    pairs = (base or alone.twin).pairs
    dtypes = {_entry_key(other): coarsest_dtype(other.dtype, own.dtype) for other, own in pairs}
    rows = {_entry_key(other): max(math.prod(other.shape[:-1]), 1) for other, _ in pairs}
    widest: dict[str, float] = {}
    for key, one in found.noise.items():
        widest[key[0]] = max(widest.get(key[0], 0.0), one.column)
    noise = {}
    for key, one in found.noise.items():
        dtype = dtypes.get(key, "")
        # A finer twin has the same weights; those of another type were rounded too, or were not.
        is_lifted = dtype == "float32" or (are_mixed and alone.name in _FINER_DTYPES)
        least = UNIT_ROUNDOFF.get(dtype, 0.0) if is_lifted else 0.0
        one = _widen_short_columns(one, rows.get(key, 1), widest[key[0]])
        noise[key] = _bound_noise(one, least, analytic_noise(lowest) if base is not None and lowest else None)
    return Floor(noise, found.limit, found.twins, found.skipped)


def _pair_with_base(run: TeacherForcedRun | None, base: TeacherForcedRun | None) -> Iterator[tuple[Entry, Entry, Entry]]:
    """Of each value of a run: the reference's, what it is set against (that, or the one of a base that was
    given the same), and its own."""
    known = {} if base is None else {_entry_key(own): (other, own) for other, own in base.pairs}
    for other, own in [] if run is None else run.pairs:
        if base is None:
            yield other, other, own
        elif _entry_key(own) in known:
            yield *known[_entry_key(own)], own


def _entry_key(entry: Entry) -> EntryKey:
    return entry.name, entry.first_step, entry.call, entry.first_rank


def _widen_short_columns(noise: Noise, rows: int, widest: float) -> Noise:
    """A column of few rows has the noise of that value in all steps, and room for what is left of luck."""
    column = widest if rows < _FEW_ROWS else noise.column
    return replace(noise, column=column * (1 + _COLUMN_SLACK / rows))


def _bound_noise(noise: Noise, least: float, most: Noise | None) -> Noise:
    """Not below one rounding where the twin cannot show it, as of what computes in single precision whatever
    its type is; and no more than is usual where nobody knows that it is noise."""
    if most is not None and noise.relative_l2 > most.relative_l2:
        return replace(most, flips=noise.flips)
    row, column = max(noise.row, least), max(noise.column, least)
    return replace(noise, relative_l2=max(noise.relative_l2, least), row=row, column=column)


def convert_batch(batch: Any, dtype: torch.dtype) -> Any:
    """The floating values of a batch in that type; a function runs the model in its own way."""
    if callable(batch):
        return batch

    def convert(leaf: Any) -> Any:
        is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_number else leaf

    return map_leaves(batch, convert)
