"""The one trace function (`sys.settrace`): tells the values that a function binds where there is no source to
rewrite, and lets a follower see what one thread calls for a while.

Threads that run already are not watched, nor what runs under a trace function that was set later. An
exception in what is told ends all tracing of its thread, as always in Python, until the probe is removed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Protocol

from tensortap.sources.probes.bytecode import Instructions, Reader, instructions_of
from tensortap.sources.probes.rewrite import RETURN, Enter, Spot

Trace = Callable[..., Any]  # of a frame, an event and its argument
log = logging.getLogger("tensortap.probes")


def trace(
    code: CodeType, names: Collection[str] | None, enter: Enter, *, returns: bool = False
) -> tuple[tuple[Spot, ...], Callable[[], None]]:
    """Watch every call of this code; gives the spots, and what ends it."""
    instructions = instructions_of(code, code.co_filename)
    wanted = [index for index, binding in enumerate(instructions.spots) if _is_wanted(binding, names, returns)]
    owner = _Owner(code, instructions, enter, {original: index for index, original in enumerate(wanted)})
    with _lock:
        _watched[id(code)] = (*_watched.get(id(code), ()), owner)
        _begin()
    return tuple(instructions.spots[original] for original in wanted), partial(_end, owner)


def spots_of(code: CodeType) -> tuple[Spot, ...]:
    """Every argument and binding, as well as the instructions tell."""
    return tuple(binding for binding in instructions_of(code, code.co_filename).spots if binding.kind != RETURN)


def _is_wanted(binding: Spot, names: Collection[str] | None, returns: bool) -> bool:
    return returns if binding.kind == RETURN else names is None or binding.name in names


class Follower(Protocol):
    """Is asked about each call of one thread while it follows."""

    def begun(self, frame: FrameType) -> Part | None:
        """What is to be told the further events of this call; a call that goes on is an event `call`."""


Part = Callable[[FrameType, str, Any], None]  # of one watched call


def follow(observer: Follower) -> None:
    """Ask it about each call of this thread, until `unfollow` in this thread."""
    _watch_forks()
    tracer = _mine()
    tracer.followers = (*tracer.followers, observer)


def unfollow(observer: Follower) -> None:
    """Safe to call twice, and where an interrupt came before it was followed."""
    tracer = _tracers.get(get_ident())
    while tracer is not None and observer not in tracer.followers:
        tracer = tracer.below
    if tracer is not None:
        tracer.followers = tuple(other for other in tracer.followers if other is not observer)
        if not tracer.is_needed:
            tracer.leave()


def followers() -> tuple[Follower, ...]:
    """Those of this thread, the outermost first."""
    tracer = _tracers.get(get_ident())
    return () if tracer is None else tracer.followers


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_followers)


def _forget_followers() -> None:
    """What a child of a followed call does is its own."""
    for tracer in _tracers.values():
        tracer.followers = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Owner:
    code: CodeType
    instructions: Instructions
    enter: Enter
    numbers: dict[int, int]  # of each of the code's spots that is wanted


# Trace functions belong to threads, and calls to the process.
_lock = threading.RLock()
_watched: dict[int, tuple[_Owner, ...]] = {}  # by the id of the code, whose hash is slow
_tracers: dict[int, _Tracer] = {}  # by thread
_threads_before: list[Trace | None] = []  # what `threading` gave to new threads


def _begin() -> None:
    _mine().is_watching = True
    if not _threads_before:
        _threads_before.append(threading.gettrace())
        threading.settrace(_begin_in_new_thread)


def _mine() -> _Tracer:
    """The trace function of this thread, which may have to be set again."""
    current = sys.gettrace()
    return current if isinstance(current, _Tracer) and current is _tracers.get(get_ident()) else _take_over(current)


def _take_over(previous: Trace | None) -> _Tracer:
    outer = _tracers.get(get_ident())  # still followed by, where the program has set its own meanwhile
    tracer = _Tracer(previous, outer if outer is not None and outer.followers else None)
    _tracers[get_ident()] = tracer
    sys.settrace(tracer)
    return tracer


def _begin_in_new_thread(frame: FrameType, event: str, argument: Any) -> Any:
    tracer = _take_over(_threads_before[0] if _threads_before else None)
    tracer.is_watching = True
    return tracer(frame, event, argument)


def _end(owner: _Owner) -> None:
    with _lock:
        owners = _watched.get(id(owner.code), ())
        if owner not in owners:
            return
        remaining = tuple(other for other in owners if other is not owner)
        if remaining:
            _watched[id(owner.code)] = remaining
        else:
            del _watched[id(owner.code)]
        if not _watched:
            _give_back()


def _give_back() -> None:
    """In this thread at once; others notice by themselves, at their next call."""
    own = _tracers.get(get_ident())
    for thread, tracer in list(_tracers.items()):
        tracer.is_watching = False
        if not tracer.followers:
            del _tracers[thread]
    if own is not None and not own.is_needed:
        own.leave()
    previous = _threads_before.pop()
    if threading.gettrace() == _begin_in_new_thread:
        threading.settrace(previous)
    else:
        log.warning("the trace function for new threads was replaced meanwhile; it is left as it is")


class _Tracer:
    """One thread's trace function. Whoever was there before goes on as if we were not."""

    def __init__(self, previous: Trace | None, outer: _Tracer | None = None) -> None:
        self._previous, self.below = previous, outer
        self.followers: tuple[Follower, ...] = ()
        self.is_watching = False  # set for probes, not only to follow
        self.has_failed = self._has_left = False

    @property
    def is_needed(self) -> bool:
        return bool(self.followers or (self.is_watching and _watched))

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            return self._look(frame, event, argument)
        except BaseException:
            self.has_failed = True  # Python now sets the thread's trace function to None
            raise

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        own = frame.f_trace if type(frame.f_trace) is _Frame else None  # of a generator that goes on
        if own is not None:
            frame.f_trace = own.theirs
        foreign = self._asked(frame, event, argument)
        if not self.is_needed:
            self.leave()
            return foreign
        if own is not None:
            own.go_on(self, frame, foreign)
            return own
        callbacks = self._begun(frame)
        return _Frame(self, callbacks, foreign) if callbacks else foreign

    def _begun(self, frame: FrameType) -> list[_Told]:
        callbacks: list[_Told] = []
        owners = _watched.get(id(frame.f_code))
        if owners and (reader := _reader(frame, owners)):
            callbacks.append((None, reader))
        for observer in self.followers:
            callback = observer.begun(frame)
            if callback is not None:
                callbacks.append((observer, callback))
        return callbacks

    def _asked(self, frame: FrameType, event: str, argument: Any) -> Trace | None:
        if self._previous is None:
            return frame.f_trace
        answer = self.call(self._previous, frame, event, argument)
        return frame.f_trace if answer is None else answer

    def call(self, foreign: Trace, frame: FrameType, event: str, argument: Any) -> Any:
        """Theirs may set another trace function, or none: that is then the one before us."""
        answer = foreign(frame, event, argument)
        current = sys.gettrace()
        if current is not self:
            self._previous = current
            sys.settrace(self)
        return answer

    def leave(self) -> None:
        if _tracers.get(get_ident()) is self:
            if self.below is None:
                del _tracers[get_ident()]
            else:
                _tracers[get_ident()] = self.below
        current = sys.gettrace()
        if current is self or (current is None and (self.has_failed or self._previous is None)):
            sys.settrace(self._previous)
        elif not self._has_left:  # calling this is an event too, which has led here
            log.warning("the trace function was replaced meanwhile; it is left as it is")
        self._has_left = True


