"""Where locals are bound.

Where a code object binds its local variables, as its instructions tell.

Tell what a traced call binds, from the events of its lines.

A value is read at the event after its binding, so these are the limits. Of a name that a line binds several
times only the last value is told; one that a line may bind or not (`a and (x := b)`) only if it is another
object than before. Kinds are `argument`, `assign` and `return`.
"""

from __future__ import annotations

import dis
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tensortap.sources.probes.rewrite import RETURN, Seen, Spot
from tensortap.sources.probes.source_match import argument_count

_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_NEVER_GO_ON = {*_RETURNS, "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD", "JUMP_BACKWARD"}
_NO_BRANCHES = {"SEND", "JUMP_BACKWARD_NO_INTERRUPT"}  # an await that waits has an event of its own
_JUMPS = {*dis.hasjrel, *dis.hasjabs}


class Store(NamedTuple):
    """A binding, whose value can be read at the next event."""

    offset: int
    variable: str
    spot: int


class Run(NamedTuple):
    """What may be executed from one event of a trace up to the next: instructions of one line."""

    start: int
    block: range
    stores: tuple[Store, ...]


class _Found(NamedTuple):
    """An instruction that binds a variable, or returns; a `finally` has its instructions twice."""

    place: tuple[int, int]  # line, column
    variable: str
    offset: int


