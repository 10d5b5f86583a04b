"""Where a code object binds its local variables, read from its bytecode; and the values, from line events.

A value is read at the event after its binding, with these limits: if a line binds a name several times, only
the last value is reported; if it may or may not bind it (`a and (x := b)`), only if the object has changed.
Kinds are `argument`, `assign` and `return`.
"""

from __future__ import annotations

import dis
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tensortap.sources.probes.rewrite import RETURN, Binding, OnValue
from tensortap.sources.probes.source_match import argument_count

_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_NO_FALLTHROUGH = {*_RETURNS, "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD"}
_NO_BRANCHES = {"SEND", "JUMP_BACKWARD_NO_INTERRUPT"}  # a suspended await has its own event
_JUMPS = {*dis.hasjrel, *dis.hasjabs}


class StoreInstruction(NamedTuple):
    """A binding, whose value can be read at the next event."""

    offset: int
    variable: str
    binding: int


class LineRun(NamedTuple):
    """The instructions of one line that may run from one trace event to the next."""

    start: int
    block: range
    stores: tuple[StoreInstruction, ...]


class _BindingInstruction(NamedTuple):
    """An instruction that binds a variable or returns; a `finally` block is compiled twice."""

    position: tuple[int, int]  # line, column
    variable: str
    offset: int


