"""What a value was also made of, and the other side does not have: nothing is known of that."""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.comparison.backward import BACKWARD, Modules
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding
from tensortap.comparison.modules import module_of

_WEIGHTS = ("param", "grad_param")


class Unseen:
    """Values without a partner, by step, rank and the module in whose code they are."""

    def __init__(self, alone: Iterable[Entry], modules: Modules) -> None:
        self._modules = modules
        self._first: dict[tuple[int, int, str], Entry] = {}
        for entry in sorted(alone, key=lambda one: one.order):
            if entry.kind not in BACKWARD and entry.kind not in _WEIGHTS:
                key = entry.first_step, entry.first_rank, self._place(entry)
                self._first.setdefault(key, entry)

    def before(self, found: Finding) -> Entry | None:
        """The first of them in the code that made this value, if it came before it."""
        if not self._first or found.kind in BACKWARD:
            return None
        first = self._first.get((found.step, found.rank, maker(found, self._modules)))
        return first if first is not None and first.order < found.pair.a.order else None

    def _place(self, entry: Entry) -> str:
        module = module_of(entry.name, entry.kind)
        return (
            self._modules[module] if entry.kind == "output" or module not in self._modules.names else module
        )


def maker(found: Finding, modules: Modules) -> str:
    """The module whose code made the value: of an input it is the one that calls."""
    return modules[found.module] if found.kind == "input" else found.module
