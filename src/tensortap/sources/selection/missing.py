"""Explain why a selected site gave no record, also from the source of the forward that should call it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from tensortap.core.patterns import items_match
from tensortap.sources.observation.point import HookSource, ObservationPoint
from tensortap.sources.probes.probes import explain_unbound
from tensortap.sources.sites import (
    VARIABLES,
    SelectedSite,
    class_names,
    has_forward,
    supports_hooks,
    unwrap,
    walk_modules,
)


class Missing(NamedTuple):
    """A selected site that gave no record, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def find_missing(source: HookSource) -> list[Missing]:
    """Every selected site without a record."""
    silent = [
        (point, selected)
        for point in source.points
        for selected in (*point.values, *point.gradients)
        if not _has_fired(point, selected)
    ]
    if not silent:
        return []
    calls = _ObservedCalls(source)
    return [
        Missing(selection_label(selected), _explain(source, point, selected, calls))
        for point, selected in silent
    ]


class _ObservedCalls:
    """Which modules ran, as far as the hooks observed."""

    def __init__(self, source: HookSource) -> None:
        points = [point for point in source.points if point.function is None]
        self.called = {point.path for point in points if point.count}
        if source.has_run:
            self.called.add("")
        names: dict[int, list[str]] = {}
        for path, module in walk_modules(source.model) if source.model is not None else ():
            names.setdefault(id(module), []).append(".".join(path))
        # A module with several names runs under an unknown one of them.
        seen = [point.path for point in points if point.count and len(names.get(id(point.module), ())) == 1]
        self.ran_inside = {owner for path in seen for owner in _parent_paths(path)}
        self.idle = {point.path for point in points} - self.called - self.ran_inside


def _has_fired(point: ObservationPoint, selected: SelectedSite) -> bool:
    if selected in point.fired_sites:
        return True
    return point.has_gradient if selected.site.is_gradient else point.takes_all and point.has_emitted


def selection_label(selected: SelectedSite) -> str:
    """The selection as written: name, items and call."""
    call = "" if selected.call is None else f"@{selected.call}"
    name = selected.site.name
    if not selected.items:
        return name + call
    stem = name.removesuffix(".grad")
    return f"{stem}{selected.items}{'.grad' if stem != name else ''}{call}"


def _explain(
    source: HookSource, point: ObservationPoint, selected: SelectedSite, calls: _ObservedCalls
) -> str:
    site = selected.site
    if source.failure:
        return f"the capture was given up: {source.failure}"
    if source.has_run and not source.was_active:
        return "left out at every step, by when=, trace_interval=, train_only= or eval_only="
    if site.is_after_step:
        return "no optimizer took a step on it while it was captured"
    if site.kind == "grad_param":
        return point.rejections.get(site.parameter) or _explain_no_gradient(source)
    if not point.count and site.of in VARIABLES:
        return explain_unbound(source.points, point)
    if not point.count:
        return _explain_not_called(source, point, calls)
    if selected.call is not None and point.calls <= selected.call:
        return f"it was called {_format_count(point.calls)} in a step"
    reasons = [reason for part, reason in point.rejections.items() if _is_part(part, selected)]
    if reasons:
        return reasons[0]
    return _explain_no_gradient(source) if site.is_gradient else _explain_absent_part(point, selected)


def _is_part(part: str, selected: SelectedSite) -> bool:
    """Whether an observed part, as `mask[0]`, is selected."""
    item = part.removeprefix(selected.site.parameter)
    is_of_parameter = part.startswith(selected.site.parameter) and (not item or item[0] in ".[")
    return (is_of_parameter or not selected.site.parameter) and items_match(selected.items, item)


def _explain_absent_part(point: ObservationPoint, selected: SelectedSite) -> str:
    parameter = selected.site.parameter
    whole_value = SelectedSite(selected.site)
    parts = sorted(
        part.removeprefix(parameter) or "no parts"
        for part in point.observed_parts
        if _is_part(part, whole_value)
    )
    if selected.items and parts:
        return f"it has no {selected.items}; it has {', '.join(parts[:6])}"
    return "it was not passed" if selected.site.kind == "input" else "it held no tensor"


def _explain_no_gradient(source: HookSource) -> str:
    if any(selected.site.is_gradient for point in source.points for selected in point.fired_sites):
        return "no gradient reached it: what was differentiated does not depend on it"
    return "no backward pass ran through it while it was captured"


def _explain_not_called(source: HookSource, point: ObservationPoint, calls: _ObservedCalls) -> str:
    owners = list(_owner_chain(source.model, point.path))
    is_inside_script = any("ScriptModule" in class_names(owner) for owner, _ in owners)
    if is_inside_script or not supports_hooks(point.module):
        return "it is scripted: no hook runs inside"
    if not _is_still_in_place(owners, point):
        return "not called: the model holds it no longer, it was replaced or removed"
    if source.stopped_after:
        return f"the forward was left after {source.stopped_after} (stop=True)"
    if not calls.called:
        return "the model was not called while it was captured"
    explanation = _explain_from_source(point.path, owners, calls)
    if point.path in calls.ran_inside and not (explanation and ".forward()" in explanation):
        return "not called itself: its parts were, one by one, or its .forward(), which runs no hook"
    return explanation or source.uncalled_reason


