"""Trace variables of a model over its forwards, gathered from all ranks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensortap.core.errors import GatherError
from tensortap.core.parts import Sink
from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind, Series
from tensortap.core.settings import is_strict
from tensortap.core.tap import Tap
from tensortap.recording.forwards import Forwards, Pace
from tensortap.recording.keeping import Into, Kept
from tensortap.sinks.memory import Memory
from tensortap.sources.absence import Missing, missing
from tensortap.sources.compiled import plain_python
from tensortap.sources.selection import selection
from tensortap.sources.sites import dotted, require_module, site_stem
from tensortap.stages.callbacks import CallbackChain, PreSaveCallbacks
from tensortap.stages.changed import Changed
from tensortap.stages.gather import Gather

log = logging.getLogger("tensortap.trace")


class Trace:
    """One tracing of a model: started, stopped, then read; `results` is filled on rank 0."""

    def __init__(
        self,
        model: Any,
        paths: Sequence[str],
        *,
        gather: Gather,
        pace: Pace,
        post_trace: Iterable[Callable[..., object]] = (),
        pre_save: Iterable[Callable[..., object]] = (),
        also: Tap | None = None,
    ) -> None:
        self._paths = _texts(paths)
        wanted = selection(_instance(model), self._paths)
        self._source = Forwards(
            model, wanted, naming=_named, keeps_structures=True, rests=pace.rests if pace.may_rest else None
        )
        self._memory, self._post, self._gather = Memory(keep=None), CallbackChain(post_trace), gather
        self._saved = PreSaveCallbacks(pre_save)
        sinks: list[Sink] = [self._memory, *_users(also)]
        stages = [Changed(by="object"), *([self._saved] if pre_save else []), gather]
        self._tap = Tap(stages=stages, sinks=sinks, on_error="log")
        self._undo = contextlib.ExitStack()
        self._state, self._results = "new", dict[str, Series]()

    @property
    def results(self) -> dict[str, Series]:
        """What was gathered by now; after the end, what the last callbacks made of it."""
        return self._results if self._state == "over" else self._memory.series

    @property
    def missing(self) -> list[Missing]:
        """Every path that gave no value, and every value that was left out, with the reason."""
        refused = {**self._source.refused, **self._saved.refused, **self._gather.refused}
        return [*self._silent(), *(Missing(name, reason) for name, reason in refused.items())]

    def start(self) -> None:
        if self._state != "new":
            raise RuntimeError(f"this tracer is {self._state}; make another with ModelTracer(...)")
        self._state = "already on"
        with contextlib.ExitStack() as stack:
            stack.enter_context(plain_python())
            self._tap.attach(self._source)
            self._undo = stack.pop_all()

    def stop(self, *, is_failure: bool = False) -> None:
        """After a failure other ranks may never come: nothing more is gathered from them."""
        with self._undo, contextlib.ExitStack() as stack:
            stack.callback(self._finish, is_failure)
            stack.callback(self._tap.close)
            if is_failure:
                self._gather.leave()
            if self._source.has_run:
                self._tap.tick(self._source.step)

    def _finish(self, is_failure: bool) -> None:
        self._results, self._state = self._memory.series, "over"
        if not is_failure and rank_info().rank == 0:
            self._try_to_tell_silent()
        problems = [
            problem for one in self._results.values() if (problem := self._post.edit(one)) is not None
        ]
        for problem in problems:
            log.error("%s\n%s", problem.sentence, problem.trace)
        if problems and is_strict():
            raise GatherError("; ".join(problem.sentence for problem in problems))

    def _try_to_tell_silent(self) -> None:
        """The program has done its work by now: it must not end by what we cannot say."""
        try:
            self._tell_silent()
        except Exception:
            if is_strict():
                raise
            log.exception("which paths gave no value is not known")

    def _silent(self) -> list[Missing]:
        if self._state == "new":
            return []
        came = {record.name for record in self._memory.records}  # maybe from another rank
        return [one for one in missing(self._source) if one.name not in came]

    def _tell_silent(self) -> None:
        """A wildcard takes what there is; a path that is spelled out was meant to give something."""
        are_spelled = not any("*" in path for path in self._paths)
        silent = [one for one in self._silent() if are_spelled or one.name in self._paths]
        if silent:
            more = f"; tracer.missing lists all {len(silent)}" if len(silent) > 1 else ""
            log.warning("%r gave no value: %s%s", silent[0].name, silent[0].reason, more)


def _texts(paths: Any) -> list[str]:
    if isinstance(paths, str):
        raise TypeError(f"paths is the text {paths!r}; give a list of paths, [{paths!r}]")
    if not isinstance(paths, Iterable) or not (found := list(paths)):
        raise ValueError(
            f"paths is {paths!r}, which traces nothing; give a list such as ['forward', 'forward.x']"
        )
    for path in found:
        if not isinstance(path, str) or not path.strip():
            raise TypeError(f"{path!r} is no path; give texts such as 'forward' or 'layers.0.forward.x'")
    return found


def _instance(model: Any) -> Any:
    if isinstance(model, type):
        raise TypeError(f"{model.__name__} is a class, not a model; give an instance of it")
    try:
        return require_module(model)
    except TypeError:
        raise TypeError(f"a {type(model).__name__} is no model; give a torch.nn.Module") from None


def _users(tap: Any) -> list[Sink]:
    if tap is None:
        return []
    if not isinstance(tap, Tap):
        raise TypeError(f"tap is {tap!r}; give a tt.Tap(sinks=[...])")
    return [Kept(Into(tap), None, is_ours=False)]


def _named(path: str, kind: Kind, parameter: str, item: str) -> str:
    """As the path was written: `forward.x`, `forward.hs.0`, `sub`."""
    return site_stem(path, kind, parameter, "forward") + dotted(item)
