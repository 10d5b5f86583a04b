"""What a line may change: the variables it binds, the objects it hands out, what it stores to."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType
from typing import NamedTuple

from tensortap.sources.instructions import Instructions, instructions_of

# Ways to the memory of an array that its version counter does not tell of.
_ALIASING = {"data", "numpy", "from_numpy", "asarray", "as_tensor", "frombuffer", "from_dlpack", "__array__"}
_IN_PLACE_FROM = 13  # the arguments of BINARY_OP from here on are `+=` and the like
_SHARED = ("LOAD_DEREF", "LOAD_CLASSDEREF")


class Step(NamedTuple):
    """From an object to what it holds: an attribute, or an item whose key is a constant or a variable."""

    kind: str  # "attribute", "constant", "variable"
    key: str | int


class Target(NamedTuple):
    """An attribute or item that is stored to, `self.cache` or `batch['mask']`, from a variable on."""

    root: str
    steps: tuple[Step, ...]


class Touched(NamedTuple):
    """Of one run, from an event of a trace up to the next."""

    bound: tuple[str, ...] = ()
    worldwide: tuple[str, ...] = ()  # bound too, as globals
    handed: tuple[str, ...] = ()  # variables whose objects may be changed by what is called or stored
    targets: tuple[Target, ...] = ()
    may_change: bool = False  # anything that is reached otherwise
    is_in_place: bool = False  # it shows that it changes arrays
    is_aliasing: bool = False  # it may make memory known under a second name
    reraises: bool = False


class Lines:
    """The runs of a code object, and how a call of it ends."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._instructions: Instructions = instructions_of(code, code.co_filename)
        self._all = list(dis.get_instructions(code))
        self._touched: dict[int, Touched] = {}
        self._inner = tuple(name for name in (*code.co_cellvars, *code.co_freevars) if name != "__class__")
        self.first = self._instructions.first
        self.arguments = self._instructions.arguments
        self.returns = self._instructions.returns
        self.yields = frozenset(_yields(self._all, code))
        self.waits = frozenset(one.offset for one in self._all if one.opname == "YIELD_VALUE") - self.yields

    def touched(self, start: int) -> Touched:
        found = self._touched.get(start)
        if found is None:
            found = self._touched[start] = self._find(start)
        return found

    def _find(self, start: int) -> Touched:
        offsets = self._instructions.reached(start)
        run = [one for one in self._all if one.offset in offsets]
        bound = dict.fromkeys(name for one in sorted(run, key=_place) for name in _bound(one))
        changes = any(_may_change(one) for one in run)
        handed = dict.fromkeys(name for one in run for name in _loaded(one)) if changes else {}
        if changes:  # an inner function may bind what it shares
            bound.update(dict.fromkeys(self._inner))
        return Touched(
            tuple(bound),
            tuple(dict.fromkeys(one.argval for one in run if one.opname == "STORE_GLOBAL")),
            tuple(handed),
            tuple(dict.fromkeys(_targets(run, self._code))),
            changes,
            any(_is_in_place(one) for one in run),
            any(one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in _ALIASING for one in run),
            any(one.opname == "RAISE_VARARGS" and not one.arg for one in run),
        )


def _place(one: dis.Instruction) -> tuple[int, int]:
    """As it is read; several targets are not stored in that order."""
    at = one.positions
    return ((at.lineno or 0), (at.col_offset or 0)) if at else (0, 0)


def _yields(every: list[dis.Instruction], code: CodeType) -> Iterator[int]:
    """Where a value goes out; `await` gives the loop what is no value of the function."""
    waits = bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
    for before, one in pairwise(every):
        if one.opname == "YIELD_VALUE" and not (waits and before.opname == "SEND"):
            yield one.offset


def _bound(one: dis.Instruction) -> list[str]:
    name = one.opname
    if name == "STORE_DEREF":
        return [one.argval]
    if not name.startswith("STORE_FAST"):
        return []
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    return [found for found in names[: name.count("STORE_FAST")] if found.isidentifier()]


def _loaded(one: dis.Instruction) -> list[str]:
    if one.opname in _SHARED:
        return [one.argval]
    if not one.opname.startswith("LOAD_FAST"):
        return []
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    return [found for found in names if found.isidentifier()]


def _may_change(one: dis.Instruction) -> bool:
    name = one.opname
    if name.startswith(("CALL", "STORE_SUBSCR", "STORE_ATTR", "STORE_SLICE", "DELETE_SUBSCR", "DELETE_ATTR")):
        return True
    return name in ("FOR_ITER", "SEND", "YIELD_VALUE", "BEFORE_WITH") or _is_in_place_operator(one)


def _is_in_place(one: dis.Instruction) -> bool:
    if one.opname in ("STORE_SUBSCR", "STORE_SLICE") or _is_in_place_operator(one):
        return True
    if one.opname == "KW_NAMES":
        return "out" in one.argval if isinstance(one.argval, tuple) else False
    named = one.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(one.argval, str)
    return named and one.argval.endswith("_") and not one.argval.endswith("__")


def _is_in_place_operator(one: dis.Instruction) -> bool:
    return one.opname == "BINARY_OP" and (one.arg or 0) >= _IN_PLACE_FROM


def _targets(run: list[dis.Instruction], code: CodeType) -> Iterator[Target]:
    for one in run:
        if one.opname in ("STORE_ATTR", "STORE_SUBSCR") and one.positions:
            found = _target(_text(code.co_filename, one.positions), code)
            if found is not None:
                yield found


def _text(file: str, at: dis.Positions) -> str:
    """The source of an instruction, where there is one on one line."""
    if at.lineno is None or at.lineno != at.end_lineno or at.col_offset is None:
        return ""
    line = linecache.getline(file, at.lineno).encode()
    return line[at.col_offset : at.end_col_offset].decode(errors="replace")


def _target(text: str, code: CodeType) -> Target | None:
    try:
        node = ast.parse(text, mode="eval").body if text else None
    except SyntaxError:
        return None
    steps: list[Step] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        step = _step(node, code)
        if step is None:
            return None
        steps.append(step)
        node = node.value
    # A file that was edited since it was imported shows other names than the code uses.
    if not steps or not isinstance(node, ast.Name) or node.id not in _known(code):
        return None
    return Target(node.id, tuple(reversed(steps)))


def _step(node: ast.Attribute | ast.Subscript, code: CodeType) -> Step | None:
    if isinstance(node, ast.Attribute):
        return Step("attribute", node.attr)
    key = node.slice
    if (
        isinstance(key, ast.UnaryOp)
        and isinstance(key.op, ast.USub)
        and isinstance(key.operand, ast.Constant)
    ):
        value = key.operand.value
        return Step("constant", -value) if type(value) is int else None
    if isinstance(key, ast.Constant):
        value = key.value
        return Step("constant", value) if isinstance(value, str | int) else None
    return Step("variable", key.id) if isinstance(key, ast.Name) and key.id in _known(code) else None


def _known(code: CodeType) -> tuple[str, ...]:
    return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
