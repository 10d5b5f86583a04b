"""What one session gets of one tap: credits, and the count of what it did not get."""

from __future__ import annotations

from typing import Any, Protocol

from tensortap.core.record import Record
from tensortap.live.job.outgoing import OutgoingValue
from tensortap.live.protocol import Request
from tensortap.transport.frames import FrameKind, encode_head

WINDOW = 2  # steps on their way
WINDOW_BYTES = 64 << 20


class Connection(Protocol):
    """The way to a session, as the program's threads see it."""

    is_open: bool

    def enqueue(
        self, frame: bytes, outgoing: OutgoingValue | None = None, subscription: Any = None
    ) -> None: ...


class Subscription:
    """A credit is one step: all that the tap sees in it, as far as the bytes allow. Counters have one writer
    each, the program (`used`, `put`, `skipped`) or the link thread (`granted`, `done`, `dropped`)."""

    def __init__(
        self, number: int, request: Request, connection: Connection, first: int | None, is_sticky: bool
    ) -> None:
        self.number, self.request, self.connection = number, request, connection
        self.is_sticky = is_sticky
        self.is_over = False
        self.granted, self.used = WINDOW, 0
        self.queued_bytes = self.finished_bytes = 0
        self.skipped = self.dropped = self.sent = 0
        self._steps_left = first  # steps
        self._step: Any = None
        self._is_sending = False
        self._starved: set[str] = set()

    @property
    def is_done(self) -> bool:
        """All steps that were asked for have been taken."""
        return self._steps_left == 0 and not self._is_sending

    def end_step(self) -> None:
        """Tell the session that it has all of a step: now it may grant another."""
        if self._is_sending and self.connection.is_open:
            self.connection.enqueue(
                encode_head(FrameKind.CREDIT, {"tap": self.number, "skipped": self.skipped})
            )
        self._step, self._is_sending = None, False

    def may_fire(self) -> bool:
        """Whether a condition that holds in this step is of interest; each time counts."""
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
        # Where the bytes do not suffice for a step, those go first that were left out the last time.
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
        self._step = step
        is_counted = self._steps_left is not None and not self.request.condition
        self._is_sending = not (is_counted and self._steps_left == 0) and self.used < self.granted
        if self._is_sending:
            self.used += 1
            if self._steps_left is not None and is_counted:
                self._steps_left -= 1
