"""Handle requests of sessions in the socket thread; taps are queued as commands for the program."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.core.patterns import matches_pattern
from tensortap.live.discovery import Job
from tensortap.live.job.connection import SessionConnection
from tensortap.live.job.control import Control
from tensortap.live.job.exposed import ExposedModels
from tensortap.live.job.subscription import Subscription
from tensortap.live.protocol import CatalogEntry, parse_count, parse_request
from tensortap.transport.connection import Frame
from tensortap.transport.frames import FrameKind, encode_head

_MAX_TAPS = 1000  # of one session
_ROWS_PER_FRAME = 2000
_MAX_CREDIT = 64
_MIN_RATE_SECONDS = 0.2  # shorter intervals give no meaningful rate


class RequestHandler:
    def __init__(self, job: Job, control: Control, exposed_models: ExposedModels) -> None:
        self.job = job
        self._control, self._exposed_models = control, exposed_models
        self._last_report = (time.monotonic(), 0, 0.0, 0.0)  # time, steps, step seconds, our seconds
        self._rate = 0.0
        self._overhead: float | None = None

    def handle(self, connection: SessionConnection, frame: Frame) -> None:
        handlers = {
            FrameKind.TAP: self._tap,
            FrameKind.UNTAP: self._untap,
            FrameKind.CREDIT: self._credit,
            FrameKind.CATALOG: self._catalog,
            FrameKind.PING: self._ping,
            FrameKind.STATS: self._stats,
        }
        if frame.kind is FrameKind.BYE:
            raise ConnectionError("the session said goodbye")
        try:
            if frame.kind in handlers:
                handlers[frame.kind](connection, frame.meta)
        except (TensortapError, ValueError, TypeError) as error:
            kind = "refused" if isinstance(error, PermissionError) else "value"
            connection.enqueue(
                encode_head(
                    FrameKind.ERR, {**_request_id(frame.meta), "kind": kind, "error": str(error)[:2000]}
                )
            )

    def drop_session(self, connection: SessionConnection) -> None:
        for subscription in connection.subscriptions.values():
            self._control.unsubscribe(subscription, "the session has gone", keeps_sticky=True)
        connection.subscriptions.clear()

    def report_stats(self, connections: Sequence[SessionConnection]) -> None:
        """Send step rate and overhead since the last report to all sessions."""
        last_time, steps, step_seconds, spent_seconds = self._last_report
        control = self._control
        self._last_report = (
            time.monotonic(),
            control.steps,
            control.step_seconds,
            control.clock.spent_seconds,
        )
        seconds = control.step_seconds - step_seconds
        self._rate = (control.steps - steps) / max(self._last_report[0] - last_time, 1e-6)
        self._overhead = (control.clock.spent_seconds - spent_seconds) / seconds if seconds else None
        for connection in connections:
            self._send_stats(connection)

    def _send_stats(self, connection: SessionConnection) -> None:
        stats = {"step": self._control.clock.step, "rate": self._rate, "overhead": self._overhead}
        connection.enqueue(encode_head(FrameKind.STATS, {**stats, **_tap_counts(connection)}))

    def _tap(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        number = meta.get("tap")
        if (
            type(number) is not int
            or number in connection.subscriptions
            or len(connection.subscriptions) >= _MAX_TAPS
        ):
            raise ValueError(f"a tap needs a number of its own, and a session has at most {_MAX_TAPS}")
        request = parse_request(meta)
        subscription = Subscription(
            number, request, connection, parse_count(meta, "first", None), bool(meta.get("sticky"))
        )
        connection.subscriptions[number] = subscription
        self._control.subscribe(subscription)
        connection.enqueue(encode_head(FrameKind.OK, _request_id(meta)))

    def _untap(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        if meta.get("tap") == "*":
            self._control.end_sticky()
            ended = list(connection.subscriptions)
        else:
            ended = [number for number in [meta.get("tap")] if number in connection.subscriptions]
        for number in ended:
            self._control.unsubscribe(connection.subscriptions.pop(number), "the session ended it")
        connection.enqueue(encode_head(FrameKind.OK, _request_id(meta)))

    def _credit(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        subscription = connection.subscriptions.get(meta.get("tap", -1))
        if subscription is not None and subscription.granted - subscription.used < _MAX_CREDIT:
            subscription.granted += 1

    def _ping(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        connection.enqueue(encode_head(FrameKind.PING, _request_id(meta)))

    def _stats(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        if time.monotonic() - self._last_report[0] > _MIN_RATE_SECONDS:
            self.report_stats([connection])
        else:
            self._send_stats(connection)
        connection.enqueue(encode_head(FrameKind.OK, _request_id(meta)))

    def _catalog(self, connection: SessionConnection, meta: dict[str, Any]) -> None:
        if meta.get("survey"):
            self._control.survey()
        pattern = meta.get("pattern") or ""
        if type(pattern) is not str or len(pattern) > 500:
            raise ValueError("a pattern is a text of at most 500 letters")
        rows = [_catalog_row(entry) for entry in self._catalog_entries() if _is_match(pattern, entry.name)]
        for start in range(0, len(rows) or 1, _ROWS_PER_FRAME):
            page = {
                **_request_id(meta),
                "rows": rows[start : start + _ROWS_PER_FRAME],
                "more": start + _ROWS_PER_FRAME < len(rows),
                "surveys": self._control.surveys,
            }
            connection.enqueue(encode_head(FrameKind.CATALOG, page))

    def _catalog_entries(self) -> Iterator[CatalogEntry]:
        surveyed, names = dict(self._control.surveyed), set[str]()
        for model in self._exposed_models:
            for entry in model.catalog_entries:
                names.add(entry.name)
                with_shape = surveyed.pop(entry.name, None)
                adds_shape = with_shape is not None and entry.shape is None
                yield (
                    entry._replace(dtype=with_shape.dtype, shape=with_shape.shape)
                    if adds_shape and with_shape
                    else entry
                )
        # Tapped values and leaves of nested values; other entries belong to collected models.
        yield from (
            surveyed_entry
            for surveyed_entry in surveyed.values()
            if surveyed_entry.kind == "value" or surveyed_entry.name.partition("[")[0] in names
        )


def _is_match(pattern: str, name: str) -> bool:
    """Does the name match the pattern, or contain it?"""
    return not pattern or pattern in name or matches_pattern(pattern, name)


def _catalog_row(entry: CatalogEntry) -> list[Any]:
    return [
        entry.name,
        entry.kind,
        entry.module_class,
        entry.dtype,
        None if entry.shape is None else list(entry.shape),
    ]


def _request_id(meta: dict[str, Any]) -> dict[str, Any]:
    number = meta.get("id")
    return {"id": number} if type(number) is int else {}


def _tap_counts(connection: SessionConnection) -> dict[str, int]:
    taps = list(connection.subscriptions.values())
    return {
        "taps": len(taps),
        "skipped": sum(subscription.skipped for subscription in taps),
        "dropped": sum(subscription.dropped for subscription in taps),
        "sent": sum(subscription.sent for subscription in taps),
    }
