"""How deep in a program a value is made, and in which precision, as far as was captured: by what has run
before it, whatever that is called."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tensortap.comparison.entries import Entry
from tensortap.comparison.match import Pair
from tensortap.comparison.modules import module_of
from tensortap.comparison.noise import ROUNDING, SCALES


class Surroundings:
    """The lowest precision and the number of layers on the way to a value."""

    def __init__(self) -> None:
        self._passed: dict[tuple[object, object], _Passed] = {}

    def of(self, pair: Pair) -> tuple[str, int]:
        entry, other = pair.a, pair.b.dtype
        if entry.dtype in SCALES:
            return entry.dtype, 1
        passed = self._passed.get((entry.step, entry.rank)) or self._begun(entry)
        if entry.dtype != passed.lowest or other != passed.lowest:
            passed.lowest = max(passed.lowest, entry.dtype, other, key=_rounding)
        if entry.name not in passed.names:
            passed.enter(entry)
        # Through every layer forwards, and then backwards.
        return passed.lowest, 2 * passed.layers if entry.kind.startswith("grad") else passed.layers

    def _begun(self, entry: Entry) -> _Passed:
        """What stands for several steps counts with the first of them."""
        made = self._passed.setdefault((entry.first_step, entry.first_rank), _Passed())
        return self._passed.setdefault((entry.step, entry.rank), made)


@dataclass(slots=True)
class _Passed:
    """What the values of one step and rank have passed through so far."""

    lowest: str = ""
    layers: int = 1  # parts that have run, of whatever has the most of them
    names: set[str] = field(default_factory=set)
    parts: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def enter(self, entry: Entry) -> None:
        self.names.add(entry.name)
        # What somebody gave a name is no module; what it is named after may be one.
        path = module_of(entry.name, entry.kind) if entry.kind != "value" else entry.name.rpartition(".")[0]
        while path:
            around = path.rpartition(".")[0]
            beside = self.parts[around]
            if path in beside:
                return
            beside.add(path)
            if len(beside) > self.layers:
                self.layers = len(beside)
            path = around


def _rounding(dtype: str) -> float:
    return ROUNDING.get(dtype, 0.0)
