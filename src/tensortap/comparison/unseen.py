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

    def __init__(self, unmatched: Iterable[Entry], parents: ModuleParents) -> None:
        self._parents = parents
        self._first: dict[tuple[int, int, str], Entry] = {}
        for entry in sorted(unmatched, key=lambda unmatched_entry: unmatched_entry.order):
            if entry.kind not in GRADIENT_KINDS and entry.kind not in _WEIGHT_KINDS:
                key = entry.first_step, entry.first_rank, self._module_of_entry(entry)
                self._first.setdefault(key, entry)

    def first_before(self, finding: Finding) -> Entry | None:
        """The first of them in the code that made this value, if it came before it."""
        if not self._first or finding.kind in GRADIENT_KINDS:
            return None
        first = self._first.get((finding.step, finding.rank, producing_module(finding, self._parents)))
        return first if first is not None and first.order < finding.pair.a.order else None

    def _module_of_entry(self, entry: Entry) -> str:
        module = module_of(entry.name, entry.kind)
        return (
            self._parents[module] if entry.kind == "output" or module not in self._parents.names else module
        )


def producing_module(finding: Finding, parents: ModuleParents) -> str:
    """The module whose code made the value: of an input it is the one that calls."""
    return parents[finding.module] if finding.kind == "input" else finding.module
