"""The job's end of a connection to a session: a queue of outgoing frames, and non-blocking sends."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tensortap.live.job.outgoing import OutgoingValue
from tensortap.live.job.subscription import Subscription
from tensortap.transport.connection import Connection, Frame

_MAX_PENDING_FRAMES = 20_000  # a session that has not read that many is disconnected
_WAKE_BYTES = 1 << 20
_BATCH_BYTES, _BATCH_FRAMES = 1 << 18, 200  # per sendmsg call; the system takes 1024 buffers
_SEND_BUFFER = 1 << 20  # bytes; with the default 200 kB the socket thread wakes eighty times for 16 MB
_BURST_BYTES = 4 << 20  # per turn, so that one fast session does not starve the others
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class _OutgoingFrame(NamedTuple):
    frame: bytes
    outgoing: OutgoingValue | None
    subscription: Subscription | None


class SessionConnection:
    """`enqueue` may be called by any thread, all other methods by the socket thread only."""

    def __init__(self, connection: socket.socket, link: Connection, wake: Callable[[], None]) -> None:
        self.socket, self.link = connection, link
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.is_open = True
        self.subscriptions: dict[int, Subscription] = {}
        self._wake = wake
        self._enqueued: deque[_OutgoingFrame] = deque()
        self._pending: dict[
            object, _OutgoingFrame
        ] = {}  # in order; a newer value replaces an older one of its key
        self._views: list[memoryview] = []
        self._in_flight: deque[list[Any]] = deque()  # frames, and the bytes of each still to be sent
        self._number = 0

    def enqueue(self, frame: bytes, outgoing: OutgoingValue | None = None, subscription: Any = None) -> None:
        self._enqueued.append(_OutgoingFrame(frame, outgoing, subscription))
        # A small value waits for the end of the step, or for the next poll of the socket thread: waking it
        # for each one would take longer than the snapshot.
        if outgoing is None or outgoing.nbytes >= _WAKE_BYTES:
            self._wake()

    def receive(self) -> list[Frame]:
        """The frames that have arrived, without waiting."""
        frames: list[Frame] = []
        try:
            while len(frames) < 100:
                frames.append(self.link.receive(timeout=0))
        except TimeoutError:
            pass
        return frames

    def send_pending(self) -> bool:
        """Send without blocking; True when frames remain."""
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
        """Newest wins: an unsent value of the same tap, name and call is dropped."""
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
        """Move pending frames into the next sendmsg call, several small ones at once."""
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
