"""The engine of ModelTracer: trace variables of a model over its forwards, gathered from all ranks."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from tensortap.core.errors import GatherError
from tensortap.core.protocols import Sink
from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind, Series
from tensortap.core.settings import is_strict
from tensortap.core.tap import Tap
from tensortap.recording.destination import RetainingSink, TapSink
from tensortap.sinks.memory import Memory
from tensortap.sources.hooks.eager_mode import run_eagerly
from tensortap.sources.hooks.modules import ModuleSource
from tensortap.sources.selection.missing import Missing, find_missing
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import SelectedSite, require_module, site_stem, with_dotted_keys
from tensortap.stages.callbacks import CallbackChain, PreSaveCallbacks
from tensortap.stages.changed import Changed
from tensortap.stages.gather import Gather

log = logging.getLogger("tensortap.trace")


class ModelTrace:
    """One trace of a model: started, stopped, then read; only rank 0 has `results`."""

    def __init__(
        self,
        model: Any,
        paths: Sequence[str],
        *,
        gather: Gather,
        schedule: TraceSchedule,
        post_trace: Iterable[Callable[..., object]] = (),
        pre_save: Iterable[Callable[..., object]] = (),
        user_tap: Tap | None = None,
    ) -> None:
        self._paths = _check_paths(paths)
        wanted = resolve_patterns(_require_instance(model), self._paths)
        self._source = ForwardSource(
            model,
            wanted,
            naming=_site_name,
            keeps_structures=True,
            skips_step=schedule.rests if schedule.may_skip else None,
        )
        self._memory, self._post_trace, self._gather = Memory(keep=None), CallbackChain(post_trace), gather
        self._pre_save = PreSaveCallbacks(pre_save)
        sinks: list[Sink] = [self._memory, *_user_sinks(user_tap)]
        stages = [Changed(by="object"), *([self._pre_save] if pre_save else []), gather]
        self._tap = Tap(stages=stages, sinks=sinks, on_error="log")
        self._undo = contextlib.ExitStack()
        self._state, self._results = "new", dict[str, Series]()

    @property
    def results(self) -> dict[str, Series]:
        """What is gathered so far; after the end, as the post-trace callbacks left it."""
        return self._results if self._state == "over" else self._memory.series

    @property
    def missing(self) -> list[Missing]:
        """Every path that gave no value, and every value that was left out, with the reason."""
        refused = {**self._source.refused, **self._pre_save.refused, **self._gather.refused}
        return [*self._unobserved(), *(Missing(name, reason) for name, reason in refused.items())]

    def start(self) -> None:
        if self._state != "new":
            raise RuntimeError(f"this tracer is {self._state}; make another with ModelTracer(...)")
        self._state = "already on"
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_eagerly())
            self._tap.attach(self._source)
            self._undo = stack.pop_all()

    def stop(self, *, is_failure: bool = False) -> None:
        """End the trace; after a failure skip the collective, since other ranks may not join it."""
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
            self._try_to_warn_unobserved()
        problems = [
            problem
            for series in self._results.values()
            if (problem := self._post_trace.edit(series)) is not None
        ]
        for problem in problems:
            log.error("%s\n%s", problem.sentence, problem.trace)
        if problems and is_strict():
            raise GatherError("; ".join(problem.sentence for problem in problems))

    def _try_to_warn_unobserved(self) -> None:
        """Warn, but never raise: the program has finished its work."""
        try:
            self._warn_unobserved()
        except Exception:  # a guest: the model's own attributes may raise anything
            if is_strict():
                raise
            log.exception("which paths gave no value is not known")

    def _unobserved(self) -> list[Missing]:
        if self._state == "new":
            return []
        names_received = {record.name for record in self._memory.records}  # of any rank
        return [site for site in find_missing(self._source) if site.name not in names_received]

    def _warn_unobserved(self) -> None:
        """Warn about paths without a value, except those that come from a wildcard."""
        are_spelled = not any("*" in path for path in self._paths)
        unobserved = [site for site in self._unobserved() if are_spelled or site.name in self._paths]
        if unobserved:
            more = f"; tracer.missing lists all {len(unobserved)}" if len(unobserved) > 1 else ""
            log.warning("%r gave no value: %s%s", unobserved[0].name, unobserved[0].reason, more)


def _check_paths(paths: Any) -> list[str]:
    if isinstance(paths, str):
        raise TypeError(f"paths is the text {paths!r}; give a list of paths, [{paths!r}]")
    if not isinstance(paths, Iterable) or not (listed := list(paths)):
        raise ValueError(
            f"paths is {paths!r}, which traces nothing; give a list such as ['forward', 'forward.x']"
        )
    for path in listed:
        if not isinstance(path, str) or not path.strip():
            raise TypeError(f"{path!r} is no path; give texts such as 'forward' or 'layers.0.forward.x'")
    return listed


def _require_instance(model: Any) -> Any:
    if isinstance(model, type):
        raise TypeError(f"{model.__name__} is a class, not a model; give an instance of it")
    try:
        return require_module(model)
    except TypeError:
        raise TypeError(f"a {type(model).__name__} is no model; give a torch.nn.Module") from None


def _user_sinks(tap: Any) -> list[Sink]:
    if tap is None:
        return []
    if not isinstance(tap, Tap):
        raise TypeError(f"tap is {tap!r}; give a tt.Tap(sinks=[...])")
    return [RetainingSink(TapSink(tap), None, is_ours=False)]


def _site_name(path: str, kind: Kind, parameter: str, item: str) -> str:
    """The name as the user writes paths: `forward.x`, `forward.hs.0`, `sub`."""
    return site_stem(path, kind, parameter, "forward") + with_dotted_keys(item)


FIRST_ITERATION = 1  # iterations count forwards from one


class TraceSchedule:
    """Which forwards are traced: every `interval`-th one, in training, evaluation or both.

    Forwards in the other mode do not count towards gathering, and no collective is due while they run: often
    rank 0 evaluates alone, and the others would not join.
    """

    def __init__(self, model: Any, interval: int, *, train_only: bool, eval_only: bool) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"trace_interval is {interval!r}; give a whole number from 1 on")
        if train_only and eval_only:
            raise ValueError("train_only and eval_only leave nothing to trace; give one of them")
        self.may_skip = train_only or eval_only or interval != 1
        self._model, self._interval = model, interval
        self._train_only, self._eval_only = train_only, eval_only
        self._is_ours, self._is_due = True, False

    def rests(self, iteration: int) -> bool:
        """Is this forward skipped? Called at its start."""
        self._is_ours = self._is_wanted_mode()
        return not self._is_ours or iteration % self._interval != 0

    def counts_for_gathering(self, iteration: int) -> bool:
        """Does the last forward count towards gathering? Called before the next one starts."""
        self._is_due = self._is_due or self._is_ours
        counts = self._is_due and self._is_wanted_mode()
        self._is_due = self._is_due and not counts
        return counts

    def _is_wanted_mode(self) -> bool:
        if self._train_only or self._eval_only:
            return bool(self._model.training) == self._train_only
        return True


class _PerThread:
    """A thread-local attribute; a thread that never set it reads the value that was set last."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, source: Any, owner: type | None = None) -> Any:
        name = self._name
        mine = source.own.__dict__
        return mine[name] if name in mine else getattr(source.latest, name)

    def __set__(self, source: Any, value: Any) -> None:
        setattr(source.own, self._name, value)
        setattr(source.latest, self._name, value)


