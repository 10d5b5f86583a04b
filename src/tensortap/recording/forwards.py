"""The forwards of a traced model: which of them count, and under which iteration its values are kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tensortap.sources.hooks.modules import Modules
from tensortap.sources.sites import Wanted

FIRST_ITERATION = 1  # iterations count forwards from one


class TraceSchedule:
    """Which forwards are traced: every `interval`-th, of training or of evaluation or of both.

    Those of the other mode do not count towards gathering, and none is due while they run: often rank 0
    evaluates alone, and the others would not come.
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
        """Asked when a forward begins."""
        self._is_ours = self._is_wanted_mode()
        return not self._is_ours or iteration % self._interval != 0

    def counts_for_gathering(self, iteration: int) -> bool:
        """Asked when it is over, before the next one begins."""
        self._is_due = self._is_due or self._is_ours
        counts = self._is_due and self._is_wanted_mode()
        self._is_due = self._is_due and not counts
        return counts

    def _is_wanted_mode(self) -> bool:
        if self._train_only or self._eval_only:
            return bool(self._model.training) == self._train_only
        return True


class _PerThread:
    """An attribute that each thread finds as it set it; one that never did, as it was set last."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, source: Any, owner: type | None = None) -> Any:
        name = self._name
        mine = source.own.__dict__
        return mine[name] if name in mine else getattr(source.latest, name)

    def __set__(self, source: Any, value: Any) -> None:
        setattr(source.own, self._name, value)
        setattr(source.latest, self._name, value)


class ForwardSource(Modules):
    """A call of the model within a call of it belongs to the outer one. Threads that call it at once count
    together, and each keeps its values under the iteration of its own forward."""

    step: int = _PerThread()  # type: ignore[assignment]
    is_resting: bool = _PerThread()  # type: ignore[assignment]
    is_special: bool = _PerThread()  # type: ignore[assignment]

    def __init__(self, model: Any, wanted: Sequence[Wanted], **options: Any) -> None:
        self.own, self.latest = threading.local(), SimpleNamespace()
        self._begin_lock = threading.Lock()
        super().__init__(model, wanted, **options)
        self._call_code = getattr(getattr(type(self.model), "_call_impl", None), "__code__", None)
        self.step = FIRST_ITERATION

    def begin_step(self) -> None:
        if self._is_nested_call():
            return
        with self._begin_lock:
            self.own.__dict__.clear()  # the next iteration comes after the last of all threads
            super().begin_step()

    def _is_nested_call(self) -> bool:
        """Whether another call of the model is under way around the one that begins. Looked for in the stack:
        a count of calls would be wrong for ever after an interrupt."""
        frame, calls = sys._getframe(2), 0
        while frame is not None and calls < 2:
            calls += frame.f_code is self._call_code and frame.f_locals.get("self") is self.model
            frame = frame.f_back  # type: ignore[assignment]
        return calls == 2
