"""A tap that sessions asked for: captures in the running job, and the sink that sends what they see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.core.paths import matches_pattern
from tensortap.core.record import Record
from tensortap.core.steps import declared_step
from tensortap.frameworks.keep import detached_reference, summarise_value
from tensortap.kernels.statistics import Statistics
from tensortap.live.offers import Offer
from tensortap.live.pace import Pace
from tensortap.live.parcels import Budget
from tensortap.live.requests import Request
from tensortap.live.subscriptions import Subscription
from tensortap.recording.capture import Capture
from tensortap.sources.selection import selection
from tensortap.stages.select import every

_HOOK_SECONDS = 5e-6  # what a hook takes around the sink, which is what is measured
log = logging.getLogger("tensortap.live")


class Clock:
    """Which step it is, and how much time live sessions have cost."""

    def __init__(self) -> None:
        self.step = 0
        self.spent = 0.0


class Sender:
    """A sink around a function, which gets values as they are and is done with them when it returns."""

    def __init__(self, write: Callable[[Record], None]) -> None:
        self.write = write

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Placed:
    """Captures of one request on all offers, from `start` to `stop`; each record goes to `take`."""

    def __init__(self, patterns: Sequence[str], step_interval: int, clock: Clock) -> None:
        self._patterns, self._every, self._clock = tuple(patterns), step_interval, clock
        self._captures: list[Capture] = []
        self._has_sites = self._came = False
        self._problem = ""
        self._steps_in_vain = 0

    def start(self, offers: Iterable[Offer], beginning: Offer | None) -> None:
        """Place the hooks; what no offer has may still be something that `tt.tap` shows."""
        for offer in offers:
            known = self._known(offer.model)
            if not known:
                continue
            capture = self._capture(offer.model, known)
            capture.start_within(offer.forwards, has_begun=offer is beginning)
            self._captures.append(capture)
        self._has_sites = bool(self._captures)
        if not self._captures:
            capture = self._capture(None, self._patterns)  # raises for a function that is not there
            capture.start_within(0, has_begun=False)
            self._captures.append(capture)
            self._has_sites = any(":" in one for one in self._patterns)

    def stop(self) -> None:
        for capture in self._captures:
            try:
                capture.stop()
            except Exception:
                log.exception("a capture that a session asked for did not end properly; the program goes on")
        self._captures = []

    @property
    def is_looking(self) -> bool:
        """Whether nothing offered has that name, and `tt.tap` may or may not."""
        return not (self._has_sites or self._came)

    def end_step(self) -> str:
        """Between two steps; a reason when nothing can come of it."""
        if not self.is_looking:
            return ""
        self._steps_in_vain += 1
        return self._nothing() if self._steps_in_vain > 1 else ""

    def take(self, record: Record) -> None:
        raise NotImplementedError

    def tell(self, key: str, text: str) -> None:
        raise NotImplementedError

    def tell_found(self) -> None:
        """The first record has come."""

    def _known(self, model: Any) -> list[str]:
        """The patterns that mean something in this model; of the others the first problem is kept."""
        known, excluding = [], [one for one in self._patterns if one.startswith("!")]
        for pattern in self._patterns:
            try:
                if pattern not in excluding and selection(model, [pattern]):
                    known.append(pattern)
            except (TensortapError, ValueError, TypeError) as error:
                self._problem = self._problem or str(error)
        return [*known, *excluding] if known else []

    def _capture(self, model: Any, patterns: Sequence[str]) -> Capture:
        # Every capture hears what `tt.tap` shows; one of them is enough.
        write = self._see if self._captures else self._see_and_hear
        when = every(self._every) if self._every > 1 else None
        return Capture(model, tuple(patterns), None, when, None, False, "eager", Sender(write))

    def _see_and_hear(self, record: Record) -> None:
        if record.kind != "value":
            self._see(record)
        elif any(matches_pattern(pattern, record.name) for pattern in self._patterns):
            step = self._clock.step if declared_step() is None else record.step
            if isinstance(step, int) and step % self._every == 0:
                self._timed(record._replace(step=step))

    def _see(self, record: Record) -> None:
        if record.kind != "value":
            self._timed(record)

    def _timed(self, record: Record) -> None:
        start = perf_counter()
        if not self._came:
            self._came = True
            self.tell_found()
        try:
            self.take(record)
        except UnsupportedValueError as error:
            self.tell(record.name, f"{record.name}: {error}")
        except (IndexError, TypeError, RuntimeError, ValueError) as error:
            self.tell(record.name, f"{record.name}: {type(error).__name__}: {error}")
        finally:
            self._clock.spent += perf_counter() - start + _HOOK_SECONDS

    def _nothing(self) -> str:
        what = " ".join(map(repr, self._patterns))
        hint = (
            "nothing is exposed; tt.expose(model) in the job does that"
            if not self._problem
            else self._problem
        )
        text = hint if self._problem else f"no site {what}: {hint}"
        return f"{text.replace('tt.sites(model)', 's.catalog()')}; no tt.tap showed it in a whole step either"


class Asked(Placed):
    """A tap with as many subscribers as asked for the same."""

    def __init__(self, request: Request, budget: Budget, clock: Clock) -> None:
        super().__init__(request.patterns, request.every, clock)
        self.request = request
        self.subscriptions: list[Subscription] = []
        self._budget = budget
        self._index = request.index
        self._told: set[str] = set()
        self._pace = Pace()

    def end_step(self) -> str:
        start = perf_counter()
        for one in self.subscriptions:
            one.end_step()
        self._pace.spend_between(perf_counter() - start)
        return super().end_step()

    def take(self, record: Record) -> None:
        """Send it to those who have credit for it; a snapshot is made once, if at all."""
        if not self._pace.allows(record.step, self.request.every):
            for one in self.subscriptions:
                one.skipped += 1
            return
        wanting = [one for one in self.subscriptions if one.wants(record)]
        if wanting:
            start = perf_counter()
            self.send(record, self._kept(record.value), wanting)
            self._pace.spend(record.step, perf_counter() - start)

    def keep_pace(self, most: float) -> None:
        """Take fewer steps where those taken cost more than that share of the job's time."""
        told = self._pace.judge(most)
        for one in self.subscriptions if told else ():
            one.tell("problem", told)

    def send(self, record: Record, value: Any, wanting: Sequence[Subscription]) -> None:
        parcel = self._budget.parcel(record, value)
        takers = [one for one in wanting if parcel is not None and one.has_room(parcel.nbytes)]
        for one in wanting:
            if one not in takers:
                one.skip(record.name)
        if parcel is None:
            return
        if not takers:
            parcel.withdraw()
        parcel.readers = len(takers)  # before the first is told: it may be done with it at once
        for one in takers:
            one.send(parcel)

    def tell(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            for one in self.subscriptions:
                one.tell("problem", text[:1000])

    def tell_found(self) -> None:
        if not self._has_sites:
            for one in self.subscriptions:
                one.tell("armed")

    def _kept(self, value: Any) -> Any:
        if self._index is not None:
            return detached_reference(value)[self._index]
        return told(value) if self.request.keep == "stats" else value


def told(value: Any) -> dict[str, Any]:
    """The few numbers of a value, as they travel."""
    found = measured(value)
    return {name: getattr(found, name) for name in Statistics.__dataclass_fields__}


def measured(value: Any) -> Statistics:
    found = summarise_value(value)
    return found if isinstance(found, Statistics) else found.statistics
