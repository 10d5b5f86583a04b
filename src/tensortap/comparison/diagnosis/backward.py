"""The context of a difference: whose backward a gradient is, inputs not captured, intrinsic rounding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensortap.comparison.diagnosis.verdict import GAPS, Finding, judge
from tensortap.comparison.sides.entry import Entry, module_of, split_name

GRADIENT_KINDS = ("grad_input", "grad_output", "grad_param", "grad_local", "grad_return")
# Containers compute nothing themselves: a gradient between two submodules is made by one of them.
_CONTAINER_CLASSES = ("Sequential",)


class Gradients:
    """The gradients of one step, by the modules whose backward made them.

    One gradient is recorded as the grad_output of a module and the grad_input of others, in any order;
    the module that consumed the tensor in the forward pass made its gradient."""

    def __init__(
        self, findings: Iterable[Finding], parents: ModuleParents, classes: Mapping[str, str]
    ) -> None:
        self._parents, self._classes = parents, classes
        self._consumers: defaultdict[Any, list[str]] = defaultdict(list)
        self._last_child: dict[str, str] = {}
        for finding in findings:
            fingerprint = _fingerprint(finding) if finding.kind == "grad_input" else None
            if fingerprint is not None:
                self._consumers[fingerprint].append(finding.module)

    def register(self, finding: Finding) -> None:
        """Remember the last submodule of each module in the backward pass."""
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
        parent = self._parents[finding.module]
        is_container = self._classes.get(parent) in _CONTAINER_CLASSES
        return self._last_child.get(parent, parent) if is_container else parent

    def describe_uncertainty(self, finding: Finding) -> str:
        """Why the module is uncertain, or what to capture to make it certain; "" if it is certain."""
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
    """Maps a module to its nearest ancestor of which anything was captured."""

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
    """Identifies a gradient by its measured size and norms; None if it has no norm."""
    metrics = finding.metrics
    if metrics is None or not metrics.norms[0]:
        return None
    return metrics.count, *metrics.norms


def _common_ancestor(modules: list[str], parents: ModuleParents) -> str:
    ancestor = parents[modules[0]]
    while ancestor and not all(module.startswith(f"{ancestor}.") for module in modules):
        ancestor = parents[ancestor]
    return ancestor


_WEIGHT_KINDS = ("param", "grad_param")


class UncapturedInputs:
    """Entries without a counterpart, by step, rank and the module whose forward they are in."""

    def __init__(self, unmatched: Iterable[Entry], parents: ModuleParents) -> None:
        self._parents = parents
        self._first: dict[tuple[int, int, str], Entry] = {}
        for entry in sorted(unmatched, key=lambda entry: entry.order):
            if entry.kind not in GRADIENT_KINDS and entry.kind not in _WEIGHT_KINDS:
                key = entry.first_step, entry.first_rank, self._module_of_entry(entry)
                self._first.setdefault(key, entry)

    def first_before(self, finding: Finding) -> Entry | None:
        """The first unmatched entry in the module that produced this value, if it precedes the value."""
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
    """The module whose forward computed the value; for an input that is the calling module."""
    return parents[finding.module] if finding.kind == "input" else finding.module


class IntrinsicRounding:
    """Judges values by intrinsic noise where all inputs are identical.

    Intrinsic noise holds only for modules whose measured values (`measured_names`) are all compared here;
    `unmatched` entries are handled by `UncapturedInputs`."""

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
        """The finding judged by intrinsic noise if all inputs are identical; else unchanged."""
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
        """The module whose forward sees the value: as its input, or as the output of a submodule."""
        module, rest = split_name(name)
        is_inside = rest == ".in" or rest.startswith((".in.", ".in["))
        return module if is_inside and module in self._parents.names else self._parents[module]
