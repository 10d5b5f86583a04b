"""Trace variables of a model over its forwards, gathered from all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensortap.core.parts import Sink, Stage
from tensortap.core.record import Kind, Record, Series
from tensortap.core.tap import Tap
from tensortap.recording.keeping import Into, Kept
from tensortap.sinks.memory import Memory
from tensortap.sources.compiled import plain_python
from tensortap.sources.modules import Modules
from tensortap.sources.selection import selection
from tensortap.sources.sites import dotted, require_module, site_stem
from tensortap.stages.callbacks import Chain
from tensortap.stages.changed import Changed
from tensortap.stages.gather import Gather

FIRST = 1  # iterations count forwards from one


class Saved(Stage):
    """Makes of each value what `(name, value, iteration) -> value` callbacks say."""

    def __init__(self, callbacks: Sequence[Callable[[str, Any, Any], Any]]) -> None:
        self._callbacks = callbacks

    def push(self, record: Record) -> Iterable[Record]:
        for callback in self._callbacks:
            record = record.with_value(callback(record.name, record.value, record.step))
        return (record,)


class Trace:
    """One tracing of a model: started, stopped, then read; `results` is filled on rank 0."""

    def __init__(
        self,
        model: Any,
        paths: Sequence[str],
        *,
        gather: Gather,
        post_trace: Iterable[Callable[..., object]] = (),
        pre_save: Sequence[Callable[[str, Any, Any], Any]] = (),
        rests: Callable[[int], bool] | None = None,
        also: Tap | None = None,
    ) -> None:
        wanted = selection(require_module(model), paths)
        self._source = Modules(model, wanted, naming=_named, keeps_structures=True, rests=rests)
        self._source.step = FIRST
        self._memory, self._post = Memory(keep=None), Chain(post_trace)
        saved = [Saved(pre_save)] if pre_save else []
        users = [] if also is None else [Kept(Into(also), None, is_ours=False)]
        sinks: list[Sink] = [self._memory, *users]
        self._tap = Tap(stages=[Changed(by="object"), *saved, gather], sinks=sinks, on_error="log")
        self._undo = contextlib.ExitStack()
        self.results: dict[str, Series] = {}

    def start(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(plain_python())
            self._tap.attach(self._source)
            self._undo = stack.pop_all()

    def stop(self, *, is_failure: bool = False) -> None:
        """After a failure other ranks may never come: nothing more is gathered."""
        with self._undo, contextlib.ExitStack() as stack:
            stack.callback(self._finish)
            failed = (Exception, None, None) if is_failure else (None, None, None)
            stack.callback(self._tap.__exit__, *failed)
            if self._source.has_run and not is_failure:
                self._tap.tick(self._source.step)

    def _finish(self) -> None:
        self.results = self._memory.series
        problems = [self._post.edit(series) for series in self.results.values()]
        for problem in filter(None, problems):
            raise RuntimeError(str(problem))


def _named(path: str, kind: Kind, parameter: str, item: str) -> str:
    """As the path was written: `forward.x`, `forward.hs.0`, `sub`."""
    return site_stem(path, kind, parameter, "forward") + dotted(item)