def _reader(frame: FrameType, owners: Sequence[_Owner]) -> Reader | None:
    """Of a call that begins; not of a generator that began before it was watched."""
    code = owners[0].instructions
    if frame.f_lasti != code.first:
        return None
    first = code.first_argument(frame.f_locals)
    listeners = [(on_value, owner.numbers) for owner in owners if (on_value := owner.enter(first)) is not None]
    if not listeners:
        return None
    reader = Reader(code, listeners)
    for index, name in enumerate(code.arguments):
        reader.tell(index, frame.f_locals[name])
    return reader


_Told = tuple[Follower | None, Part]  # who has to be following still, if anyone


class _Frame:
    """The trace function of one watched call."""

    __slots__ = ("_parts", "_tracer", "theirs")

    def __init__(self, tracer: _Tracer, callbacks: Sequence[_Told], foreign: Trace | None) -> None:
        self.theirs = foreign  # the trace function that the frame would have without us
        self._tracer, self._parts = tracer, callbacks

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _Frame:
        try:
            if self.theirs is not None:
                frame.f_trace = self.theirs
                answer = self._tracer.call(self.theirs, frame, event, argument)
                self.theirs = frame.f_trace if answer is None else answer
            self._tell(frame, event, argument)
        except BaseException:
            self._tracer.has_failed = True
            raise
        return self

    def _tell(self, frame: FrameType, event: str, argument: Any) -> None:
        observers = self._tracer.followers
        for observer, callback in self._parts:
            if observer is None or observer in observers:
                callback(frame, event, argument)

    def go_on(self, tracer: _Tracer, frame: FrameType, foreign: Trace | None) -> None:
        """A generator or coroutine, within the line that it had left."""
        self._tracer, self.theirs = tracer, foreign
        self._tell(frame, "call", None)
