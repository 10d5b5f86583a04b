"""Records of a traced call and the calls inside it: arguments, each change with its line, and the end."""

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
from tensortap.sources.calls.changes import NO_RESULT, ChangeTracker
from tensortap.sources.calls.line_effects import CodeEffects
from tensortap.sources.probes.settrace import add_observer, remove_observer

_MAX_CALLERS = 3
_MAX_ERROR_LENGTH = 200
_MAX_DECORATOR_LINES = 50
OWN_FOLDER = str(Path(__file__).resolve().parents[2]) + "/"
_RETURNS_BY_STOP_ITERATION = inspect.CO_GENERATOR | inspect.CO_COROUTINE
_next_trace_number = itertools.count(1).__next__


class FunctionInfo:
    """What is shared by all calls of a function."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.name = code.co_qualname
        self.code_effects = CodeEffects(code)
        self.line = _definition_line(code)
        self.first = self.code_effects.first
        self.next_call = itertools.count().__next__


def _definition_line(code: CodeType) -> int:
    """The line of the `def`; co_firstlineno is that of the first decorator."""
    start, def_line = code.co_firstlineno, re.compile(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b")
    for line in range(start, start + _MAX_DECORATOR_LINES):
        if def_line.match(linecache.getline(code.co_filename, line)):
            return line
    return start


_function_infos: dict[int, FunctionInfo] = {}  # calls are counted per process


def get_function_info(code: CodeType) -> FunctionInfo:
    info = _function_infos.get(id(code))
    if info is None:
        info = _function_infos[id(code)] = FunctionInfo(code)
    return info


class TraceSource(Protocol):
    """What a trace needs of its source."""

    max_depth: int
    taps: tuple[Tap, ...]

    def include(self, code: CodeType) -> None: ...

    def function_info(self, frame: FrameType) -> FunctionInfo | None: ...

    @property
    def wants(self) -> Callable[[str], bool] | None:
        """Whether a variable is recorded; None: all are."""

    def fail(self) -> None: ...


class CallTrace:
    """The trace of one outermost call of a decorated function; observes the calls of its thread meanwhile."""

    def __init__(self, source: TraceSource, root: CodeType, rank: int = 0) -> None:
        self.source, self._root_code, self.rank = source, root, rank
        self.number = _next_trace_number()
        self.emitters = tuple(tap.fast_emit() for tap in source.taps)
        self.current: _TracedCall | None = None
        self.count = 0  # of traced calls
        self._has_begun = False
        self.is_over = False  # stopped after a failure
        self._exception_outside: BaseException | None = None  # being handled where the function is called

    def begin(self) -> None:
        """Trace this thread from here to `end`."""
        self.current, self._exception_outside = None, sys.exception()
        add_observer(self)

    def end(self, result: Any = NO_RESULT) -> None:
        remove_observer(self)
        raised = sys.exception()
        error, self._exception_outside = (None if raised is self._exception_outside else raised), None
        if self.current is not None and not self.is_over:
            self._end_early(result, error)

    def _end_early(self, result: Any, error: BaseException | None) -> None:
        """Trace events stopped before the call returned: an interrupt came during one, or the program set its
        own trace function."""
        root, self.current = self.current, None
        while root is not None and root.caller is not None:
            root = root.caller
        try:
            if root is not None:
                root.end_early(result, error)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            self.fail()

    def will_trace(self, code: CodeType) -> bool:
        """Whether a call of this function now would be in the trace, or its root."""
        return self.current is not None or (not self._has_begun and code is self._root_code)

    def on_call(self, frame: FrameType) -> Callable[[FrameType, str, Any], None] | None:
        if self.current is None and (self._has_begun or frame.f_code is not self._root_code):
            return None
        if self.is_over:
            return None
        try:
            return self._on_call(frame)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            self.fail()
            return None

    def _on_call(self, frame: FrameType) -> _TracedCall | None:
        depth = 0 if self.current is None else self.current.depth + 1
        if depth > self.source.max_depth:
            return None
        info = self.source.function_info(frame)
        if info is None or frame.f_lasti != info.first:
            return None
        self._has_begun = True
        self.count += 1
        call = _TracedCall(self, info, depth)
        call.begin(frame)
        return call

    def fail(self) -> None:
        """Stop this trace; called while an exception is being handled."""
        self.is_over = True
        self.source.fail()


class _TracedCall:
    """The events of one call, as records."""

    __slots__ = (
        "_calls_at_line_start",
        "_changes",
        "_info",
        "_nth",
        "_raised_errors",
        "_sites",
        "_trace",
        "caller",
        "depth",
    )

    def __init__(self, trace: CallTrace, info: FunctionInfo, depth: int) -> None:
        self._trace, self._info, self.depth = trace, info, depth
        self._nth = info.next_call()
        self.caller: _TracedCall | None = None
        self._sites: dict[int, Site] = {}
        self._raised_errors: dict[int, str] = {}  # by offset of the raising instruction
        self._calls_at_line_start = 0  # traced calls when the line began
        self._changes = ChangeTracker(info.code_effects, self._emit_change, trace.source.wants)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        trace = self._trace
        if trace.is_over:
            return
        try:
            if event == "line":
                self._on_line(frame)
            elif event != "opcode":  # requested by another tool
                self._on_event(frame, event, argument)
        except Exception:  # noqa: BLE001 - a guest in someone's function
            trace.fail()

    def begin(self, frame: FrameType) -> None:
        trace, code = self._trace, self._info.code
        self.caller, trace.current = trace.current, self
        callers = () if self.depth else tuple(itertools.islice(_callers(frame), _MAX_CALLERS))
        site = Site(self._info.name, code.co_filename, self._info.line, self.depth, callers, trace.number)
        self._emit(self._info.name, None, "call", site)
        variables = frame.f_locals
        wants = trace.source.wants
        for name in self._info.code_effects.arguments:
            if name in variables and (wants is None or wants(name)):
                self._emit(f"{self._info.name}.{name}", variables[name], "input", self._site(0))
                self._changes.remember(name, variables[name])
        self._begin_line(frame, variables)

    def _on_line(self, frame: FrameType) -> None:
        call_count, variables, changes = self._trace.count, frame.f_locals, self._changes
        changes.end_line(frame, variables, call_count != self._calls_at_line_start)
        self._calls_at_line_start = call_count
        changes.begin_line(frame, variables)
        if changes.effects.reraises:
            self._raised_errors[-1] = _describe_error(sys.exception())

    def _begin_line(self, frame: FrameType, variables: dict[str, Any]) -> None:
        self._calls_at_line_start = self._trace.count
        self._changes.begin_line(frame, variables)

    def _end_line(self, frame: FrameType) -> dict[str, Any]:
        variables = frame.f_locals
        self._changes.end_line(frame, variables, self._trace.count != self._calls_at_line_start)
        return variables

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return":
            self._end_line(frame)
            self._trace.current, self.caller = self.caller, None
            self._emit_end(frame, argument)
        elif event == "exception":
            variables = self._end_line(frame)
            self._raised_errors[frame.f_lasti] = self._raised_errors[-1] = _describe_error(argument[1])
            self._begin_line(frame, variables)
        else:  # a generator or coroutine resumes
            self._raised_errors.clear()
            self.caller, self._trace.current = self._trace.current, self
            self._begin_line(frame, frame.f_locals)

    def _emit_end(self, frame: FrameType, argument: Any) -> None:
        code_effects, offset, name = self._info.code_effects, frame.f_lasti, self._info.name
        site = self._site(frame.f_lineno)
        if offset in code_effects.returns:
            self._emit(name, argument, "return", site)
        elif offset in self._raised_errors or not (
            offset in code_effects.yields or offset in code_effects.awaits
        ):
            self._emit(
                name,
                self._raised_errors.get(offset) or self._raised_errors.get(-1) or "exception",
                "raise",
                site,
            )
        elif offset in code_effects.yields:
            self._emit(name, _unwrap_yielded(argument, self._info.code), "yield", site)

    def end_early(self, result: Any, error: BaseException | None) -> None:
        """Emit the end as known from the wrapper; nothing for a generator that is suspended."""
        code, name = self._info.code, self._info.name
        if isinstance(error, StopIteration) and code.co_flags & _RETURNS_BY_STOP_ITERATION:
            result, error = error.value, None
        if error is not None:
            self._emit(name, _describe_error(error), "raise", self._site(_line_left(error, code)))
        elif result is not NO_RESULT:
            self._emit(name, result, "return", self._site(self._info.line))

    def _emit_change(self, path: str, value: Any, line: int) -> None:
        site = self._sites.get(line)
        self._emit(f"{self._info.name}.{path}", value, "local", site or self._site(line))

    def _site(self, line: int) -> Site:
        site = self._sites.get(line)
        if site is None:
            info = self._info
            site = Site(info.name, info.code.co_filename, line, self.depth, (), self._trace.number)
            self._sites[line] = site
        return site

    def _emit(self, name: str, value: Any, kind: Kind, site: Site) -> None:
        trace, step = self._trace, declared_step() or 0
        record = Record(name, value, kind, step, trace.rank, self._nth, next_order(), time(), site)
        for emit in trace.emitters:
            emit(record)


def _callers(frame: FrameType) -> Iterator[str]:
    outer = frame.f_back
    while outer is not None:
        code = outer.f_code
        if not code.co_filename.startswith(OWN_FOLDER):
            yield f"{code.co_name}@{Path(code.co_filename).name}:{outer.f_lineno}"
        outer = outer.f_back


def _line_left(error: BaseException, code: CodeType) -> int:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return code.co_firstlineno if traceback is None else traceback.tb_lineno


def _unwrap_yielded(value: Any, code: CodeType) -> Any:
    """The value inside the object that an async generator wraps it in, reachable only through gc."""
    if not code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return value
    referents = gc.get_referents(value)
    return referents[0] if referents else None


def _describe_error(error: BaseException | None) -> str:
    """`TypeError: message`, without calling a user-defined `__str__`."""
    if error is None:
        return ""
    name, arguments = type(error).__name__, error.args
    if type(error).__module__ == "builtins" and all(
        type(argument) in (str, int, float) for argument in arguments
    ):
        message = str(error)
    else:
        message = next((argument for argument in arguments if type(argument) is str), "")
    return (f"{name}: {message}" if message else name)[:_MAX_ERROR_LENGTH]
