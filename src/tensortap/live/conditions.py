"""Conditions that a session set, evaluated in the job: what holds is told, sent or dumped."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.keep import copy_on_write
from tensortap.kernels.statistics import Statistics
from tensortap.live.asked import Asked, Clock, Placed, measured
from tensortap.live.offers import Offer
from tensortap.live.parcels import Budget
from tensortap.live.requests import Request
from tensortap.live.subscriptions import Subscription

_MOST_HELD = 64 << 20  # bytes of one step, until it is known whether the condition holds
Dump = Callable[[Record], str]


class _Part(Placed):
    """What one pattern of the condition sees."""

    def __init__(self, pattern: str, whole: Watched, clock: Clock) -> None:
        super().__init__((pattern,), whole.request.every, clock)
        self._pattern, self._whole = pattern, whole

    def take(self, record: Record) -> None:
        self._whole.see(self._pattern, record)

    def tell(self, key: str, text: str) -> None:
        self._whole.tell(key, text)

    def tell_found(self) -> None:
        if not self._has_sites and not self._whole.is_looking:
            self._whole.tell_found()


class Watched(Asked):
    """A condition. Where what holds once cannot cease to, it is told at that value, else after the step."""

    def __init__(self, request: Request, budget: Budget, clock: Clock, dump: Dump) -> None:
        super().__init__(request, budget, clock)
        self._condition = request.parsed_condition
        self._parts = [_Part(pattern, self, clock) for pattern in self._condition.patterns]
        self._dump = dump
        self._seen: defaultdict[str, dict[str, Statistics]] = defaultdict(dict)
        self._held: deque[tuple[Record, int]] = deque()
        self._held_bytes = 0
        self._firing: list[Subscription] | None = None

    def start(self, offers: Iterable[Offer], beginning: Offer | None) -> None:
        offered = list(offers)
        for part in self._parts:
            part.start(offered, beginning)

    @property
    def is_looking(self) -> bool:
        return any(part.is_looking for part in self._parts)

    def stop(self) -> None:
        for part in self._parts:
            part.stop()

    def end_step(self) -> str:
        if self._firing is None and self._seen and self._condition.holds(self._seen):
            self._fire(next(iter(self._held), (None, 0))[0])
        self._seen.clear()
        self._held.clear()
        self._held_bytes, self._firing = 0, None
        for one in self.subscriptions:
            one.end_step()
        return next(filter(None, [part.end_step() for part in self._parts]), "")

    def see(self, pattern: str, record: Record) -> None:
        self._seen[pattern][f"{record.name}@{record.call}"] = measured(record.value)
        if self._firing is not None:
            self._hand_on(record)
            return
        self._hold(record)
        if self._condition.grows and self._condition.holds(self._seen):
            self._fire(record)

    def _hold(self, record: Record) -> None:
        """Until the condition is decided; the oldest of a step that is too large are let go."""
        if self.request.then == "tell":
            self._held.clear()
            self._held.append((record.with_value(None), 0))
            return
        nbytes = framework_of(record.value).describe(record.value).nbytes
        self._held.append((record.with_value(copy_on_write(record.value)), nbytes))
        self._held_bytes += nbytes
        while self._held_bytes > _MOST_HELD and len(self._held) > 1:
            self._held_bytes -= self._held.popleft()[1]

    def _fire(self, record: Record | None) -> None:
        self._firing = [one for one in self.subscriptions if one.may_fire()]
        held, self._held = self._held, deque()
        places = (
            [] if self.request.then == "tell" or not self._firing else [self._hand_on(one) for one, _ in held]
        )
        where = next(filter(None, places), "")
        step, name = (record.step, record.name) if record is not None else (self._clock.step, "")
        more = f" at {name!r}" if self._condition.grows and name else ""
        text = f"{self.request.condition} holds in step {step}{more}{f'; dumped to {where}' if where else ''}"
        for one in self._firing:
            one.tell("fired", text, step=step if isinstance(step, int) else 0)

    def _hand_on(self, record: Record) -> str:
        if not self._firing or self.request.then == "tell":
            return ""
        if self.request.then == "dump":
            return self._dump(record)
        wanting = [one for one in self._firing if one.wants(record)]
        if wanting:
            self.send(record, record.value, wanting)
        return ""
