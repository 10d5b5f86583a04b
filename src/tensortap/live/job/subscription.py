"""One session's subscription to one tap: flow control by credits, and counts of what was not sent."""

from __future__ import annotations

from typing import Any, Protocol

from tensortap.core.record import Record
from tensortap.live.job.outgoing import OutgoingValue
from tensortap.live.protocol import Request
from tensortap.transport.frames import FrameKind, encode_head

WINDOW = 2  # steps in flight
WINDOW_BYTES = 64 << 20


class FrameQueue(Protocol):
    """The part of a session's connection that the program's threads use."""

    is_open: bool

    def enqueue(
        self, frame: bytes, outgoing: OutgoingValue | None = None, subscription: Any = None
    ) -> None: ...


class Subscription:
    """A credit is one step: all its values, as far as the byte window allows. Each counter has one writer:
    the program (`used`, `queued_bytes`, `skipped`), or the socket thread (`granted`, `finished_bytes`,
    `dropped`)."""

    def __init__(
        self, number: int, request: Request, connection: FrameQueue, first: int | None, is_sticky: bool
    ) -> None:
        self.number, self.request, self.connection = number, request, connection
        self.is_sticky = is_sticky
        self.is_over = False
        self.granted, self.used = WINDOW, 0
        self.queued_bytes = self.finished_bytes = 0
        self.skipped = self.dropped = self.sent = 0
        self._steps_left = first
        self._step: Any = None
        self._is_sending = False
        self._starved: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Have all requested steps been sent?"""
        return self._steps_left == 0 and not self._is_sending

    def end_step(self) -> None:
        """Tell the session that a step is complete, so that it can grant another credit."""
        if self._is_sending and self.connection.is_open:
            self.connection.enqueue(
                encode_head(FrameKind.CREDIT, {"tap": self.number, "skipped": self.skipped})
            )
        self._step, self._is_sending = None, False

    def may_fire(self) -> bool:
        """May the condition fire in this step? Counts as one of the requested times."""
        if self.is_over or self._steps_left == 0:
            return False
        self._steps_left = None if self._steps_left is None else self._steps_left - 1
        return True

    def wants(self, record: Record) -> bool:
        if self.is_over or not self.connection.is_open:
            return False
        if record.step != self._step:
            self._begin_step(record.step)
        if not self._is_sending:
            self.skipped += self._steps_left != 0
            return False
        # If the byte window is too small for a step, names skipped last time go first.
        if self._starved and record.name not in self._starved:
            self.skipped += 1
            return False
        return True

    def skip(self, name: str) -> None:
        self.skipped += 1
        self._starved.add(name)

    def has_room(self, nbytes: int) -> bool:
        pending = self.queued_bytes - self.finished_bytes
        return not pending or pending + nbytes <= WINDOW_BYTES

    def send(self, outgoing: OutgoingValue) -> None:
        self._starved.discard(outgoing.name)
        meta = {**outgoing.meta, "tap": self.number, "skipped": self.skipped, "dropped": self.dropped}
        self.queued_bytes += outgoing.nbytes
        self.connection.enqueue(encode_head(FrameKind.DATA, meta, outgoing.nbytes), outgoing, self)

    def send_event(self, state: str, text: str = "", **more: Any) -> None:
        if self.connection.is_open:
            self.connection.enqueue(
                encode_head(FrameKind.EVENT, {"tap": self.number, "state": state, "text": text, **more})
            )

    def _begin_step(self, step: Any) -> None:
        if self._is_sending:  # forwards in several threads: the step of another one, whose credit is used up
            self.end_step()
        self._step = step
        is_counted = self._steps_left is not None and not self.request.condition
        self._is_sending = not (is_counted and self._steps_left == 0) and self.used < self.granted
        if self._is_sending:
            self.used += 1
            if self._steps_left is not None and is_counted:
                self._steps_left -= 1
