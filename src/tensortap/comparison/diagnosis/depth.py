"""How deep in a program a value is made, and in which precision, as far as was captured: by what has run
before it, whatever that is called.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.module_names import module_of
from tensortap.comparison.values.noise import SCALE_DTYPES, UNIT_ROUNDOFF


class DepthTracker:
    """The lowest precision and the number of layers on the way to a value."""

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
        # Through every layer forwards, and then backwards.
        return progress.lowest_dtype, 2 * progress.layers if entry.kind.startswith(
            "grad"
        ) else progress.layers

    def _start_step(self, entry: Entry) -> _StepProgress:
        """What stands for several steps counts with the first of them."""
        progress = self._progress.setdefault((entry.first_step, entry.first_rank), _StepProgress())
        return self._progress.setdefault((entry.step, entry.rank), progress)


@dataclass(slots=True)
class _StepProgress:
    """What the values of one step and rank have passed through so far."""

    lowest_dtype: str = ""
    layers: int = 1  # parts that have run, of whatever has the most of them
    names: set[str] = field(default_factory=set)
    children: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, entry: Entry) -> None:
        self.names.add(entry.name)
        # What somebody gave a name is no module; what it is named after may be one.
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
