"""What each line of a function may change (variables, attributes, items, arrays), read from its bytecode."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType
from typing import NamedTuple

from tensortap.sources.probes.bytecode import (
    CodeInstructions,
    bound_names,
    code_instructions,
    source_position,
)

# Access to the memory of an array that bypasses its version counter.
_ALIASING = {"data", "numpy", "from_numpy", "asarray", "as_tensor", "frombuffer", "from_dlpack", "__array__"}
_IN_PLACE_FROM = 13  # arguments of BINARY_OP from here on are in-place operators
_SHARED = ("LOAD_DEREF", "LOAD_CLASSDEREF")


class AccessStep(NamedTuple):
    """Access to an attribute, or to an item whose key is a constant or a variable."""

    kind: str  # "attribute", "constant", "variable"
    key: str | int


class MutatedTarget(NamedTuple):
    """An attribute or item that is assigned (`self.cache`, `batch['mask']`): a variable and access steps."""

    root: str
    steps: tuple[AccessStep, ...]


class LineEffects(NamedTuple):
    """What may change from one trace event to the next."""

    bound: tuple[str, ...] = ()
    global_names: tuple[str, ...] = ()  # also bound
    exposed: tuple[str, ...] = ()  # variables whose objects may be modified by calls or stores
    targets: tuple[MutatedTarget, ...] = ()
    may_change: bool = False  # anything beyond the bound variables
    is_in_place: bool = False  # it visibly modifies arrays
    is_aliasing: bool = False  # it may create an alias of an array's memory
    reraises: bool = False


class CodeEffects:
    """The effects of each line of a code object, and the instructions that end or suspend a call."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._instructions: CodeInstructions = code_instructions(code, code.co_filename)
        self._all = list(dis.get_instructions(code))
        self._effects_by_start: dict[int, LineEffects] = {}
        self._shared_names = tuple(
            name for name in (*code.co_cellvars, *code.co_freevars) if name != "__class__"
        )
        self.first = self._instructions.first
        self.arguments = self._instructions.arguments
        self.returns = self._instructions.returns
        self.yields = frozenset(_yields(self._all, code))
        self.awaits = (
            frozenset(instruction.offset for instruction in self._all if instruction.opname == "YIELD_VALUE")
            - self.yields
        )

    def effects(self, start: int) -> LineEffects:
        effects = self._effects_by_start.get(start)
        if effects is None:
            effects = self._effects_by_start[start] = self._analyse(start)
        return effects

    def _analyse(self, start: int) -> LineEffects:
        offsets = self._instructions.reachable(start)
        run = [instruction for instruction in self._all if instruction.offset in offsets]
        bound = dict.fromkeys(
            name for instruction in sorted(run, key=source_position) for name in bound_names(instruction)
        )
        changes = any(_may_change(instruction) for instruction in run)
        exposed = (
            dict.fromkeys(name for instruction in run for name in _loaded_names(instruction))
            if changes
            else {}
        )
        if changes:  # a nested function may rebind shared variables
            bound.update(dict.fromkeys(self._shared_names))
        return LineEffects(
            tuple(bound),
            tuple(
                dict.fromkeys(
                    instruction.argval for instruction in run if instruction.opname == "STORE_GLOBAL"
                )
            ),
            tuple(exposed),
            tuple(dict.fromkeys(_mutated_targets(run, self._code))),
            changes,
            any(_is_in_place(instruction) for instruction in run),
            any(
                instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in _ALIASING
                for instruction in run
            ),
            any(instruction.opname == "RAISE_VARARGS" and not instruction.arg for instruction in run),
        )


def _yields(instructions: list[dis.Instruction], code: CodeType) -> Iterator[int]:
    """Offsets that yield a value; what `await` yields to the event loop is not one."""
    waits = bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
    for before, instruction in pairwise(instructions):
        if instruction.opname == "YIELD_VALUE" and not (waits and before.opname == "SEND"):
            yield instruction.offset


def _loaded_names(instruction: dis.Instruction) -> list[str]:
    if instruction.opname in _SHARED:
        return [instruction.argval]
    if not instruction.opname.startswith("LOAD_FAST"):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names if name.isidentifier()]


def _may_change(instruction: dis.Instruction) -> bool:
    opname = instruction.opname
    if opname.startswith(
        ("CALL", "STORE_SUBSCR", "STORE_ATTR", "STORE_SLICE", "DELETE_SUBSCR", "DELETE_ATTR")
    ):
        return True
    return opname in ("FOR_ITER", "SEND", "YIELD_VALUE", "BEFORE_WITH") or _is_in_place_operator(instruction)


def _is_in_place(instruction: dis.Instruction) -> bool:
    if instruction.opname in ("STORE_SUBSCR", "STORE_SLICE") or _is_in_place_operator(instruction):
        return True
    if instruction.opname == "KW_NAMES":
        return "out" in instruction.argval if isinstance(instruction.argval, tuple) else False
    is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(instruction.argval, str)
    return is_attribute and instruction.argval.endswith("_") and not instruction.argval.endswith("__")


def _is_in_place_operator(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_OP" and (instruction.arg or 0) >= _IN_PLACE_FROM


def _mutated_targets(run: list[dis.Instruction], code: CodeType) -> Iterator[MutatedTarget]:
    for instruction in run:
        if instruction.opname in ("STORE_ATTR", "STORE_SUBSCR") and instruction.positions:
            target = _parse_target(_instruction_source(code.co_filename, instruction.positions), code)
            if target is not None:
                yield target


def _instruction_source(file: str, positions: dis.Positions) -> str:
    """The source of an instruction, if it is on one line."""
    if positions.lineno is None or positions.lineno != positions.end_lineno or positions.col_offset is None:
        return ""
    line = linecache.getline(file, positions.lineno).encode()
    return line[positions.col_offset : positions.end_col_offset].decode(errors="replace")


def _parse_target(source: str, code: CodeType) -> MutatedTarget | None:
    try:
        node = ast.parse(source, mode="eval").body if source else None
    except SyntaxError:
        return None
    steps: list[AccessStep] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        step = _parse_step(node, code)
        if step is None:
            return None
        steps.append(step)
        node = node.value
    # A file edited since its import may show other names than the code uses.
    if not steps or not isinstance(node, ast.Name) or node.id not in _local_names(code):
        return None
    return MutatedTarget(node.id, tuple(reversed(steps)))


def _parse_step(node: ast.Attribute | ast.Subscript, code: CodeType) -> AccessStep | None:
    if isinstance(node, ast.Attribute):
        return AccessStep("attribute", node.attr)
    key = node.slice
    if (
        isinstance(key, ast.UnaryOp)
        and isinstance(key.op, ast.USub)
        and isinstance(key.operand, ast.Constant)
    ):
        value = key.operand.value
        return AccessStep("constant", -value) if type(value) is int else None
    if isinstance(key, ast.Constant):
        value = key.value
        return AccessStep("constant", value) if isinstance(value, str | int) else None
    return (
        AccessStep("variable", key.id) if isinstance(key, ast.Name) and key.id in _local_names(code) else None
    )


def _local_names(code: CodeType) -> tuple[str, ...]:
    return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
