"""Tell the values that a function binds without changing it, by `sys.settrace`: where there is no source.

A value is read at the event after its binding, so these are the limits. Of a name that a line binds several
times only the last value is told; one that a line may bind or not (`a and (x := b)`) only if it is another
object than before. Kinds are `argument`, `assign` and `return`. Threads that run already are not watched, nor
what runs under a trace function that was set later. An exception in what is told ends all tracing of
its thread, as always in Python, until the probe is removed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from tensortap.sources.instructions import Instructions, Run, instructions_of
from tensortap.sources.rewriting import RETURN, Enter, Seen, Spot

Trace = Callable[..., Any]  # of a frame, an event and its argument
log = logging.getLogger("tensortap.probes")


def trace(
    code: CodeType, names: Collection[str] | None, enter: Enter, *, returns: bool = False
) -> tuple[tuple[Spot, ...], Callable[[], None]]:
    """Watch every call of this code; gives the spots, and what ends it."""
    found = instructions_of(code, code.co_filename)
    wanted = [at for at, spot in enumerate(found.spots) if _is_wanted(spot, names, returns)]
    owner = _Owner(code, found, enter, {at: index for index, at in enumerate(wanted)})
    with _lock:
        _watched[id(code)] = (*_watched.get(id(code), ()), owner)
        _begin()
    return tuple(found.spots[at] for at in wanted), partial(_end, owner)


def spots_of(code: CodeType) -> tuple[Spot, ...]:
    """Every argument and binding, as well as the instructions tell."""
    return tuple(spot for spot in instructions_of(code, code.co_filename).spots if spot.kind != RETURN)


def _is_wanted(spot: Spot, names: Collection[str] | None, returns: bool) -> bool:
    return returns if spot.kind == RETURN else names is None or spot.name in names


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
    mine = _tracers.get(get_ident())
    if mine is None or sys.gettrace() is not mine:
        _take_over(sys.gettrace())
    if not _threads_before:
        _threads_before.append(threading.gettrace())
        threading.settrace(_begin_in_new_thread)


def _take_over(previous: Trace | None) -> _Tracer:
    tracer = _tracers[get_ident()] = _Tracer(previous)
    sys.settrace(tracer)
    return tracer


def _begin_in_new_thread(frame: FrameType, event: str, argument: Any) -> Any:
    previous = _threads_before[0] if _threads_before else None
    return _take_over(previous)(frame, event, argument)


def _end(owner: _Owner) -> None:
    with _lock:
        owners = _watched.get(id(owner.code), ())
        if owner not in owners:
            return
        left = tuple(one for one in owners if one is not owner)
        if left:
            _watched[id(owner.code)] = left
        else:
            del _watched[id(owner.code)]
        if not _watched:
            _give_back()


def _give_back() -> None:
    """In this thread at once; others notice by themselves, at their next call."""
    mine = _tracers.get(get_ident())
    _tracers.clear()
    if mine is not None:
        mine.leave()
    before = _threads_before.pop()
    if threading.gettrace() == _begin_in_new_thread:
        threading.settrace(before)
    else:
        log.warning("the trace function for new threads was replaced meanwhile; it is left as it is")


class _Tracer:
    """One thread's trace function. Whoever was there before goes on as if we were not."""

    def __init__(self, previous: Trace | None) -> None:
        self._previous = previous
        self._has_failed = self._has_left = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        mine = frame.f_trace if isinstance(frame.f_trace, _Frame) else None  # of a generator that goes on
        if mine is not None:
            frame.f_trace = mine.theirs
        theirs = self._asked(frame, event, argument)
        if not _watched:
            self.leave()
            return theirs
        if mine is not None:
            mine.go_on(frame, theirs)
            return mine
        owners = _watched.get(id(frame.f_code))
        began = owners and self.guarded(partial(_begun, self, frame, owners, theirs))
        return began or theirs

    def _asked(self, frame: FrameType, event: str, argument: Any) -> Trace | None:
        if self._previous is None:
            return frame.f_trace
        answer = self.call(self._previous, frame, event, argument)
        return frame.f_trace if answer is None else answer

    def call(self, theirs: Trace, frame: FrameType, event: str, argument: Any) -> Any:
        """Theirs may set another trace function, or none: that is then the one before us."""
        answer = theirs(frame, event, argument)
        now = sys.gettrace()
        if now is not self:
            self._previous = now
            sys.settrace(self)
        return answer

    def guarded(self, tell: Callable[[], Any]) -> Any:
        try:
            return tell()
        except BaseException:
            self._has_failed = True  # Python now sets the thread's trace function to None
            raise

    def leave(self) -> None:
        now = sys.gettrace()
        if now is self or (now is None and self._has_failed):
            sys.settrace(self._previous)
        elif not self._has_left:  # calling this is an event too, which has led here
            log.warning("the trace function was replaced meanwhile; it is left as it is")
        self._has_left = True


def _begun(
    tracer: _Tracer, frame: FrameType, owners: Sequence[_Owner], theirs: Trace | None
) -> _Frame | None:
    """A call that begins; not a generator that began before it was watched."""
    code = owners[0].instructions
    if frame.f_lasti != code.first:
        return None
    first = code.first_argument(frame.f_locals)
    listening = [(seen, owner.numbers) for owner in owners if (seen := owner.enter(first)) is not None]
    if not listening:
        return None
    begun = _Frame(tracer, code, listening, theirs)
    for spot, name in enumerate(code.arguments):
        begun.tell(spot, frame.f_locals[name])
    return begun


class _Frame:
    """The trace function of one watched call."""

    def __init__(
        self,
        tracer: _Tracer,
        code: Instructions,
        listening: Sequence[tuple[Seen, dict[int, int]]],
        theirs: Trace | None,
    ) -> None:
        self.theirs = theirs  # the trace function that the frame would have without us
        self._tracer, self._code, self._listening = tracer, code, listening
        self._run: Run | None = None
        self._is_straight = True  # no exception was raised since the run began
        self._before: dict[str, int | None] = {}  # which objects the variables of the run were

    def __call__(self, frame: FrameType, event: str, argument: Any) -> _Frame:
        if self.theirs is not None:
            frame.f_trace = self.theirs
            answer = self._tracer.call(self.theirs, frame, event, argument)
            self.theirs = frame.f_trace if answer is None else answer
        self._tracer.guarded(partial(self._look, frame, event, argument))
        return self

    def go_on(self, frame: FrameType, theirs: Trace | None) -> None:
        """A generator or coroutine, within the line that it had left."""
        self.theirs = theirs
        self._start(frame, is_straight=True)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "opcode":  # asked for by another tool
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
        self._before = {one.variable: _identity(variables, one.variable) for one in self._run.stores}

    def _read(self, run: Run, frame: FrameType, event: str) -> None:
        at = frame.f_lasti
        is_within = at in run.block
        is_straight = self._is_straight and (is_within or event == "line")
        variables = frame.f_locals if run.stores else {}
        for store in run.stores:
            if store.variable not in variables or (is_within and not self._code.is_possible(store, run, at)):
                continue
            is_other = _identity(variables, store.variable) != self._before[store.variable]
            if is_other or (is_straight and self._code.is_passed(store, run, at)):
                self.tell(store.spot, variables[store.variable])

    def tell(self, spot: int, value: Any) -> None:
        for seen, numbers in self._listening:
            if spot in numbers:
                seen(numbers[spot], value)


def _identity(variables: Mapping[str, Any], name: str) -> int | None:
    """What stays bound up to the next event keeps its address for itself."""
    return id(variables[name]) if name in variables else None
