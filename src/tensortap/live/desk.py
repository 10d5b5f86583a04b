"""What the link thread answers to a session: the catalog at once, all else by a letter to the program."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.core.paths import matches_pattern
from tensortap.formats.link import Frame
from tensortap.formats.wire import Kind, head
from tensortap.live.control import Control
from tensortap.live.discovery import Job
from tensortap.live.line import SessionLine
from tensortap.live.offers import Offers, Place
from tensortap.live.requests import count_of, request_of
from tensortap.live.subscriptions import Subscription

_MOST_TAPS = 1000  # of one session
_ROWS_OF_A_FRAME = 2000
_RECENT = 64
_SHORT = 0.2  # seconds, too few for a rate


class Desk:
    def __init__(self, job: Job, control: Control, offers: Offers) -> None:
        self.job = job
        self._control, self._offers = control, offers
        self._last = (time.monotonic(), 0, 0.0, 0.0)  # when, steps, their seconds, ours
        self._rate = 0.0
        self._overhead: float | None = None

    def answer(self, line: SessionLine, frame: Frame) -> None:
        answers = {
            Kind.TAP: self._tap,
            Kind.UNTAP: self._untap,
            Kind.CREDIT: self._credit,
            Kind.CATALOG: self._catalog,
            Kind.PING: self._ping,
            Kind.STATS: self._stats,
        }
        if frame.kind is Kind.BYE:
            raise ConnectionError("the session said goodbye")
        try:
            if frame.kind in answers:
                answers[frame.kind](line, frame.meta)
        except (TensortapError, ValueError, TypeError) as error:
            kind = "refused" if isinstance(error, PermissionError) else "value"
            line.post(head(Kind.ERR, {**_of(frame.meta), "kind": kind, "error": str(error)[:2000]}))

    def forget(self, line: SessionLine) -> None:
        for one in line.subscriptions.values():
            self._control.unsubscribe(one, "the session has gone", keeps_sticky=True)
        line.subscriptions.clear()

    def tell_all(self, lines: Sequence[SessionLine]) -> None:
        """How the job is doing: since the last time that was told."""
        then, steps, stepping, spent = self._last
        control = self._control
        self._last = (time.monotonic(), control.steps, control.stepping, control.clock.spent)
        seconds = control.stepping - stepping
        self._rate = (control.steps - steps) / max(self._last[0] - then, 1e-6)
        self._overhead = (control.clock.spent - spent) / seconds if seconds else None
        for line in lines:
            self._report(line)

    def _report(self, line: SessionLine) -> None:
        now = {"step": self._control.clock.step, "rate": self._rate, "overhead": self._overhead}
        line.post(head(Kind.STATS, {**now, **_counts(line)}))

    def _tap(self, line: SessionLine, meta: dict[str, Any]) -> None:
        number = meta.get("tap")
        if type(number) is not int or number in line.subscriptions or len(line.subscriptions) >= _MOST_TAPS:
            raise ValueError(f"a tap needs a number of its own, and a session has at most {_MOST_TAPS}")
        request = request_of(meta)
        subscription = Subscription(
            number, request, line, count_of(meta, "first", None), bool(meta.get("sticky"))
        )
        line.subscriptions[number] = subscription
        self._control.subscribe(subscription)
        line.post(head(Kind.OK, _of(meta)))

    def _untap(self, line: SessionLine, meta: dict[str, Any]) -> None:
        if meta.get("tap") == "*":
            self._control.end_sticky()
            ended = list(line.subscriptions)
        else:
            ended = [number for number in [meta.get("tap")] if number in line.subscriptions]
        for number in ended:
            self._control.unsubscribe(line.subscriptions.pop(number), "the session ended it")
        line.post(head(Kind.OK, _of(meta)))

    def _credit(self, line: SessionLine, meta: dict[str, Any]) -> None:
        subscription = line.subscriptions.get(meta.get("tap", -1))
        if subscription is not None and subscription.granted - subscription.used < _RECENT:
            subscription.granted += 1

    def _ping(self, line: SessionLine, meta: dict[str, Any]) -> None:
        line.post(head(Kind.PING, _of(meta)))

    def _stats(self, line: SessionLine, meta: dict[str, Any]) -> None:
        if time.monotonic() - self._last[0] > _SHORT:
            self.tell_all([line])
        else:
            self._report(line)
        line.post(head(Kind.OK, _of(meta)))

    def _catalog(self, line: SessionLine, meta: dict[str, Any]) -> None:
        if meta.get("survey"):
            self._control.survey()
        pattern = meta.get("pattern") or ""
        if type(pattern) is not str or len(pattern) > 500:
            raise ValueError("a pattern is a text of at most 500 letters")
        rows = [_row(place) for place in self._places() if _is_meant(pattern, place.name)]
        for start in range(0, len(rows) or 1, _ROWS_OF_A_FRAME):
            told = {
                **_of(meta),
                "rows": rows[start : start + _ROWS_OF_A_FRAME],
                "more": start + _ROWS_OF_A_FRAME < len(rows),
                "surveys": self._control.surveys,
            }
            line.post(head(Kind.CATALOG, told))

    def _places(self) -> Iterator[Place]:
        seen, names = dict(self._control.seen), set[str]()
        for offer in self._offers:
            for place in offer.places:
                names.add(place.name)
                found = seen.pop(place.name, None)
                is_news = found is not None and place.shape is None
                yield place._replace(dtype=found.dtype, shape=found.shape) if is_news and found else place
        # What tt.tap shows, and parts of nested values; others are of models that are gone.
        yield from (
            one for one in seen.values() if one.kind == "value" or one.name.partition("[")[0] in names
        )


def _is_meant(pattern: str, name: str) -> bool:
    """A pattern of the grammar, or a part of the name."""
    return not pattern or pattern in name or matches_pattern(pattern, name)


def _row(place: Place) -> list[Any]:
    return [
        place.name,
        place.kind,
        place.module_class,
        place.dtype,
        None if place.shape is None else list(place.shape),
    ]


def _of(meta: dict[str, Any]) -> dict[str, Any]:
    number = meta.get("id")
    return {"id": number} if type(number) is int else {}


def _counts(line: SessionLine) -> dict[str, int]:
    taps = list(line.subscriptions.values())
    return {
        "taps": len(taps),
        "skipped": sum(one.skipped for one in taps),
        "dropped": sum(one.dropped for one in taps),
        "sent": sum(one.sent for one in taps),
    }
