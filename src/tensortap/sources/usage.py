"""How the code of a module's forward uses a module that it holds."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple


class _Code(NamedTuple):
    tree: ast.AST
    file: str


def why_not_called(owner: Any, name: str, *, is_item: bool) -> str | None:
    """What the owner's code does instead of calling `name`, or the items of it, if it tells."""
    code = _code_of(owner)
    if code is None:
        return None
    aliases = _aliases(code.tree, name)
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Attribute) and node.attr == "forward" and _means(node.value, name, aliases):
            return f"its .forward() is called directly at {code.file}:{node.lineno}, which runs no hook"
    uses, calls = _uses_and_calls(code, name, is_item)
    if uses and not calls:
        return f"not called: {code.file}:{uses[0].node.lineno} uses it without calling it"
    return _in_branch(code, calls)


def branch_not_taken(owner: Any, name: str, *, is_item: bool) -> str | None:
    """The branch in which alone the owner's code calls `name`, or the items of it."""
    code = _code_of(owner)
    return None if code is None else _in_branch(code, _uses_and_calls(code, name, is_item)[1])


def _in_branch(code: _Code, calls: Sequence[_Use]) -> str | None:
    if not calls or any(use.branch is None for use in calls):
        return None
    return f"not called: the branch at {code.file}:{calls[0].branch} was not taken"


def _uses_and_calls(code: _Code, name: str, is_item: bool) -> tuple[list[_Use], list[_Use]]:
    """Items of a list are called by other names, so wherever the list is used, they may be."""
    called = {id(node.func) for node in ast.walk(code.tree) if isinstance(node, ast.Call)}
    uses = list(_uses(code.tree, name, None))
    return uses, uses if is_item else [use for use in uses if id(use.node) in called]


class _Use(NamedTuple):
    node: ast.Attribute
    branch: int | None  # the line of the innermost branch it lies in


def _uses(node: ast.AST, name: str, branch: int | None) -> Iterator[_Use]:
    if isinstance(node, ast.Attribute) and node.attr == name:
        yield _Use(node, branch)
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, name, _branch(node, child) or branch)


def _branch(node: ast.AST, child: ast.AST) -> int | None:
    if not isinstance(node, ast.If | ast.IfExp) or child is node.test:
        return None
    is_else = child is node.orelse if isinstance(node, ast.IfExp) else child in node.orelse
    line: int = getattr(child, "lineno", node.lineno) if is_else else node.lineno
    return line


def _means(node: ast.AST, name: str, aliases: set[str]) -> bool:
    """The module by its own name, or by a variable that stands for it or for its items."""
    if isinstance(node, ast.Name):
        return node.id in aliases
    return not _is_super(node) and _has(node, name)


def _aliases(tree: ast.AST, name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and _has(node.iter, name):
            found |= _names(node.target)
        elif isinstance(node, ast.Assign) and _holds(node.value, name):
            found |= {bound for target in node.targets for bound in _names(target)}
    return found


def _holds(node: ast.AST, name: str) -> bool:
    """`self.name` or `self.name[0]`, and not what it gives."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == name


def _names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _has(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(node))


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _code_of(owner: Any) -> _Code | None:
    """Of the forward that was written, below decorators; a class may have inherited it from another file."""
    forward: Any = owner.__dict__.get("forward") or getattr(type(owner), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return None if code is None else _parsed(code)


# By its code: a function set on an instance would keep the model alive.
@lru_cache(maxsize=256)
def _parsed(code: CodeType) -> _Code | None:
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), start - 1)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return _Code(tree, Path(code.co_filename).name)
