"""Why a selected site gave no record: nothing that was asked for is ever passed over in silence."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tensortap.sources.modules import Modules
from tensortap.sources.ports import Port
from tensortap.sources.sites import Wanted, walk


class Missing(NamedTuple):
    """A selected site that gave no record, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def missing(source: Modules) -> list[Missing]:
    """Every selected site without a record."""
    return [
        Missing(_shown(wanted), _reason(source, port, wanted))
        for port in source.ports
        for wanted in (*port.values, *port.gradients)
        if not _has_fired(port, wanted)
    ]


def _has_fired(port: Port, wanted: Wanted) -> bool:
    return wanted in port.fired or (port.takes_all and port.has_emitted and not wanted.site.is_gradient)


def _shown(wanted: Wanted) -> str:
    call = "" if wanted.call is None else f"@{wanted.call}"
    name = wanted.site.name
    if not wanted.items:
        return name + call
    stem = name.removesuffix(".grad")
    return f"{stem}{wanted.items}{'.grad' if stem != name else ''}{call}"


def _reason(source: Modules, port: Port, wanted: Wanted) -> str:
    site = wanted.site
    if site.is_after_step:
        return "no optimizer took a step on it while it was captured"
    if site.kind == "grad_param":
        return port.unfit.get(site.parameter) or _no_backward(source)
    if not port.count:
        return _not_called(source, port)
    unfit = [reason for part, reason in port.unfit.items() if part.startswith(site.parameter)]
    if site.is_gradient:
        return unfit[0] if unfit else _no_backward(source)
    return _not_there(port, wanted, unfit)


def _not_there(port: Port, wanted: Wanted, unfit: Sequence[str]) -> str:
    if wanted.call is not None and port.calls <= wanted.call:
        return f"it was called {_times(port.calls)} in a step"
    if wanted.items and port.parts:
        parts = sorted(part.removeprefix(wanted.site.parameter) or "no parts" for part in port.parts)
        return f"it has no {wanted.items}; it has {', '.join(parts[:6])}"
    if unfit:
        return unfit[0]
    return "it was not passed" if wanted.site.kind == "input" else "it held no tensor"


def _no_backward(source: Modules) -> str:
    if any(one.site.is_gradient for port in source.ports for one in port.fired):
        return "no gradient reached it: what was differentiated does not depend on it"
    return "no backward pass ran through it while it was captured"


def _not_called(source: Modules, port: Port) -> str:
    above = [*_above(source.model, port.path), port.module]
    if any(isinstance(module, torch.jit.ScriptModule) for module in above):
        return "it is scripted: no hook runs inside"
    if source.stopped_after:
        return f"the forward was left after {source.stopped_after} (stop=True)"
    if _ran_inside(source, port):
        return "its .forward() was called directly, which runs no hook; call the module itself"
    if not source.has_run and not any(one.count for one in source.ports):
        return "the model was not called while it was captured"
    return _seen_in_source(source, port, above) or "not called"


def _ran_inside(source: Modules, port: Port) -> bool:
    """Whether a part of the module ran, though the module itself was not called."""
    inside = f"{port.path}." if port.path else ""
    return any(
        one.count and one.path != port.path and one.path.startswith(inside) for one in source.ports
    ) and not (port.path == "" and source.has_run)


def _above(model: Any, path: str) -> list[Any]:
    parts = tuple(path.split(".")) if path else ()
    return [module for names, module in walk(model) if names == parts[: len(names)] and names != parts]


def _seen_in_source(source: Modules, port: Port, above: Sequence[Any]) -> str | None:
    """What the code of the modules above says about the way this one is used."""
    names = [part for part in port.path.split(".") if not part.isdecimal()]
    for owner in reversed(above[:-1]) if names else ():
        found = _uses(type(owner), names[-1])
        if found is not None:
            return found
    return None


def _uses(owner: type, name: str) -> str | None:
    tree = _source_of(owner)
    if tree is None:
        return None
    file, uses = _file(owner), list(_attributes(tree, None))
    for node, _ in uses:
        if node.attr == "forward" and not _is_super(node.value) and _stands_for(node.value, name):
            return f"its .forward() is called directly at {file}:{node.lineno}, which runs no hook"
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    mine = [(node, branch) for node, branch in uses if node.attr == name]
    for node, branch in mine:
        if id(node) in called and branch is not None:
            return f"not called: the branch at {file}:{branch.lineno} was not taken"
    if mine and not any(id(node) in called for node, _ in mine):
        return f"not called: {file}:{mine[0][0].lineno} uses it without calling it"
    return None


def _attributes(node: ast.AST, branch: Any) -> Iterator[tuple[ast.Attribute, Any]]:
    """Every attribute in the code, with the innermost branch it lies in."""
    if isinstance(node, ast.Attribute):
        yield node, branch
    for child in ast.iter_child_nodes(node):
        is_branch = isinstance(node, ast.If | ast.IfExp) and child is not node.test
        yield from _attributes(child, node if is_branch else branch)


def _stands_for(node: ast.AST, name: str) -> bool:
    """The module by its own name, or by the variable of a loop over a list of them."""
    if any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(node)):
        return True
    return isinstance(node, ast.Name) and node.id not in ("self", "super")


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _source_of(owner: type) -> ast.AST | None:
    try:
        lines, start = inspect.getsourcelines(owner.forward)  # type: ignore[attr-defined]
        return ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), start - 1)
    except (OSError, TypeError, SyntaxError):
        return None


def _file(owner: type) -> str:
    return Path(inspect.getsourcefile(owner) or "?").name


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