class ForwardSource(ModuleSource):
    """A module source whose iterations count outermost forwards. Threads share the count, and each records
    its values under the iteration of its own forward."""

    step: int = _PerThread()  # type: ignore[assignment]
    is_idle: bool = _PerThread()  # type: ignore[assignment]
    is_special: bool = _PerThread()  # type: ignore[assignment]

    def __init__(self, model: Any, wanted: Sequence[SelectedSite], **options: Any) -> None:
        self.own, self.latest = threading.local(), SimpleNamespace()
        self._begin_lock = threading.Lock()
        super().__init__(model, wanted, **options)
        self._call_code = getattr(getattr(type(self.model), "_call_impl", None), "__code__", None)
        self.step = FIRST_ITERATION

    def begin_step(self) -> None:
        if self._is_nested_call():
            return
        with self._begin_lock:
            self.own.__dict__.clear()  # the next iteration follows the last one of all threads
            super().begin_step()

    def _is_nested_call(self) -> bool:
        """Is this call nested in another call of the model? Read from the stack: a counter would stay wrong
        after an interrupt."""
        frame, calls = sys._getframe(2), 0
        while frame is not None and calls < 2:
            calls += frame.f_code is self._call_code and frame.f_locals.get("self") is self.model
            frame = frame.f_back  # type: ignore[assignment]
        return calls == 2
