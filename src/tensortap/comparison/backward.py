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

    def __init__(self, findings: Iterable[Finding], modules: ModuleParents, classes: Mapping[str, str]) -> None:
        self._modules, self._classes = modules, classes
        self._takers: defaultdict[Any, list[str]] = defaultdict(list)
        self._last: dict[str, str] = {}
        for found in findings:
            tensor = _fingerprint(found) if found.kind == "grad_input" else None
            if tensor is not None:
                self._takers[tensor].append(found.module)

    def pass_by(self, found: Finding) -> None:
        """Remember which part of each module was last on the way back."""
        if found.kind == "grad_output" and found.module:
            self._last[self._modules[found.module]] = found.module

    def blamed(self, found: Finding) -> str:
        """The module whose backward made this gradient."""
        if found.kind == "grad_param":
            return found.module
        takers = self._innermost(found)
        if takers:
            return takers[0] if len(takers) == 1 else _common_ancestor(takers, self._modules)
        if found.kind != "grad_output":
            return found.module
        around = self._modules[found.module]
        return self._last.get(around, around) if self._classes.get(around) in _CONTAINER_CLASSES else around

    def doubt(self, found: Finding) -> str:
        """What would tell more."""
        takers = self._innermost(found)
        if len(takers) > 1:
            return f"several take it: {', '.join(takers[:4])}"
        if not takers and not self._takers and found.kind == "grad_output":
            return "'**.in.grad' would tell which module's backward it is"
        return ""

    def _innermost(self, found: Finding) -> list[str]:
        takers = list(dict.fromkeys(self._takers.get(_fingerprint(found), ())))
        return [one for one in takers if not any(_is_inside(other, one) for other in takers)]


class ModuleParents(dict[str, str]):
    """The modules of which anything was captured; asked for one, it tells the nearest of them around it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def __missing__(self, module: str) -> str:
        around = module
        while around:
            around = around.rpartition(".")[0]
            if around in self.names:
                break
        self[module] = around
        return around


def _is_inside(module: str, other: str) -> bool:
    return module.startswith(f"{other}.") if other else bool(module)


def _fingerprint(found: Finding) -> Any:
    """What tells one gradient from all others, as it was measured."""
    metrics = found.metrics
    if metrics is None or not metrics.norms[0]:
        return None
    return metrics.count, *metrics.norms


def _common_ancestor(modules: list[str], known: ModuleParents) -> str:
    around = known[modules[0]]
    while around and not all(one.startswith(f"{around}.") for one in modules):
        around = known[around]
    return around
