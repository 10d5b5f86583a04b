"""The only user of `sys.settrace`: reports the values a function binds if there is no source to rewrite, and
lets observers see the calls of one thread for a while.

Threads already running are not traced, nor code that runs under a trace function set later. An exception in a
callback ends all tracing of its thread, as always in Python, until the probe is removed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Protocol

from tensortap.core.interpreter import call_in_forked_children
from tensortap.sources.probes.bytecode import BindingReader, CodeInstructions, code_instructions
from tensortap.sources.probes.rewrite import RETURN, Binding, OnEnter

TraceFunction = Callable[..., Any]  # of a frame, an event and its argument
log = logging.getLogger("tensortap.probes")


def trace_code(
    code: CodeType, names: Collection[str] | None, enter: OnEnter, *, returns: bool = False
) -> tuple[tuple[Binding, ...], Callable[[], None]]:
    """Trace every call of this code; returns the bindings, and a function that ends it."""
    instructions = code_instructions(code, code.co_filename)
    requested = [
        index for index, binding in enumerate(instructions.bindings) if _is_requested(binding, names, returns)
    ]
    traced_code = _TracedCode(
        code, instructions, enter, {original: index for index, original in enumerate(requested)}
    )
    with _lock:
        _traced_codes[id(code)] = (*_traced_codes.get(id(code), ()), traced_code)
        _start_tracing()
    return tuple(instructions.bindings[original] for original in requested), partial(
        _stop_tracing_code, traced_code
    )


def bindings_in_code(code: CodeType) -> tuple[Binding, ...]:
    """Every argument and binding, as far as the instructions show."""
    return tuple(
        binding for binding in code_instructions(code, code.co_filename).bindings if binding.kind != RETURN
    )


def _is_requested(binding: Binding, names: Collection[str] | None, returns: bool) -> bool:
    return returns if binding.kind == RETURN else names is None or binding.name in names


class CallObserver(Protocol):
    """Notified of each call of one thread while registered."""

    def on_call(self, frame: FrameType) -> FrameCallback | None:
        """A callback for further events of this call, or None; resuming a generator is an event `call`."""


FrameCallback = Callable[[FrameType, str, Any], None]  # frame, event, argument


def add_observer(observer: CallObserver) -> None:
    """Notify it of each call of this thread, until `remove_observer` in this thread."""
    call_in_forked_children(_drop_observers)
    tracer = _current_tracer()
    tracer.observers = (*tracer.observers, observer)


def remove_observer(observer: CallObserver) -> None:
    """Safe to call twice, and if an interrupt came before it was added."""
    tracer = _tracers.get(get_ident())
    while tracer is not None and observer not in tracer.observers:
        tracer = tracer.outer
    if tracer is not None:
        tracer.observers = tuple(other for other in tracer.observers if other is not observer)
        if not tracer.is_needed:
            tracer.uninstall()


def active_observers() -> tuple[CallObserver, ...]:
    """The observers of this thread, outermost first."""
    tracer = _tracers.get(get_ident())
    return () if tracer is None else tracer.observers


def _drop_observers() -> None:
    """In a forked child: calls of the child are not observed."""
    for tracer in _tracers.values():
        tracer.observers = ()


@dataclass(frozen=True, slots=True, eq=False)
class _TracedCode:
    code: CodeType
    instructions: CodeInstructions
    enter: OnEnter
    indexes: dict[int, int]  # binding of the code to binding of the probe


# Trace functions are per thread, traced codes per process.
_lock = threading.RLock()
_traced_codes: dict[int, tuple[_TracedCode, ...]] = {}  # by the id of the code, whose hash is slow
_tracers: dict[int, _ThreadTracer] = {}  # by thread
_previous_thread_trace: list[TraceFunction | None] = []  # that of `threading.settrace`


def _start_tracing() -> None:
    _current_tracer().is_probing = True
    if not _previous_thread_trace:
        _previous_thread_trace.append(threading.gettrace())
        threading.settrace(_trace_new_thread)


def _current_tracer() -> _ThreadTracer:
    """The tracer of this thread, installed again if the program replaced it."""
    current = sys.gettrace()
    return (
        current
        if isinstance(current, _ThreadTracer) and current is _tracers.get(get_ident())
        else _install_tracer(current)
    )


def _install_tracer(previous: TraceFunction | None) -> _ThreadTracer:
    outer = _tracers.get(
        get_ident()
    )  # still has observers, if the program has set its own trace function meanwhile
    tracer = _ThreadTracer(previous, outer if outer is not None and outer.observers else None)
    _tracers[get_ident()] = tracer
    sys.settrace(tracer)
    return tracer


def _trace_new_thread(frame: FrameType, event: str, argument: Any) -> Any:
    tracer = _install_tracer(_previous_thread_trace[0] if _previous_thread_trace else None)
    tracer.is_probing = True
    return tracer(frame, event, argument)


def _stop_tracing_code(owner: _TracedCode) -> None:
    with _lock:
        owners = _traced_codes.get(id(owner.code), ())
        if owner not in owners:
            return
        remaining = tuple(other for other in owners if other is not owner)
        if remaining:
            _traced_codes[id(owner.code)] = remaining
        else:
            del _traced_codes[id(owner.code)]
        if not _traced_codes:
            _restore_trace_functions()


def _restore_trace_functions() -> None:
    """Restore this thread's at once; other threads do so at their next call."""
    own = _tracers.get(get_ident())
    for thread, tracer in list(_tracers.items()):
        tracer.is_probing = False
        if not tracer.observers:
            del _tracers[thread]
    if own is not None and not own.is_needed:
        own.uninstall()
    previous = _previous_thread_trace.pop()
    if threading.gettrace() == _trace_new_thread:
        threading.settrace(previous)
    else:
        log.warning("the trace function for new threads was replaced meanwhile; it is left as it is")


