"""The job's end of a connection to a session: what waits to be sent, and sending without ever waiting."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tensortap.live.job.outgoing import OutgoingValue
from tensortap.live.job.subscription import Subscription
from tensortap.transport.connection import Connection, Frame

_MAX_PENDING_FRAMES = 20_000  # small ones that wait; a session that takes none is given up
_WAKE_BYTES = 1 << 20
_BATCH_BYTES, _BATCH_FRAMES = 1 << 18, 200  # bytes and frames of one call; the system takes 1024 parts
_SEND_BUFFER = 1 << 20  # bytes; with the usual 200 kB the link thread wakes eighty times for 16 MB
_BURST_BYTES = 4 << 20  # bytes at a time, so that one fast session does not keep the others waiting
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class _OutgoingFrame(NamedTuple):
    frame: bytes
    outgoing: OutgoingValue | None
    subscription: Subscription | None


class SessionConnection:
    """`post` may be called by any thread; all else belongs to the link thread."""

    def __init__(self, connection: socket.socket, link: Connection, wake: Callable[[], None]) -> None:
        self.socket, self.link = connection, link
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.is_open = True
        self.subscriptions: dict[int, Subscription] = {}
        self._wake = wake
        self._enqueued: deque[_OutgoingFrame] = deque()
        self._pending: dict[
            object, _OutgoingFrame
        ] = {}  # in order; a newer value takes the place of an older one
        self._views: list[memoryview] = []
        self._in_flight: deque[list[Any]] = deque()  # items, and how many bytes of each are still to go
        self._number = 0

    def enqueue(self, frame: bytes, outgoing: OutgoingValue | None = None, subscription: Any = None) -> None:
        self._enqueued.append(_OutgoingFrame(frame, outgoing, subscription))
        # A small value waits for the end of the step, or for the link thread to look again: to wake it each
        # time would take longer than the snapshot.
        if outgoing is None or outgoing.nbytes >= _WAKE_BYTES:
            self._wake()

    def receive(self) -> list[Frame]:
        """What has come by now."""
        frames: list[Frame] = []
        try:
            while len(frames) < 100:
                frames.append(self.link.receive(timeout=0))
        except TimeoutError:
            pass
        return frames

    def send_pending(self) -> bool:
        """Send what can be sent at once; True when more waits."""
        self._merge_enqueued()
        sent = 0
        while sent < _BURST_BYTES:
            if not self._views and not self._fill_batch():
                return False
            try:
                count = self.socket.sendmsg(self._views, (), _SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                return True
            sent += count
            self._advance(count)
        return True

    def close(self, *, is_shared: bool = False) -> None:
        self.is_open = False
        (self.link.abandon if is_shared else self.link.close)()
        unsent = [
            *self._pending.values(),
            *self._enqueued,
            *(queued_frame for queued_frame, _ in self._in_flight),
        ]
        for queue in (self._pending, self._enqueued, self._in_flight, self._views):
            queue.clear()
        for queued in unsent:
            self._finish(queued, is_sent=False)

    def _merge_enqueued(self) -> None:
        """Newest wins: of one name and call, what was not sent yet gives way."""
        while self._enqueued:
            queued = self._enqueued.popleft()
            key: object = self._number
            self._number += 1
            if queued.outgoing is not None and queued.subscription is not None:
                key = (queued.subscription.number, queued.outgoing.name, queued.outgoing.meta.get("call", 0))
            older = self._pending.get(key)
            self._pending[key] = queued
            if older is not None:
                self._finish(older, is_sent=False)
        if len(self._pending) > _MAX_PENDING_FRAMES:
            raise ConnectionError(f"the session has not taken {_MAX_PENDING_FRAMES} frames; it is given up")

    def _fill_batch(self) -> bool:
        """Take what goes next; small frames go together."""
        nbytes = 0
        while self._pending and nbytes < _BATCH_BYTES and len(self._in_flight) < _BATCH_FRAMES:
            queued = self._pending.pop(next(iter(self._pending)))
            views = [memoryview(queued.frame)]
            if queued.outgoing is not None and queued.outgoing.nbytes:
                views.append(queued.outgoing.data)
            self._views += views
            size = sum(view.nbytes for view in views)
            self._in_flight.append([queued, size])
            nbytes += size
        return bool(self._in_flight)

    def _advance(self, count: int) -> None:
        left = count
        while self._views and left >= self._views[0].nbytes:
            left -= self._views.pop(0).nbytes
        if left:
            self._views[0] = self._views[0][left:]
        while count and self._in_flight:
            first = self._in_flight[0]
            advanced = min(count, first[1])
            count, first[1] = count - advanced, first[1] - advanced
            if first[1]:
                return
            self._in_flight.popleft()
            self._finish(first[0], is_sent=True)

    def _finish(self, queued: _OutgoingFrame, is_sent: bool) -> None:
        if queued.outgoing is None or queued.subscription is None:
            return
        queued.subscription.finished_bytes += queued.outgoing.nbytes
        queued.subscription.sent += is_sent
        queued.subscription.dropped += not is_sent
        queued.outgoing.release_reader()