def _owner_chain(model: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Every module above, from the model down, with the name of its child on the path."""
    module = model
    for name in path.split(".") if path else ():
        yield module, name
        module = _child(module, name)
        if module is None:  # removed since
            return


def _is_still_in_place(owners: Sequence[tuple[Any, str]], point: ObservationPoint) -> bool:
    """Whether its module is still at the same path as when the capture began."""
    return not point.path or (
        len(owners) == point.path.count(".") + 1 and _child(*owners[-1]) is point.module
    )


def _child(owner: Any, name: str) -> Any:
    child = owner._modules[name] if name in owner._modules else None  # noqa: SIM401 - scripted ones have no get
    return None if child is None else unwrap(child)


def _parent_paths(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _explain_from_source(path: str, owners: Sequence[tuple[Any, str]], calls: _ObservedCalls) -> str | None:
    """What the source of the nearest callable module above shows, otherwise of those above it."""
    explain, is_item = explain_not_called, False
    for (owner, name), owner_path in zip(reversed(owners), _parent_paths(path), strict=True):
        if not has_forward(owner):
            is_item = True  # of a ModuleList: its owner's code mentions only the list
            continue
        explanation = None if owner_path in calls.idle else explain(owner, name, is_item=is_item)
        if explanation is not None or owner_path in calls.called:
            return explanation
        explain, is_item = explain_branch_not_taken, False
    return None


def _format_count(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class _ForwardSource(NamedTuple):
    tree: ast.AST
    file: str


def explain_not_called(owner: Any, name: str, *, is_item: bool) -> str | None:
    """What the owner's code does instead of calling `name` or its items; None if it does not show."""
    code = _forward_source(owner)
    if code is None:
        return None
    aliases = _aliases(code.tree, name)
    for node in ast.walk(code.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "forward"
            and _refers_to(node.value, name, aliases)
        ):
            return f"its .forward() is called directly at {code.file}:{node.lineno}, which runs no hook"
    uses, calls = _uses_and_calls(code, name, is_item)
    if uses and not calls:
        return f"not called: {code.file}:{uses[0].node.lineno} uses it without calling it"
    return _describe_untaken_branch(code, calls)


def explain_branch_not_taken(owner: Any, name: str, *, is_item: bool) -> str | None:
    """The only branch in which the owner's code calls `name` or its items."""
    code = _forward_source(owner)
    return None if code is None else _describe_untaken_branch(code, _uses_and_calls(code, name, is_item)[1])


def _describe_untaken_branch(code: _ForwardSource, calls: Sequence[_Use]) -> str | None:
    if not calls or any(use.branch is None for use in calls):
        return None
    return f"not called: the branch at {code.file}:{calls[0].branch} was not taken"


def _uses_and_calls(code: _ForwardSource, name: str, is_item: bool) -> tuple[list[_Use], list[_Use]]:
    """Items of a list are called by other names, so every use of the list may call them."""
    called = {id(node.func) for node in ast.walk(code.tree) if isinstance(node, ast.Call)}
    uses = list(_uses(code.tree, name, None))
    return uses, uses if is_item else [use for use in uses if id(use.node) in called]


class _Use(NamedTuple):
    node: ast.Attribute
    branch: int | None  # the line of the innermost enclosing branch


def _uses(node: ast.AST, name: str, branch: int | None) -> Iterator[_Use]:
    if isinstance(node, ast.Attribute) and node.attr == name:
        yield _Use(node, branch)
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, name, _branch_line(node, child) or branch)


def _branch_line(node: ast.AST, child: ast.AST) -> int | None:
    if not isinstance(node, ast.If | ast.IfExp) or child is node.test:
        return None
    is_else = child is node.orelse if isinstance(node, ast.IfExp) else child in node.orelse
    line: int = getattr(child, "lineno", node.lineno) if is_else else node.lineno
    return line


def _refers_to(node: ast.AST, name: str, aliases: set[str]) -> bool:
    """Whether it is the module by name, or a variable bound to it or to its items."""
    if isinstance(node, ast.Name):
        return node.id in aliases
    return not _is_super(node) and _mentions(node, name)


def _aliases(tree: ast.AST, name: str) -> set[str]:
    aliases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and _mentions(node.iter, name):
            aliases |= _bound_names(node.target)
        elif isinstance(node, ast.Assign) and _is_reference(node.value, name):
            aliases |= {bound for target in node.targets for bound in _bound_names(target)}
    return aliases


def _is_reference(node: ast.AST, name: str) -> bool:
    """Whether it is `self.name` or `self.name[0]`, not its output."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == name


def _bound_names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr == name for inner in ast.walk(node))


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _forward_source(owner: Any) -> _ForwardSource | None:
    """The parsed source of the undecorated forward, which may be inherited from another file."""
    forward: Any = owner.__dict__.get("forward") or getattr(type(owner), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return None if code is None else _parse_forward(code)


# Keyed by code: a function set on an instance would keep the model alive.
@lru_cache(maxsize=256)
def _parse_forward(code: CodeType) -> _ForwardSource | None:
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), start - 1)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return _ForwardSource(tree, Path(code.co_filename).name)
