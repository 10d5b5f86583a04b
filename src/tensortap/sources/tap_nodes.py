"""The syntax nodes of a tap: one question at the entry, then a word for every value."""

from __future__ import annotations

import ast
from typing import Any

ENTER = "@tap_enter"  # the global that the new code asks at its entry, to be renamed
# The new code's own local variables: no identifiers, so nobody else has them. `locals()` shows them.
TAP, VALUE = "@tap", "@value"
_LOAD, _STORE, _IS_NOT = ast.Load(), ast.Store(), ast.IsNot()


def entry(arguments: ast.arguments, at: ast.stmt) -> ast.stmt:
    """A call that begins after the probe was removed, or a generator, finds no global: it is not watched."""
    look_up = ast.Assign([store(TAP, at)], load(ENTER, at), **_place(at))
    idle = ast.ExceptHandler(None, None, [ast.Assign([store(TAP, at)], none(at), **_place(at))], **_place(at))
    answer = ast.Call(load(TAP, at), [_first(arguments, at)], [], **_place(at))
    ask = ast.Assign([store(TAP, at)], answer, **_place(at))
    return ast.Try([look_up], [idle], [ask], [], **_place(at))


def _first(arguments: ast.arguments, at: ast.stmt) -> ast.expr:
    for one in (*arguments.posonlyargs, *arguments.args):
        return load(one.arg, at)
    if arguments.vararg is None:
        return none(at)
    rest = arguments.vararg.arg
    item = ast.Subscript(load(rest, at), ast.Constant(0, **_place(at)), _LOAD, **_place(at))
    return ast.IfExp(load(rest, at), item, none(at), **_place(at))


def kept(value: ast.expr, at: ast.stmt) -> ast.stmt:
    """Takes the value of a `return` before it is given."""
    return ast.Assign([store(VALUE, at)], value, **_place(at))


def if_watched(index: int, value: ast.expr, at: Any) -> ast.stmt:
    place = _place(at)
    is_watched, tell = _question(index, value, place)
    return ast.If(is_watched, [ast.Expr(tell, **place)], [], **place)


def unless_idle(index: int, value: ast.expr, at: Any) -> ast.expr:
    place = _place(at)
    is_watched, tell = _question(index, value, place)
    return ast.IfExp(is_watched, tell, ast.Constant(None, **place), **place)


def _question(index: int, value: ast.expr, place: dict[str, Any]) -> tuple[ast.expr, ast.expr]:
    """Whether the call is watched, and what is then told. A large function has hundreds of these: what is
    the same in both is one node."""
    tap = ast.Name(TAP, _LOAD, **place)
    is_watched = ast.Compare(tap, [_IS_NOT], [ast.Constant(None, **place)], **place)
    return is_watched, ast.Call(tap, [ast.Constant(index, **place), value], [], **place)


def one_of(values: list[ast.expr], position: int, at: ast.expr) -> ast.expr:
    """All of them are evaluated in turn; one is the value."""
    every = ast.Tuple(values, _LOAD, **_place(at))
    return ast.Subscript(every, ast.Constant(position % len(values), **_place(at)), _LOAD, **_place(at))


def load(name: str, at: Any) -> ast.expr:
    return ast.Name(name, _LOAD, **_place(at))


def store(name: str, at: Any) -> ast.expr:
    return ast.Name(name, _STORE, **_place(at))


def none(at: Any) -> ast.expr:
    return ast.Constant(None, **_place(at))


def _place(node: Any) -> dict[str, Any]:
    """The start of a node: what is put there reports its first line."""
    line, column = node.lineno, node.col_offset
    return {"lineno": line, "col_offset": column, "end_lineno": line, "end_col_offset": column}
