"""What a value was also made of, and the other side does not have: nothing is known of that."""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.comparison.backward import GRADIENT_KINDS, ModuleParents
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding
from tensortap.comparison.modules import module_of

_WEIGHT_KINDS = ("param", "grad_param")


class UncapturedInputs:
    """Values without a partner, by step, rank and the module in whose code they are."""

    def __init__(self, unmatched: Iterable[Entry], modules: ModuleParents) -> None:
        self._modules = modules
        self._first: dict[tuple[int, int, str], Entry] = {}
        for entry in sorted(unmatched, key=lambda unmatched_entry: unmatched_entry.order):
            if entry.kind not in GRADIENT_KINDS and entry.kind not in _WEIGHT_KINDS:
                key = entry.first_step, entry.first_rank, self._place(entry)
                self._first.setdefault(key, entry)

    def before(self, finding: Finding) -> Entry | None:
        """The first of them in the code that made this value, if it came before it."""
        if not self._first or finding.kind in GRADIENT_KINDS:
            return None
        first = self._first.get((finding.step, finding.rank, producing_module(finding, self._modules)))
        return first if first is not None and first.order < finding.pair.a.order else None

    def _place(self, entry: Entry) -> str:
        module = module_of(entry.name, entry.kind)
        return (
            self._modules[module] if entry.kind == "output" or module not in self._modules.names else module
        )


def producing_module(finding: Finding, modules: ModuleParents) -> str:
    """The module whose code made the value: of an input it is the one that calls."""
    return modules[finding.module] if finding.kind == "input" else finding.module