class _ThreadTracer:
    """The trace function of one thread. It forwards every event to the previous trace function."""

    def __init__(self, previous: TraceFunction | None, outer: _ThreadTracer | None = None) -> None:
        self._previous, self.outer = previous, outer
        self.observers: tuple[CallObserver, ...] = ()
        self.is_probing = False  # installed for probes, not only for observers
        self.has_failed = self._is_uninstalled = False

    @property
    def is_needed(self) -> bool:
        return bool(self.observers or (self.is_probing and _traced_codes))

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            return self._trace_call(frame, event, argument)
        except BaseException:  # whatever it is, Python now sets the thread's trace function to None
            self.has_failed = True
            raise

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        own = frame.f_trace if type(frame.f_trace) is _FrameTracer else None  # of a resumed generator
        if own is not None:
            frame.f_trace = own.foreign
        foreign = self._call_previous(frame, event, argument)
        if not self.is_needed:
            self.uninstall()
            return foreign
        if own is not None:
            own.resume(self, frame, foreign)
            return own
        callbacks = self._frame_callbacks(frame)
        return _FrameTracer(self, callbacks, foreign) if callbacks else foreign

    def _frame_callbacks(self, frame: FrameType) -> list[_ObserverCallback]:
        callbacks: list[_ObserverCallback] = []
        owners = _traced_codes.get(id(frame.f_code))
        if owners and (reader := _make_reader(frame, owners)):
            callbacks.append((None, reader))
        for observer in self.observers:
            callback = observer.on_call(frame)
            if callback is not None:
                callbacks.append((observer, callback))
        return callbacks

    def _call_previous(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        if self._previous is None:
            return frame.f_trace
        answer = self.call_foreign(self._previous, frame, event, argument)
        return frame.f_trace if answer is None else answer

    def call_foreign(self, foreign: TraceFunction, frame: FrameType, event: str, argument: Any) -> Any:
        """Call a foreign trace function; if it sets another or none, that becomes our previous one."""
        answer = foreign(frame, event, argument)
        current = sys.gettrace()
        if current is not self:
            self._previous = current
            sys.settrace(self)
        return answer

    def uninstall(self) -> None:
        if _tracers.get(get_ident()) is self:
            if self.outer is None:
                del _tracers[get_ident()]
            else:
                _tracers[get_ident()] = self.outer
        current = sys.gettrace()
        if current is self or (current is None and (self.has_failed or self._previous is None)):
            sys.settrace(self._previous)
        elif not self._is_uninstalled:  # calling this function is itself a traced event
            log.warning("the trace function was replaced meanwhile; it is left as it is")
        self._is_uninstalled = True


def _make_reader(frame: FrameType, owners: Sequence[_TracedCode]) -> BindingReader | None:
    """A reader for a call that begins; None for a generator that began before it was traced."""
    code = owners[0].instructions
    if frame.f_lasti != code.first:
        return None
    first = code.first_argument(frame.f_locals)
    listeners = [
        (on_value, owner.indexes) for owner in owners if (on_value := owner.enter(first)) is not None
    ]
    if not listeners:
        return None
    reader = BindingReader(code, listeners)
    for index, name in enumerate(code.arguments):
        reader.report(index, frame.f_locals[name])
    return reader


_ObserverCallback = tuple[CallObserver | None, FrameCallback]  # None: of a probe


class _FrameTracer:
    """The trace function of one frame."""

    __slots__ = ("_callbacks", "_tracer", "foreign")

    def __init__(
        self, tracer: _ThreadTracer, callbacks: Sequence[_ObserverCallback], foreign: TraceFunction | None
    ) -> None:
        self.foreign = foreign  # the frame's trace function without us
        self._tracer, self._callbacks = tracer, callbacks

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _FrameTracer:
        try:
            if self.foreign is not None:
                frame.f_trace = self.foreign
                answer = self._tracer.call_foreign(self.foreign, frame, event, argument)
                self.foreign = frame.f_trace if answer is None else answer
            self._notify(frame, event, argument)
        except BaseException:  # of another tool's trace function, or an interrupt
            self._tracer.has_failed = True
            raise
        return self

    def _notify(self, frame: FrameType, event: str, argument: Any) -> None:
        observers = self._tracer.observers
        for observer, callback in self._callbacks:
            if observer is None or observer in observers:
                callback(frame, event, argument)

    def resume(self, tracer: _ThreadTracer, frame: FrameType, foreign: TraceFunction | None) -> None:
        """Resume a generator or coroutine within the line it was suspended in."""
        self._tracer, self.foreign = tracer, foreign
        self._notify(frame, "call", None)
