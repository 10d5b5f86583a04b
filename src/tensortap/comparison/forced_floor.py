"""How much each part of a model rounds by itself, when all that comes in is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensortap.comparison.entries import Entry
from tensortap.comparison.floor import LIMIT, ROUNDING, Floor, Gathered, Key, Noise, analytic
from tensortap.comparison.forced import Forced, forced
from tensortap.comparison.metrics import measure
from tensortap.comparison.shelf import Shelf
from tensortap.frameworks.nested import rebuild

_FINER = ("float64", "float32")


def coarsest(entries: Iterable[Entry]) -> str:
    """The type of the outputs that rounds most; empty where none is floating."""
    return coarsest_of(*(entry.dtype for entry in entries if entry.kind == "output"))


def coarsest_of(*dtypes: str) -> str:
    return max((one for one in dtypes if one in ROUNDING), key=lambda one: ROUNDING[one], default="")


class Rounding:
    """A model that is run once more in another type, each part of it with what a run had there."""

    def __init__(self, model: Any, batch: Any, patterns: Sequence[Any]) -> None:
        self._model, self._batch, self._patterns = model, batch, patterns
        self.skipped: list[str] = []

    def twin(self, own: str, other: str, shelf: Callable[[], Shelf]) -> tuple[str, Forced] | None:
        """The twin rounds less than the model, unless the other side rounds more: then as that one does."""
        is_coarser = ROUNDING.get(other, 0.0) > ROUNDING.get(own, 0.0)
        choices = [other] if is_coarser else [one for one in _FINER if ROUNDING[one] < ROUNDING.get(own, 0.0)]
        for name in choices:
            made = self._made(name, shelf())
            if made is not None:
                return name, made
        return None

    def _made(self, name: str, shelf: Shelf) -> Forced | None:
        dtype = getattr(torch, name)
        try:
            twin = copy.deepcopy(self._model).to(dtype)
            return forced(twin, converted(self._batch, dtype), self._patterns, shelf)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            self.skipped.append(f"{name}: the model does not run in it ({error})")
            return None


def floor_of(
    name: str, twin: Forced, base: Forced | None, skipped: Sequence[str], *, lowest: str, are_mixed: bool
) -> Floor:
    """The noise of every value: of the twin against what it was given, or against another that was given the
    same. Of the latter nobody knows that it is right: what is more than is usual for the `lowest` type on
    its way is no noise of it."""
    gathered, label = Gathered(), f"each part alone in {name}"
    known = {} if base is None else {_key(own): (other, own) for other, own in base.pairs}
    for other, own in twin.pairs:
        entry, value = (other, other) if base is None else known.get(_key(own), (other, own))
        if base is None or _key(own) in known:
            gathered.add(label, entry, measure(value.load(), own.load()))
    found = gathered.floor(skipped, LIMIT)
    dtypes = {_key(other): coarsest_of(other.dtype, own.dtype) for other, own in (base or twin).pairs}
    noise = {}
    for key, one in found.noise.items():
        dtype = dtypes.get(key, "")
        # A finer twin has the same weights; those of another type were rounded too, or were not.
        is_lifted = dtype == "float32" or (are_mixed and name in _FINER)
        least = ROUNDING.get(dtype, 0.0) if is_lifted else 0.0
        noise[key] = _bounded(one, least, analytic(lowest) if base is not None and lowest else None)
    return Floor(noise, found.limit, found.twins, found.skipped)


def _key(entry: Entry) -> Key:
    return entry.name, entry.first_step, entry.call, entry.first_rank


def _bounded(noise: Noise, least: float, most: Noise | None) -> Noise:
    """Not below one rounding where the twin cannot show it, as of what computes in single precision whatever
    its type is; and no more than is usual where nobody knows that it is noise."""
    if most is not None and noise.relative_l2 > most.relative_l2:
        return replace(most, flips=noise.flips)
    row, column = max(noise.row, least), max(noise.column, least)
    return replace(noise, relative_l2=max(noise.relative_l2, least), row=row, column=column)


def converted(batch: Any, dtype: torch.dtype) -> Any:
    """The floating values of a batch in that type; a function runs the model in its own way."""
    if callable(batch):
        return batch

    def convert(leaf: Any) -> Any:
        is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_number else leaf

    return rebuild(batch, convert)
