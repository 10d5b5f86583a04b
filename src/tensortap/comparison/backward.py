"""Whose backward a wrong gradient comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tensortap.comparison.findings import Finding

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
