"""Depth and lowest precision of the computation of a value, from the entries captured before it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.module_names import module_of
from tensortap.comparison.values.noise import SCALE_DTYPES, UNIT_ROUNDOFF


class DepthTracker:
    """Tracks, per step and rank, the lowest precision and the number of layers so far."""

    def __init__(self) -> None:
        self._progress: dict[tuple[object, object], _StepProgress] = {}

    def dtype_and_depth(self, pair: EntryPair) -> tuple[str, int]:
        entry, other_dtype = pair.a, pair.b.dtype
        if entry.dtype in SCALE_DTYPES:
            return entry.dtype, 1
        progress = self._progress.get((entry.step, entry.rank)) or self._start_step(entry)
        if entry.dtype != progress.lowest_dtype or other_dtype != progress.lowest_dtype:
            progress.lowest_dtype = max(progress.lowest_dtype, entry.dtype, other_dtype, key=_unit_roundoff)
        if entry.name not in progress.names:
            progress.add(entry)
        # A gradient has passed every layer forward and backward.
        depth = 2 * progress.layers if entry.kind.startswith("grad") else progress.layers
        return progress.lowest_dtype, depth

    def _start_step(self, entry: Entry) -> _StepProgress:
        """The progress of the entry's step; an entry of several steps belongs to the first."""
        progress = self._progress.setdefault((entry.first_step, entry.first_rank), _StepProgress())
        return self._progress.setdefault((entry.step, entry.rank), progress)


@dataclass(slots=True)
class _StepProgress:
    """Layers and precisions of one step and rank so far."""

    lowest_dtype: str = ""
    layers: int = 1  # the largest number of submodules of one module that have run
    names: set[str] = field(default_factory=set)
    children: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, entry: Entry) -> None:
        self.names.add(entry.name)
        # The name of a user value is no module path, but its prefix may be one.
        path = module_of(entry.name, entry.kind) if entry.kind != "value" else entry.name.rpartition(".")[0]
        while path:
            parent = path.rpartition(".")[0]
            siblings = self.children[parent]
            if path in siblings:
                return
            siblings.add(path)
            if len(siblings) > self.layers:
                self.layers = len(siblings)
            path = parent


def _unit_roundoff(dtype: str) -> float:
    return UNIT_ROUNDOFF.get(dtype, 0.0)
