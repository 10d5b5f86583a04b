"""A tap connects sources to sinks through stages, and decides what a failure in one of them means."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tensortap.core.interpreter import call_in_forked_children
from tensortap.core.protocols import Sink, Source, Stage
from tensortap.core.record import Record
from tensortap.core.settings import is_strict

T = TypeVar("T")
_taps: weakref.WeakSet[Tap] = weakref.WeakSet()
log = logging.getLogger("tensortap.tap")


class Tap:
    """Pour records through stages into sinks.

    `on_error="raise"` is for calls the user wrote; `"log"` is for code that runs inside the user's
    forward pass: a failing part is logged once and taken out, and the program goes on.
    """

    def __init__(
        self,
        *,
        stages: Sequence[Stage] = (),
        sinks: Sequence[Sink] = (),
        on_error: Literal["raise", "log"] = "raise",
    ) -> None:
        self._stages = list(stages)
        self._sinks = list(sinks)
        self._sources: list[Source] = []
        self._raises = on_error == "raise" or is_strict()
        self._lock: threading.RLock = threading.RLock()
        self._owner_thread: int | None = None  # the thread that holds the lock
        self._is_open = True
        _renew_after_fork(self)

    def attach(self, source: Source) -> Self:
        self._sources.append(source)
        source.start(self)
        return self

    def emit(self, record: Record) -> bool:
        """Process one record; False if the tap is closed, or if this thread is inside the tap already."""
        # `_hold_lock` and `_run_stages` inlined: this is called for every value.
        me = get_ident()
        if self._owner_thread == me:
            return False
        with self._lock:
            self._owner_thread = me
            try:
                if not self._is_open:
                    return False
                if self._stages:
                    self._run_stages((record,), self._stages)
                    return True
                for sink in self._sinks:  # never mutated: removing a sink makes a new list
                    try:
                        sink.write(record)
                    except Exception:  # noqa: BLE001 - the failure policy lives here
                        self.fail(sink)
                return True
            finally:
                self._owner_thread = None

    def fast_emit(self) -> Callable[[Record], object]:
        """`emit`, or the sink's `write` if there are no stages and a single sink that needs no lock."""
        sink = self._sinks[0] if len(self._sinks) == 1 and not self._stages else None
        return sink.write if sink is not None and getattr(sink, "needs_no_lock", False) else self.emit

    def tick(self, step: int) -> None:
        """Tell every stage that a step ended; records that a stage releases go on to the next."""
        if not self._stages:
            return
        with self._hold_lock() as may_pour:
            if may_pour:
                stages = self._stages
                for position, stage in enumerate(stages):
                    self._run_stages(self._call_stage(stage, stage.tick, step), stages[position + 1 :])

    def flush(self) -> None:
        with self._hold_lock():
            for sink in list(self._sinks):
                self._guard(sink, sink.flush)

    def close(self) -> None:
        """Stop the sources, drain the stages, close the sinks; safe to call twice."""
        self._shut_down(drain=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception other ranks may never join: files are closed, collectives are not drained.
        self._shut_down(drain=kind is None)

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[bool]:
        """Hold the lock; False if this thread holds it already, so a tap never captures its own work."""
        if self._owner_thread == get_ident():
            yield False
            return
        with self._lock:
            self._owner_thread = get_ident()
            try:
                yield self._is_open
            finally:
                self._owner_thread = None

    def _renew_lock(self) -> None:
        """In a forked child the lock may be held by a thread that does not exist there."""
        self._lock, self._owner_thread = threading.RLock(), None

    def _run_stages(self, records: Iterable[Record], stages: Sequence[Stage]) -> None:
        for stage in stages:
            records = [out for record in records for out in self._push(stage, record)]
        for record in records:
            for sink in self._sinks:  # never mutated: removing a sink makes a new list
                try:
                    sink.write(record)
                except Exception:  # noqa: BLE001 - the failure policy lives here
                    self.fail(sink)

    def _push(self, stage: Stage, record: Record) -> Iterable[Record]:
        """The records that pass; a stage that was removed meanwhile passes everything."""
        is_in = any(present is stage for present in self._stages)
        return self._call_stage(stage, stage.push, record) if is_in else (record,)

    def _call_stage(
        self, stage: Stage, method: Callable[..., Iterable[Record]], *arguments: Any
    ) -> Iterable[Record]:
        # Consumed within the guard: a generator raises only when it is iterated.
        return self._guard(stage, lambda: list(method(*arguments))) or ()

    def _guard(self, part: Stage | Sink | Source, method: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return method(*arguments)
        except Exception:  # noqa: BLE001 - the failure policy lives here
            self.fail(part)
            return None

    def fail(self, part: Stage | Sink | Source) -> None:
        """Called while an exception is handled: re-raise it, or log it and remove the part."""
        if self._raises:
            raise
        log.exception("%s failed and is taken out; the program goes on", type(part).__name__)
        self._remove_part(part)

    def _remove_part(self, part: Stage | Sink | Source) -> None:
        self._stages = [stage for stage in self._stages if stage is not part]
        for source in [source for source in self._sources if source is part]:
            self._sources = [kept for kept in self._sources if kept is not source]
            _close_failed(source, source.stop)
        failed = [sink for sink in self._sinks if sink is part]
        self._sinks = [sink for sink in self._sinks if sink is not part]
        for sink in failed:
            _close_failed(sink, sink.close)

    def _shut_down(self, *, drain: bool) -> None:
        """Every part is closed even if one fails; the first failure propagates."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._drain_and_close, drain)
            for source in reversed(self._sources):
                stack.callback(self._guard, source, source.stop)
            self._sources = []

    def _drain_and_close(self, drain: bool) -> None:
        with self._hold_lock() as may_pour, contextlib.ExitStack() as stack:
            if not may_pour:
                return
            self._is_open = False
            stack.callback(self._close_sinks)
            stages = self._stages if drain else []
            for position, stage in enumerate(stages):
                self._run_stages(self._call_stage(stage, stage.close), stages[position + 1 :])

    def _close_sinks(self) -> None:
        with contextlib.ExitStack() as stack:
            for sink in reversed(list(self._sinks)):
                stack.callback(self._guard, sink, sink.close)


def _close_failed(part: Sink | Source, close: Callable[[], object]) -> None:
    try:
        close()
    except Exception:  # a part that failed, which is logged already, may well fail again
        log.debug("%s could not be closed either", type(part).__name__, exc_info=True)


def _renew_after_fork(tap: Tap) -> None:
    """Registers with fork: comparing the pid at each record would cost a system call."""
    call_in_forked_children(_renew_locks)
    _taps.add(tap)


def _renew_locks() -> None:
    for tap in list(_taps):
        tap._renew_lock()
