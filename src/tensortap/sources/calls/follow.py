"""A followed call and what it calls, as records: what came in, each change with its line, how it ended."""

from __future__ import annotations

import gc
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from types import CodeType, FrameType
from typing import Any, Protocol

from tensortap.core.record import Kind, Record, Site
from tensortap.core.steps import declared_step, next_order
from tensortap.core.tap import Tap
from tensortap.sources.calls.changes import NOTHING, Changes, Lines
from tensortap.sources.probes.settrace import follow, unfollow

_MOST_CALLERS = 3
_LONGEST_TEXT = 200
_MOST_DECORATORS = 50  # lines of them
_OWN = str(Path(__file__).resolve().parents[2]) + "/"
_GIVES = inspect.CO_GENERATOR | inspect.CO_COROUTINE
_number = itertools.count(1).__next__


class Known:
    """What is the same for every call of a function."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.name = code.co_qualname
        self.lines = Lines(code)
        self.line = _definition_line(code)
        self.first = self.lines.first
        self.next_call = itertools.count().__next__


def _definition_line(code: CodeType) -> int:
    """Of the `def`; the code begins with the first decorator."""
    start, def_line = code.co_firstlineno, re.compile(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b")
    for line in range(start, start + _MOST_DECORATORS):
        if def_line.match(linecache.getline(code.co_filename, line)):
            return line
    return start


_all_known: dict[int, Known] = {}  # calls are counted for the whole process


def known_of(code: CodeType) -> Known:
    info = _all_known.get(id(code))
    if info is None:
        info = _all_known[id(code)] = Known(code)
    return info


class Source(Protocol):
    """What a tree asks of the source it belongs to."""

    max_depth: int
    taps: tuple[Tap, ...]

    def take_in(self, code: CodeType) -> None: ...

    def known(self, frame: FrameType) -> Known | None: ...

    @property
    def wants(self) -> Callable[[str], bool] | None:
        """Which variables are told; None: all."""

    def fail(self) -> None: ...


class Tree:
    """The outermost call of a decorated function; is asked about each call of its thread while that runs."""

    def __init__(self, source: Source, root: CodeType, rank: int = 0) -> None:
        self.source, self._root, self.rank = source, root, rank
        self.number = _number()
        self.pours = tuple(tap.shortcut() for tap in source.taps)
        self.current: _Call | None = None
        self.count = 0  # of calls that were followed
        self._has_begun = False
        self.is_over = False  # given up after a failure
        self._outside: BaseException | None = None  # what is being handled where the function is called

    def begin(self) -> None:
        """Follow what this thread runs from here to `end`."""
        self.current, self._outside = None, sys.exception()
        follow(self)

    def end(self, result: Any = NOTHING) -> None:
        unfollow(self)
        error, self._outside = (None if sys.exception() is self._outside else sys.exception()), None
        if self.current is not None and not self.is_over:
            self._break_off(result, error)

    def _break_off(self, result: Any, error: BaseException | None) -> None:
        """The events ceased before the call was over: an interrupt came in the middle of one, or the program
        has set a trace function of its own."""
        root, self.current = self.current, None
        while root is not None and root.caller is not None:
            root = root.caller
        try:
            if root is not None:
                root.break_off(result, error)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            self.fail()

    def will_follow(self, code: CodeType) -> bool:
        """Whether it is inside of the tree, or at its root, that a function is called now."""
        return self.current is not None or (not self._has_begun and code is self._root)

    def begun(self, frame: FrameType) -> Callable[[FrameType, str, Any], None] | None:
        if self.current is None and (self._has_begun or frame.f_code is not self._root):
            return None
        if self.is_over:
            return None
        try:
            return self._begun(frame)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            self.fail()
            return None

    def _begun(self, frame: FrameType) -> _Call | None:
        depth = 0 if self.current is None else self.current.depth + 1
        if depth > self.source.max_depth:
            return None
        info = self.source.known(frame)
        if info is None or frame.f_lasti != info.first:
            return None
        self._has_begun = True
        self.count += 1
        call = _Call(self, info, depth)
        call.begin(frame)
        return call

    def fail(self) -> None:
        """Called while an exception is being handled: this tree is not followed any further."""
        self.is_over = True
        self.source.fail()


class _Call:
    """The events of one call, as records."""

    __slots__ = ("_changes", "_count", "_known", "_nth", "_raised", "_sites", "_tree", "caller", "depth")

    def __init__(self, trace: Tree, info: Known, depth: int) -> None:
        self._tree, self._known, self.depth = trace, info, depth
        self._nth = info.next_call()
        self.caller: _Call | None = None
        self._sites: dict[int, Site] = {}
        self._raised: dict[int, str] = {}  # by the instruction that raised it
        self._count = 0  # of calls in the tree when the line began
        self._changes = Changes(info.lines, self._tell_change, trace.source.wants)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        trace = self._tree
        if trace.is_over:
            return
        try:
            if event == "line":
                self._line(frame)
            elif event != "opcode":  # asked for by another tool
                self._look(frame, event, argument)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            trace.fail()

    def begin(self, frame: FrameType) -> None:
        trace, code = self._tree, self._known.code
        self.caller, trace.current = trace.current, self
        callers = () if self.depth else tuple(itertools.islice(_callers(frame), _MOST_CALLERS))
        site = Site(self._known.name, code.co_filename, self._known.line, self.depth, callers, trace.number)
        self._emit(self._known.name, None, "call", site)
        variables = frame.f_locals
        wants = trace.source.wants
        for name in self._known.lines.arguments:
            if name in variables and (wants is None or wants(name)):
                self._emit(f"{self._known.name}.{name}", variables[name], "input", self._site(0))
                self._changes.know(name, variables[name])
        self._go(frame, variables)

    def _line(self, frame: FrameType) -> None:
        call_count, variables, changes = self._tree.count, frame.f_locals, self._changes
        changes.settle(frame, variables, call_count != self._count)
        self._count = call_count
        changes.begin(frame, variables)
        if changes.touched.reraises:
            self._raised[-1] = _text(sys.exception())

    def _go(self, frame: FrameType, variables: dict[str, Any]) -> None:
        self._count = self._tree.count
        self._changes.begin(frame, variables)

    def _settle(self, frame: FrameType) -> dict[str, Any]:
        variables = frame.f_locals
        self._changes.settle(frame, variables, self._tree.count != self._count)
        return variables

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return":
            self._settle(frame)
            self._tree.current, self.caller = self.caller, None
            self._end(frame, argument)
        elif event == "exception":
            variables = self._settle(frame)
            self._raised[frame.f_lasti] = self._raised[-1] = _text(argument[1])
            self._go(frame, variables)
        else:  # a generator or coroutine goes on
            self._raised.clear()
            self.caller, self._tree.current = self._tree.current, self
            self._go(frame, frame.f_locals)

    def _end(self, frame: FrameType, argument: Any) -> None:
        lines, offset, name = self._known.lines, frame.f_lasti, self._known.name
        site = self._site(frame.f_lineno)
        if offset in lines.returns:
            self._emit(name, argument, "return", site)
        elif offset in self._raised or not (offset in lines.yields or offset in lines.waits):
            self._emit(name, self._raised.get(offset) or self._raised.get(-1) or "exception", "raise", site)
        elif offset in lines.yields:
            self._emit(name, _yielded(argument, self._known.code), "yield", site)

    def break_off(self, result: Any, error: BaseException | None) -> None:
        """How it ended is known from outside; of a generator that goes on there is nothing to tell."""
        code, name = self._known.code, self._known.name
        if isinstance(error, StopIteration) and code.co_flags & _GIVES:
            result, error = error.value, None
        if error is not None:
            self._emit(name, _text(error), "raise", self._site(_left_at(error, code)))
        elif result is not NOTHING:
            self._emit(name, result, "return", self._site(self._known.line))

    def _tell_change(self, path: str, value: Any, line: int) -> None:
        site = self._sites.get(line)
        self._emit(f"{self._known.name}.{path}", value, "local", site or self._site(line))

    def _site(self, line: int) -> Site:
        site = self._sites.get(line)
        if site is None:
            info = self._known
            site = Site(info.name, info.code.co_filename, line, self.depth, (), self._tree.number)
            self._sites[line] = site
        return site

    def _emit(self, name: str, value: Any, kind: Kind, site: Site) -> None:
        trace, step = self._tree, declared_step() or 0
        record = Record(name, value, kind, step, trace.rank, self._nth, next_order(), time(), site)
        for emit in trace.pours:
            emit(record)


def _callers(frame: FrameType) -> Iterator[str]:
    outer = frame.f_back
    while outer is not None:
        code = outer.f_code
        if not code.co_filename.startswith(_OWN):
            yield f"{code.co_name}@{Path(code.co_filename).name}:{outer.f_lineno}"
        outer = outer.f_back


def _left_at(error: BaseException, code: CodeType) -> int:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return code.co_firstlineno if traceback is None else traceback.tb_lineno


def _yielded(value: Any, code: CodeType) -> Any:
    """An asynchronous generator wraps what it gives, in an object that has no other way in."""
    if not code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return value
    referents = gc.get_referents(value)
    return referents[0] if referents else None


def _text(error: BaseException | None) -> str:
    """`TypeError: message`, without asking the program's own `__str__`."""
    if error is None:
        return ""
    name, arguments = type(error).__name__, error.args
    if type(error).__module__ == "builtins" and all(type(argument) in (str, int, float) for argument in arguments):
        message = str(error)
    else:
        message = next((argument for argument in arguments if type(argument) is str), "")
    return (f"{name}: {message}" if message else name)[:_LONGEST_TEXT]
