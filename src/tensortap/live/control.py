"""Between two steps: what sessions asked for is begun and ended there, by the program's own thread."""

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
from tensortap.live.asked import Asked, Clock, Placed
from tensortap.live.conditions import Watched
from tensortap.live.offers import Offer, Offers, Place
from tensortap.live.pace import SHARE
from tensortap.live.parcels import Budget
from tensortap.live.requests import Request
from tensortap.live.subscriptions import Subscription
from tensortap.sinks.run_directory import RunDirectory

log = logging.getLogger("tensortap.live")
Target = str | os.PathLike[str] | Callable[[Record], object]


class Control:
    """The link thread leaves letters in `mail`; the program reads them at `at_step` and `at_forward`."""

    def __init__(
        self, offers: Offers, budget: Budget, dump_to: Target, label: str, share: float | None = SHARE
    ) -> None:
        self.clock = Clock()
        self.seen: dict[str, Place] = {}
        self.surveys = 0
        self.steps, self.stepping = 0, 0.0  # how many, and how many seconds they took
        self._offers, self._budget = offers, budget
        self._dump_to, self._label, self._share = dump_to, label, share
        self._dumps: Tap | None = None
        self._mail: deque[Callable[[Offer | None], None]] = deque()
        self._asked: dict[Request, Asked] = {}
        self._survey: Survey | None = None
        self._began = 0.0
        self._looking = threading.Lock()

    def leave(self, letter: Callable[[Offer | None], None]) -> None:
        self._mail.append(letter)

    def at_step(self) -> None:
        """The program said that a step begins."""
        self.clock.step = declared_step() or 0
        self._count()
        if self._mail or self._asked or self._survey:
            self._guarded(None, True)

    def at_forward(self, offer: Offer) -> None:
        """The forward of an offered model begins; without `tt.step()` that is the next step."""
        is_step = declared_step() is None
        if is_step:
            self.clock.step = offer.forwards
            self._count()
        if self._mail or (is_step and (self._asked or self._survey)):
            self._guarded(offer, is_step)

    def subscribe(self, subscription: Subscription) -> None:
        self.leave(lambda offer: self._subscribe(subscription, offer))

    def unsubscribe(self, subscription: Subscription, why: str, keeps_sticky: bool = False) -> None:
        subscription.is_over = not (keeps_sticky and subscription.is_sticky)
        self.leave(lambda _: self._end(subscription, why) if subscription.is_over else None)

    def end_sticky(self) -> None:
        """End what outlived its sessions."""
        for asked in list(self._asked.values()):
            for one in asked.subscriptions:
                if not one.line.is_open:
                    self.unsubscribe(one, "another session ended it")

    def survey(self) -> None:
        """Learn the shapes of one step; no value is kept."""
        self.leave(self._begin_survey)

    def close(self, *, is_shared: bool = False) -> None:
        """End every tap at once; in the child of a fork, the dumps are the parent's to close."""
        for asked in list(self._asked.values()):
            asked.stop()
        self._asked.clear()
        if self._survey is not None:
            self._survey.stop()
        if self._dumps is not None and not is_shared:
            self._dumps.close()

    def dump(self, record: Record) -> str:
        """Write it where the job said; the folder of it."""
        if callable(self._dump_to):
            self._dump_to(record)
            return "the job's run"
        path = Path(self._dump_to) / f"live-{self._label}-{os.getpid()}"
        if self._dumps is None:
            self._dumps = Tap(sinks=[RunDirectory(path, background=True, on_full="drop")], on_error="log")
        self._dumps.emit(record)
        return str(path)

    def _count(self) -> None:
        now = perf_counter()
        if self._began:
            self.steps += 1
            self.stepping += now - self._began
        self._began = now

    def _guarded(self, beginning: Offer | None, is_step: bool) -> None:
        """A guest between two steps: whatever fails is logged, and nobody waits for another thread."""
        if not self._looking.acquire(blocking=False):
            return
        start = perf_counter()
        try:
            if is_step:
                self._end_step()
            while self._mail:
                self._mail.popleft()(beginning)
        except Exception:
            log.exception("a request of a live session failed; the program goes on")
        finally:
            self._looking.release()
            self.clock.spent += perf_counter() - start

    def _end_step(self) -> None:
        if self._survey is not None and self._survey.has_seen_a_step():
            self._survey.stop()
            self._survey = None
            self.surveys += 1
        for asked in list(self._asked.values()):
            if self._share is not None:
                asked.keep_pace(self._share / len(self._asked))
            reason = asked.end_step()
            for one in list(asked.subscriptions):
                if reason:
                    self._end(one, reason, "refused")
                elif one.is_done:
                    self._end(one, "all that was asked for has come", "done")

    def _subscribe(self, subscription: Subscription, beginning: Offer | None) -> None:
        asked = self._asked.get(subscription.request)
        if subscription.is_over:
            return
        if asked is None:
            asked = self._make(subscription.request)
            try:
                asked.start(self._offers, beginning)
            except (TensortapError, ValueError, TypeError, RuntimeError) as error:
                asked.stop()
                subscription.tell("refused", str(error))
                return
            self._asked[subscription.request] = asked
        asked.subscriptions.append(subscription)
        subscription.tell("looking" if asked.is_looking else "armed")

    def _make(self, request: Request) -> Asked:
        if request.condition:
            return Watched(request, self._budget, self.clock, self.dump)
        return Asked(request, self._budget, self.clock)

    def _end(self, subscription: Subscription, why: str, state: str = "ended") -> None:
        subscription.is_over = True
        asked = self._asked.get(subscription.request)
        if asked is None or subscription not in asked.subscriptions:
            return
        asked.subscriptions.remove(subscription)
        subscription.tell(state, why)
        if not asked.subscriptions:
            del self._asked[subscription.request]
            asked.stop()

    def _begin_survey(self, beginning: Offer | None) -> None:
        plain = [offer for offer in self._offers if not offer.is_compiled]
        if self._survey is None:
            self._survey = Survey(self.seen, self.clock, steps=2 if beginning is not None else 1)
            self._survey.start(plain, beginning)


class Survey(Placed):
    """Looks at shapes for a whole step; one that has begun already does not show what the model was given."""

    def __init__(self, seen: dict[str, Place], clock: Clock, steps: int) -> None:
        super().__init__(("**", "**.in"), 1, clock)
        self._seen, self._steps = seen, steps

    def has_seen_a_step(self) -> bool:
        self._steps -= 1
        return self._steps <= 0

    def take(self, record: Record) -> None:
        told: Any = framework_of(record.value).describe(record.value)
        self._seen[record.name] = Place(record.name, record.kind, "", told.dtype, tuple(told.shape))

    def tell(self, key: str, text: str) -> None:
        log.debug("not surveyed: %s", text)
