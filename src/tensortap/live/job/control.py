"""Start and stop requested taps between two steps, in the program's own thread."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.core.record import Record
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.live.job.exposed import ExposedModel, ExposedModels
from tensortap.live.job.outgoing import OutgoingBudget
from tensortap.live.job.subscription import Subscription
from tensortap.live.job.tap import DEFAULT_SHARE, ActiveCaptures, ConditionalTap, RequestedTap, StepClock
from tensortap.live.protocol import CatalogEntry, Request
from tensortap.sinks.run_directory import RunDirectory

log = logging.getLogger("tensortap.live")
DumpTarget = str | os.PathLike[str] | Callable[[Record], object]


class Control:
    """A queue of commands from the socket thread, which the program runs at `at_step` and `at_forward`."""

    def __init__(
        self,
        exposed_models: ExposedModels,
        budget: OutgoingBudget,
        dump_to: DumpTarget,
        label: str,
        share: float | None = DEFAULT_SHARE,
    ) -> None:
        self.clock = StepClock()
        self.surveyed: dict[str, CatalogEntry] = {}
        self.surveys = 0
        self.steps, self.step_seconds = 0, 0.0  # count, and total duration
        self._exposed_models, self._budget = exposed_models, budget
        self._dump_to, self._label, self._max_share = dump_to, label, share
        self._dump_tap: Tap | None = None
        self._commands: deque[Callable[[ExposedModel | None], None]] = deque()
        self._taps: dict[Request, RequestedTap] = {}
        self._survey: Survey | None = None
        self._step_start = 0.0
        self._is_busy = threading.Lock()

    def enqueue(self, command: Callable[[ExposedModel | None], None]) -> None:
        self._commands.append(command)

    def at_step(self) -> None:
        """The program called `tt.step()`."""
        self.clock.step = declared_step() or 0
        self._count_step()
        if self._commands or self._taps or self._survey:
            self._run_commands(None, True)

    def at_forward(self, model: ExposedModel) -> None:
        """The forward of an exposed model starts; without `tt.step()` that is the next step."""
        is_step = declared_step() is None
        if is_step:
            self.clock.step = model.forwards
            self._count_step()
        if self._commands or (is_step and (self._taps or self._survey)):
            self._run_commands(model, is_step)

    def subscribe(self, subscription: Subscription) -> None:
        self.enqueue(lambda running: self._subscribe(subscription, running))

    def unsubscribe(self, subscription: Subscription, reason: str, keeps_sticky: bool = False) -> None:
        subscription.is_over = not (keeps_sticky and subscription.is_sticky)
        self.enqueue(lambda _: self._end(subscription, reason) if subscription.is_over else None)

    def end_sticky(self) -> None:
        """End the sticky taps of sessions that have disconnected."""
        for tap in list(self._taps.values()):
            for subscription in tap.subscriptions:
                if not subscription.connection.is_open:
                    self.unsubscribe(subscription, "another session ended it")

    def survey(self) -> None:
        """Record the shapes of one step, without keeping values."""
        self.enqueue(self._begin_survey)

    def close(self, *, is_shared: bool = False) -> None:
        """End all taps; in a forked child (`is_shared`) the dump is left to the parent."""
        for tap in list(self._taps.values()):
            tap.stop()
        self._taps.clear()
        if self._survey is not None:
            self._survey.stop()
        if self._dump_tap is not None and not is_shared:
            self._dump_tap.close()

    def dump(self, record: Record) -> str:
        """Write the record to the job's dump target; return where it went."""
        if callable(self._dump_to):
            self._dump_to(record)
            return "the job's run"
        path = Path(self._dump_to) / f"live-{self._label}-{os.getpid()}"
        if self._dump_tap is None:
            self._dump_tap = Tap(sinks=[RunDirectory(path, background=True, on_full="drop")], on_error="log")
        self._dump_tap.emit(record)
        return str(path)

    def _count_step(self) -> None:
        now = perf_counter()
        if self._step_start:
            self.steps += 1
            self.step_seconds += now - self._step_start
        self._step_start = now

    def _run_commands(self, running: ExposedModel | None, is_step: bool) -> None:
        """Run the queued commands between two steps: failures are logged, and no thread waits for another."""
        if not self._is_busy.acquire(blocking=False):
            return
        start = perf_counter()
        try:
            if is_step:
                self._end_step()
            while self._commands:
                self._commands.popleft()(running)
        except Exception:  # a guest between two steps of the program
            log.exception("a request of a live session failed; the program goes on")
        finally:
            self._is_busy.release()
            self.clock.spent_seconds += perf_counter() - start

    def _end_step(self) -> None:
        if self._survey is not None and self._survey.has_seen_a_step():
            self._survey.stop()
            self._survey = None
            self.surveys += 1
        for tap in list(self._taps.values()):
            if self._max_share is not None:
                tap.adjust_throttle(self._max_share / len(self._taps))
            reason = tap.end_step()
            for subscription in list(tap.subscriptions):
                if reason:
                    self._end(subscription, reason, "refused")
                elif subscription.is_done:
                    self._end(subscription, "all that was asked for has come", "done")

    def _subscribe(self, subscription: Subscription, running: ExposedModel | None) -> None:
        tap = self._taps.get(subscription.request)
        if subscription.is_over:
            return
        if tap is None:
            tap = self._create_tap(subscription.request)
            try:
                tap.start(self._exposed_models, running)
            except (TensortapError, ValueError, TypeError, RuntimeError) as error:
                tap.stop()
                subscription.send_event("refused", str(error))
                return
            self._taps[subscription.request] = tap
        tap.subscriptions.append(subscription)
        subscription.send_event("looking" if tap.is_searching else "armed")

    def _create_tap(self, request: Request) -> RequestedTap:
        if request.condition:
            return ConditionalTap(request, self._budget, self.clock, self.dump)
        return RequestedTap(request, self._budget, self.clock)

    def _end(self, subscription: Subscription, reason: str, state: str = "ended") -> None:
        subscription.is_over = True
        tap = self._taps.get(subscription.request)
        if tap is None or subscription not in tap.subscriptions:
            return
        tap.subscriptions.remove(subscription)
        subscription.send_event(state, reason)
        if not tap.subscriptions:
            del self._taps[subscription.request]
            tap.stop()

    def _begin_survey(self, running: ExposedModel | None) -> None:
        eager_models = [model for model in self._exposed_models if not model.is_compiled]
        if self._survey is None:
            self._survey = Survey(self.surveyed, self.clock, steps=2 if running is not None else 1)
            self._survey.start(eager_models, running)


class Survey(ActiveCaptures):
    """Records shapes for a whole step: one that has already started does not show the model's inputs."""

    def __init__(self, surveyed: dict[str, CatalogEntry], clock: StepClock, steps: int) -> None:
        super().__init__(("**", "**.in"), 1, clock)
        self._surveyed, self._steps = surveyed, steps

    def has_seen_a_step(self) -> bool:
        self._steps -= 1
        return self._steps <= 0

    def handle_record(self, record: Record) -> None:
        description: Any = framework_of(record.value).describe(record.value)
        self._surveyed[record.name] = CatalogEntry(
            record.name, record.kind, "", description.dtype, tuple(description.shape)
        )

    def report_problem(self, key: str, problem: str) -> None:
        log.debug("not surveyed: %s", problem)