class Instructions:
    """The spots of a code object, and which of them lie between two events of a trace."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._all = list(dis.get_instructions(code))
        self._position = {instruction.offset: position for position, instruction in enumerate(self._all)}
        self._runs: dict[int, Run] = {}
        self._passed: dict[tuple[int, int, int], bool] = {}
        self.first = next((instruction.offset for instruction in self._all if instruction.opname == "RESUME"), 0)
        self.arguments = _argument_names(code)
        stores, returns = list(_stores(self._all, code)), list(_returns(self._all))
        table = _Spots(code)
        for name in self.arguments:
            table.add(name, (code.co_firstlineno, 0), "argument")
        for store in sorted(stores):
            table.add(store.variable, store.place, "assign")
        for store in sorted(returns):
            table.add(RETURN, store.place, RETURN)
        self.spots = tuple(table.all)
        self._stores = [Store(store.offset, store.variable, table.at[store.variable, store.place]) for store in stores]
        self.returns = {return_instruction.offset: table.at[RETURN, return_instruction.place] for return_instruction in returns}

    def run(self, start: int) -> Run:
        run = self._runs.get(start)
        if run is None:
            block, reachable = self._block(start), self.reached(start)
            # Of a name that a line binds twice, only the last value can be read.
            stores = {store.variable: store for store in self._stores if store.offset in reachable}
            run = self._runs[start] = Run(start, block, tuple(stores.values()))
        return run

    def reached(self, start: int) -> set[int]:
        """What may be executed from this event up to the next."""
        return self._walk(start, self._block(start))[0]

    def _block(self, start: int) -> range:
        """The instructions around this one that belong to its line."""
        if start not in self._position:
            return range(0)
        first = last = self._position[start]
        line = _line(self._all[first])
        while first and _line(self._all[first - 1]) in (line, None):
            first -= 1
        while last + 1 < len(self._all) and _line(self._all[last + 1]) in (line, None):
            last += 1
        return range(self._all[first].offset, self._all[last].offset + 1)

    def is_passed(self, store: Store, run: Run, following: int) -> bool:
        """Whether whoever came from the start of the run to the following instruction came by the store."""
        key = (run.start, store.offset, following)
        if key not in self._passed:
            _, ends_without_store = self._walk(run.start, run.block, following, avoiding=store.offset)
            is_only_way = following not in ends_without_store and self.is_possible(store, run, following)
            self._passed[key] = not ends_without_store or is_only_way
        return self._passed[key]

    def is_possible(self, store: Store, run: Run, following: int) -> bool:
        """Whether one may come from the store to the following instruction, within the run or out of it."""
        return following in self._walk(store.offset, run.block, following)[1]

    def _walk(
        self, start: int, inside: range, goal: int | None = None, avoiding: int | None = None
    ) -> tuple[set[int], set[int]]:
        """The instructions one may come by, and those one may come to: the goal, and what is outside."""
        visited: set[int] = set()
        ends: set[int] = set()
        pending = [start]
        while pending:
            offset = pending.pop()
            if offset == goal or offset not in inside:
                ends.add(offset)
            elif offset not in visited and offset != avoiding:
                visited.add(offset)
                pending.extend(self._following(offset))
        return visited, ends

    def first_argument(self, variables: Mapping[str, Any]) -> Any:
        if self._code.co_argcount:
            return variables[self._code.co_varnames[0]]
        varargs = variables[self.arguments[0]] if self._code.co_flags & inspect.CO_VARARGS else ()
        return varargs[0] if varargs else None

    def _following(self, offset: int) -> Iterator[int]:
        position = self._position[offset]
        instruction = self._all[position]
        if instruction.opcode in _JUMPS and instruction.opname not in _NO_BRANCHES:
            yield instruction.argval
        if instruction.opname not in _NEVER_GO_ON and position + 1 < len(self._all):
            yield self._all[position + 1].offset


@lru_cache(maxsize=256)
def instructions_of(code: CodeType, file: str) -> Instructions:
    """By its file too: codes that differ in nothing else are equal."""
    return Instructions(code)


class _Spots:
    """Numbers the bindings, each name by itself."""

    def __init__(self, code: CodeType) -> None:
        self.all: list[Spot] = []
        self.at: dict[tuple[str, tuple[int, int]], int] = {}
        self._counts: Counter[str] = Counter()
        self._class = code.co_qualname.split(".")[-2:][0].lstrip("_")

    def add(self, variable: str, place: tuple[int, int], kind: str) -> None:
        if (variable, place) in self.at:
            return
        name = variable.removeprefix(f"_{self._class}") if variable.startswith("_") else variable
        name = name if name.startswith("__") else variable
        self.at[variable, place] = len(self.all)
        self.all.append(Spot(name, place[0], self._counts[name], kind))
        self._counts[name] += 1


def _argument_names(code: CodeType) -> tuple[str, ...]:
    """In the order of the signature; in the code `*args` comes after the keywords."""
    names = code.co_varnames[: argument_count(code)]
    named = code.co_argcount + code.co_kwonlyargcount
    has_varargs = code.co_flags & inspect.CO_VARARGS > 0
    varargs, last = names[named : named + has_varargs], names[named + has_varargs :]
    return (*names[: code.co_argcount], *varargs, *names[code.co_argcount : named], *last)


def _stores(instructions: list[dis.Instruction], code: CodeType) -> Iterator[_Found]:
    comprehensions = [instruction for instruction in instructions if instruction.opname == "LOAD_FAST_AND_CLEAR"]
    for before, one, after in zip(instructions, instructions[1:], instructions[2:], strict=False):
        for variable in _bound(one, code):
            if _is_forgotten(before, after, variable):
                continue
            if not any(_is_inside(one, comprehension, variable) for comprehension in comprehensions):
                yield _Found(_place(one), variable, one.offset)


def _is_forgotten(before: dis.Instruction, after: dis.Instruction, variable: str) -> bool:
    """The end of an `except ... as error` binds None and deletes it."""
    is_none = before.opname == "LOAD_CONST" and before.argval is None
    return is_none and after.opname.startswith("DELETE_") and after.argval == variable


def _bound(instruction: dis.Instruction, code: CodeType) -> Iterable[str]:
    if instruction.opname == "STORE_DEREF":
        return [instruction.argval] if instruction.argval in code.co_cellvars else []
    if not instruction.opname.startswith("STORE_FAST"):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names[: instruction.opname.count("STORE_FAST")] if name.isidentifier()]


def _is_inside(instruction: dis.Instruction, comprehension: dis.Instruction, variable: str) -> bool:
    """Whether it binds the variable of a comprehension that was compiled into the function."""
    inner, outer = instruction.positions, comprehension.positions
    if comprehension.argval != variable or not inner or not outer or None in (*inner, *outer):
        return False
    starts = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    ends = (inner.end_lineno, inner.end_col_offset) <= (outer.end_lineno, outer.end_col_offset)
    return starts and ends


def _returns(instructions: list[dis.Instruction]) -> Iterator[_Found]:
    for instruction in instructions:
        if instruction.opname in _RETURNS:
            yield _Found((_line(instruction) or 0, 0), RETURN, instruction.offset)


def _place(instruction: dis.Instruction) -> tuple[int, int]:
    column = instruction.positions.col_offset if instruction.positions else None
    return _line(instruction) or 0, instruction.offset if column is None else column


def _line(instruction: dis.Instruction) -> int | None:
    return instruction.positions.lineno if instruction.positions else None


class Reader:
    """Tells what one call binds."""

    def __init__(self, code: Instructions, listeners: Sequence[tuple[Seen, dict[int, int]]]) -> None:
        self._code, self._listening = code, listeners
        self._run: Run | None = None
        self._is_straight = True  # no exception was raised since the run began
        self._before: dict[str, int | None] = {}  # which objects the variables of the run were

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "opcode":  # asked for by another tool
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
            self.tell(self._code.returns[frame.f_lasti], argument)

    def _start(self, frame: FrameType, *, is_straight: bool) -> None:
        self._run, self._is_straight = self._code.run(frame.f_lasti), is_straight
        variables = frame.f_locals if self._run.stores else {}
        self._before = {store.variable: _identity(variables, store.variable) for store in self._run.stores}

    def _read(self, run: Run, frame: FrameType, event: str) -> None:
        offset = frame.f_lasti
        is_within = offset in run.block
        is_straight = self._is_straight and (is_within or event == "line")
        variables = frame.f_locals if run.stores else {}
        for store in run.stores:
            if store.variable not in variables or (is_within and not self._code.is_possible(store, run, offset)):
                continue
            is_new_object = _identity(variables, store.variable) != self._before[store.variable]
            if is_new_object or (is_straight and self._code.is_passed(store, run, offset)):
                self.tell(store.spot, variables[store.variable])

    def tell(self, index: int, value: Any) -> None:
        for on_value, numbers in self._listening:
            if index in numbers:
                on_value(numbers[index], value)


def _identity(variables: Mapping[str, Any], name: str) -> int | None:
    """What stays bound up to the next event keeps its address for itself."""
    return id(variables[name]) if name in variables else None