class CodeInstructions:
    """The bindings of a code object, and which of them lie between two trace events."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._instructions = list(dis.get_instructions(code))
        self._position = {
            instruction.offset: position for position, instruction in enumerate(self._instructions)
        }
        self._runs: dict[int, LineRun] = {}
        self._certain: dict[tuple[int, int, int], bool] = {}
        self.first = next(
            (instruction.offset for instruction in self._instructions if instruction.opname == "RESUME"), 0
        )
        self.arguments = _argument_names(code)
        stores, returns = (
            list(_store_instructions(self._instructions, code)),
            list(_return_instructions(self._instructions)),
        )
        table = _BindingTable(code)
        for name in self.arguments:
            table.add(name, (code.co_firstlineno, 0), "argument")
        for store in sorted(stores):
            table.add(store.variable, store.position, "assign")
        for store in sorted(returns):
            table.add(RETURN, store.position, RETURN)
        self.bindings = tuple(table.all)
        self._stores = [
            StoreInstruction(store.offset, store.variable, table.at[store.variable, store.position])
            for store in stores
        ]
        self.returns = {
            return_instruction.offset: table.at[RETURN, return_instruction.position]
            for return_instruction in returns
        }

    def run(self, start: int) -> LineRun:
        run = self._runs.get(start)
        if run is None:
            block, reachable = self._block(start), self.reachable(start)
            # If a line binds a name twice, only the last value can be read.
            stores = {store.variable: store for store in self._stores if store.offset in reachable}
            run = self._runs[start] = LineRun(start, block, tuple(stores.values()))
        return run

    def reachable(self, start: int) -> set[int]:
        """The offsets that may run from this event to the next."""
        return self._walk(start, self._block(start))[0]

    def _block(self, start: int) -> range:
        """The contiguous instructions of the same line."""
        if start not in self._position:
            return range(0)
        first = last = self._position[start]
        line = _line_number(self._instructions[first])
        while first and _line_number(self._instructions[first - 1]) in (line, None):
            first -= 1
        while last + 1 < len(self._instructions) and _line_number(self._instructions[last + 1]) in (
            line,
            None,
        ):
            last += 1
        return range(self._instructions[first].offset, self._instructions[last].offset + 1)

    def is_certainly_executed(self, store: StoreInstruction, run: LineRun, following: int) -> bool:
        """Whether every path from the start of the run to the following instruction passes the store."""
        key = (run.start, store.offset, following)
        if key not in self._certain:
            _, ends_without_store = self._walk(run.start, run.block, following, avoiding=store.offset)
            is_only_way = following not in ends_without_store and self.can_reach(store, run, following)
            self._certain[key] = not ends_without_store or is_only_way
        return self._certain[key]

    def can_reach(self, store: StoreInstruction, run: LineRun, following: int) -> bool:
        """Whether a path leads from the store to the following instruction, within the run or out of it."""
        return following in self._walk(store.offset, run.block, following)[1]

    def _walk(
        self, start: int, inside: range, goal: int | None = None, avoiding: int | None = None
    ) -> tuple[set[int], set[int]]:
        """The reachable offsets inside the range, and where paths end: the goal, and offsets outside."""
        visited: set[int] = set()
        ends: set[int] = set()
        pending = [start]
        while pending:
            offset = pending.pop()
            if offset == goal or offset not in inside:
                ends.add(offset)
            elif offset not in visited and offset != avoiding:
                visited.add(offset)
                pending.extend(self._successors(offset))
        return visited, ends

    def first_argument(self, variables: Mapping[str, Any]) -> Any:
        if self._code.co_argcount:
            return variables[self._code.co_varnames[0]]
        varargs = variables[self.arguments[0]] if self._code.co_flags & inspect.CO_VARARGS else ()
        return varargs[0] if varargs else None

    def _successors(self, offset: int) -> Iterator[int]:
        position = self._position[offset]
        instruction = self._instructions[position]
        if instruction.opcode in _JUMPS and instruction.opname not in _NO_BRANCHES:
            yield instruction.argval
        if instruction.opname not in _NO_FALLTHROUGH and position + 1 < len(self._instructions):
            yield self._instructions[position + 1].offset


@lru_cache(maxsize=256)
def code_instructions(code: CodeType, file: str) -> CodeInstructions:
    """Keyed by file too: codes that differ only in it compare equal."""
    return CodeInstructions(code)


class _BindingTable:
    """Numbers the bindings of each name."""

    def __init__(self, code: CodeType) -> None:
        self.all: list[Binding] = []
        self.at: dict[tuple[str, tuple[int, int]], int] = {}
        self._counts: Counter[str] = Counter()
        self._class = code.co_qualname.split(".")[-2:][0].lstrip("_")

    def add(self, variable: str, place: tuple[int, int], kind: str) -> None:
        if (variable, place) in self.at:
            return
        name = variable.removeprefix(f"_{self._class}") if variable.startswith("_") else variable
        name = name if name.startswith("__") else variable
        self.at[variable, place] = len(self.all)
        self.all.append(Binding(name, place[0], self._counts[name], kind))
        self._counts[name] += 1


def _argument_names(code: CodeType) -> tuple[str, ...]:
    """In signature order; in co_varnames `*args` comes after the keyword-only ones."""
    names = code.co_varnames[: argument_count(code)]
    named = code.co_argcount + code.co_kwonlyargcount
    has_varargs = code.co_flags & inspect.CO_VARARGS > 0
    varargs, last = names[named : named + has_varargs], names[named + has_varargs :]
    return (*names[: code.co_argcount], *varargs, *names[code.co_argcount : named], *last)


def _store_instructions(instructions: list[dis.Instruction], code: CodeType) -> Iterator[_BindingInstruction]:
    comprehensions = [
        instruction for instruction in instructions if instruction.opname == "LOAD_FAST_AND_CLEAR"
    ]
    for before, current, after in zip(instructions, instructions[1:], instructions[2:], strict=False):
        for variable in bound_names(current):
            if variable in code.co_freevars or _is_except_cleanup(before, after, variable):
                continue
            if not any(
                _is_in_comprehension(current, comprehension, variable) for comprehension in comprehensions
            ):
                yield _BindingInstruction(source_position(current), variable, current.offset)


def _is_except_cleanup(before: dis.Instruction, after: dis.Instruction, variable: str) -> bool:
    """Whether it is the end of `except ... as error`, which binds None and deletes the name."""
    is_none = before.opname == "LOAD_CONST" and before.argval is None
    return is_none and after.opname.startswith("DELETE_") and after.argval == variable


def bound_names(instruction: dis.Instruction) -> list[str]:
    """The variables of this function or an enclosing one that an instruction binds."""
    if instruction.opname == "STORE_DEREF":
        return [instruction.argval]
    if not instruction.opname.startswith("STORE_FAST"):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names[: instruction.opname.count("STORE_FAST")] if name.isidentifier()]


def _is_in_comprehension(instruction: dis.Instruction, comprehension: dis.Instruction, variable: str) -> bool:
    """Whether it binds the variable of an inlined comprehension."""
    inner, outer = instruction.positions, comprehension.positions
    if comprehension.argval != variable or not inner or not outer or None in (*inner, *outer):
        return False
    starts = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    ends = (inner.end_lineno, inner.end_col_offset) <= (outer.end_lineno, outer.end_col_offset)
    return starts and ends


def _return_instructions(instructions: list[dis.Instruction]) -> Iterator[_BindingInstruction]:
    for instruction in instructions:
        if instruction.opname in _RETURNS:
            yield _BindingInstruction((_line_number(instruction) or 0, 0), RETURN, instruction.offset)


def source_position(instruction: dis.Instruction) -> tuple[int, int]:
    """Its line and column; several targets are not stored in that order."""
    column = instruction.positions.col_offset if instruction.positions else None
    return _line_number(instruction) or 0, instruction.offset if column is None else column


def _line_number(instruction: dis.Instruction) -> int | None:
    return instruction.positions.lineno if instruction.positions else None


class BindingReader:
    """Reports the values that one call binds."""

    def __init__(self, code: CodeInstructions, listeners: Sequence[tuple[OnValue, dict[int, int]]]) -> None:
        self._code, self._listeners = code, listeners
        self._run: LineRun | None = None
        self._is_straight = True  # no exception since the run began
        self._previous_ids: dict[str, int | None] = {}  # of the variables of the run

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "opcode":  # requested by another tool
            return
        if event == "call":
            self._start(frame, is_straight=True)
            return
        if self._run is not None:
            self._read(self._run, frame, event)
        self._run = None
        if event != "return":
            self._start(frame, is_straight=event == "line")
        elif frame.f_lasti in self._code.returns:
            self.report(self._code.returns[frame.f_lasti], argument)

    def _start(self, frame: FrameType, *, is_straight: bool) -> None:
        self._run, self._is_straight = self._code.run(frame.f_lasti), is_straight
        variables = frame.f_locals if self._run.stores else {}
        self._previous_ids = {
            store.variable: _object_id(variables, store.variable) for store in self._run.stores
        }

    def _read(self, run: LineRun, frame: FrameType, event: str) -> None:
        offset = frame.f_lasti
        is_within = offset in run.block
        is_straight = self._is_straight and (is_within or event == "line")
        variables = frame.f_locals if run.stores else {}
        for store in run.stores:
            if store.variable not in variables or (
                is_within and not self._code.can_reach(store, run, offset)
            ):
                continue
            is_new_object = _object_id(variables, store.variable) != self._previous_ids[store.variable]
            if is_new_object or (is_straight and self._code.is_certainly_executed(store, run, offset)):
                self.report(store.binding, variables[store.variable])

    def report(self, index: int, value: Any) -> None:
        for on_value, numbers in self._listeners:
            if index in numbers:
                on_value(numbers[index], value)


def _object_id(variables: Mapping[str, Any], name: str) -> int | None:
    """The id of the bound object, which stays alive until the next event."""
    return id(variables[name]) if name in variables else None
