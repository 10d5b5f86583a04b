"""A tap connects sources to sinks through stages, and decides what a failure on the way means."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tensortap.core.parts import Sink, Source, Stage
from tensortap.core.record import Record
from tensortap.core.settings import is_strict

T = TypeVar("T")
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
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._is_open = True

    def attach(self, source: Source) -> Self:
        self._sources.append(source)
        source.start(self)
        return self

    def emit(self, record: Record) -> None:
        with self._pouring() as may_pour:
            if may_pour:
                self._pour((record,), 0)

    def tick(self, step: int) -> None:
        """Tell every stage that a step is over; what a stage releases goes on to the next."""
        with self._pouring() as may_pour:
            if may_pour:
                for position, stage in enumerate(self._stages):
                    self._pour(self._ask(stage, stage.tick, step), position + 1)

    def flush(self) -> None:
        with self._pouring():
            for sink in list(self._sinks):
                self._guard(sink, sink.flush)

    def close(self) -> None:
        """Stop the sources, drain the stages, close the sinks; safe to call twice."""
        self._end(drain=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception other ranks may never come: files are closed, collectives are not drained.
        self._end(drain=kind is None)

    @contextlib.contextmanager
    def _pouring(self) -> Iterator[bool]:
        """Hold the lock; False when this thread is already pouring, so a tap never watches itself."""
        if getattr(self._thread, "is_pouring", False):
            yield False
            return
        self._thread.is_pouring = True
        try:
            with self._lock:
                yield self._is_open
        finally:
            self._thread.is_pouring = False

    def _pour(self, records: Iterable[Record], start: int) -> None:
        for stage in self._stages[start:]:
            records = [out for record in records for out in self._ask(stage, stage.push, record)]
        for record in records:
            for sink in list(self._sinks):
                self._guard(sink, sink.write, record)

    def _ask(
        self, stage: Stage, method: Callable[..., Iterable[Record]], *arguments: Any
    ) -> Iterable[Record]:
        answer = self._guard(stage, method, *arguments)
        return () if answer is None else answer

    def _guard(self, part: Stage | Sink, method: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return method(*arguments)
        except Exception:
            if self._raises:
                raise
            log.exception("%s failed and is taken out; the program goes on", type(part).__name__)
            self._take_out(part)
            return None

    def _take_out(self, part: Stage | Sink) -> None:
        self._stages = [stage for stage in self._stages if stage is not part]
        if any(sink is part for sink in self._sinks):
            self._sinks = [sink for sink in self._sinks if sink is not part]
            with contextlib.suppress(Exception):
                part.close()

    def _end(self, *, drain: bool) -> None:
        for source in self._sources:
            source.stop()
        with self._pouring() as may_pour:
            if not may_pour:
                return
            self._is_open = False
            if drain:
                for position, stage in enumerate(list(self._stages)):
                    self._pour(self._ask(stage, stage.close), position + 1)
            self._close_sinks()

    def _close_sinks(self) -> None:
        """Close every sink even when one fails; the first failure is what the caller sees."""
        with contextlib.ExitStack() as stack:
            for sink in reversed(list(self._sinks)):
                stack.callback(self._guard, sink, sink.close)
