"""Gradients, inputs not captured, own rounding.

Whose backward a wrong gradient comes from.

What a value was also made of, and the other side does not have: nothing is known of that.

Where only its own rounding is noise of a value: all that it was made of is here, and identical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensortap.comparison.diagnosis.verdict import GAPS, Finding, judge
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.module_names import module_of, split_name

GRADIENT_KINDS = ("grad_input", "grad_output", "grad_param", "grad_local", "grad_return")
# Modules without code of their own: what is between two parts is done by one of them.
_CONTAINER_CLASSES = ("Sequential",)


class Gradients:
    """The gradients of one step. One tensor shows as the output of a module and as the input of others, and
    hooks see it in any order: whoever takes it is whose backward made it."""

    def __init__(
        self, findings: Iterable[Finding], parents: ModuleParents, classes: Mapping[str, str]
    ) -> None:
        self._parents, self._classes = parents, classes
        self._consumers: defaultdict[Any, list[str]] = defaultdict(list)
        self._last_child: dict[str, str] = {}
        for finding in findings:
            tensor = _fingerprint(finding) if finding.kind == "grad_input" else None
            if tensor is not None:
                self._consumers[tensor].append(finding.module)

    def register(self, finding: Finding) -> None:
        """Remember which part of each module was last on the way back."""
        if finding.kind == "grad_output" and finding.module:
            self._last_child[self._parents[finding.module]] = finding.module

    def blame(self, finding: Finding) -> str:
        """The module whose backward made this gradient."""
        if finding.kind == "grad_param":
            return finding.module
        consumers = self._innermost_consumers(finding)
        if consumers:
            return consumers[0] if len(consumers) == 1 else _common_ancestor(consumers, self._parents)
        if finding.kind != "grad_output":
            return finding.module
        around = self._parents[finding.module]
        return (
            self._last_child.get(around, around)
            if self._classes.get(around) in _CONTAINER_CLASSES
            else around
        )

    def describe_uncertainty(self, finding: Finding) -> str:
        """What would tell more."""
        consumers = self._innermost_consumers(finding)
        if len(consumers) > 1:
            return f"several take it: {', '.join(consumers[:4])}"
        if not consumers and not self._consumers and finding.kind == "grad_output":
            return "'**.in.grad' would tell which module's backward it is"
        return ""

    def _innermost_consumers(self, finding: Finding) -> list[str]:
        consumers = list(dict.fromkeys(self._consumers.get(_fingerprint(finding), ())))
        return [module for module in consumers if not any(_is_inside(other, module) for other in consumers)]


class ModuleParents(dict[str, str]):
    """The modules of which anything was captured; asked for one, it tells the nearest of them around it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def __missing__(self, module: str) -> str:
        parent = module
        while parent:
            parent = parent.rpartition(".")[0]
            if parent in self.names:
                break
        self[module] = parent
        return parent


def _is_inside(module: str, other: str) -> bool:
    return module.startswith(f"{other}.") if other else bool(module)


def _fingerprint(finding: Finding) -> Any:
    """What tells one gradient from all others, as it was measured."""
    metrics = finding.metrics
    if metrics is None or not metrics.norms[0]:
        return None
    return metrics.count, *metrics.norms


def _common_ancestor(modules: list[str], known: ModuleParents) -> str:
    ancestor = known[modules[0]]
    while ancestor and not all(module.startswith(f"{ancestor}.") for module in modules):
        ancestor = known[ancestor]
    return ancestor


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


class IntrinsicRounding:
    """Own rounding was measured while every module went on with what the run itself had there. It says
    nothing of code that made more than this comparison holds: `measured` are the names that the floor has,
    `alone` is what has no partner, and is weighed elsewhere."""

    def __init__(
        self,
        measured_names: Iterable[str],
        findings: Iterable[Finding],
        unmatched: Iterable[Entry],
        parents: ModuleParents,
    ) -> None:
        self._parents = parents
        judged = {finding.name: finding.verdict not in GAPS for finding in findings}
        judged |= {entry.name: True for entry in unmatched}
        self._incomplete_modules = {
            self._enclosing_module(name) for name in measured_names if not judged.get(name)
        }

    def rejudge(self, finding: Finding, parent: Finding | None, *, has_inputs: bool) -> Finding:
        """By its own rounding where that is all that can differ; else as it is."""
        if parent is None or parent.verdict != "identical" or not has_inputs:
            return finding
        noise, metrics = finding.noise.intrinsic_only(), finding.metrics
        if (
            noise is None
            or metrics is None
            or producing_module(finding, self._parents) in self._incomplete_modules
        ):
            return finding
        if finding.verdict not in ("within noise", "origin") or finding.pair.a.dtype != finding.pair.b.dtype:
            return finding
        judgement = judge(metrics, noise)
        return replace(
            finding, noise=noise, verdict=judgement.verdict, ratio=judgement.ratio, axis=judgement.axis
        )

    def _enclosing_module(self, name: str) -> str:
        """The module in whose code it is seen: what comes into a module, or what a part of it gave."""
        module, rest = split_name(name)
        is_inside = rest == ".in" or rest.startswith((".in.", ".in["))
        return module if is_inside and module in self._parents.names else self._parents[module]
