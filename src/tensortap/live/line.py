"""The job's end of a connection to a session: what waits to be sent, and sending without ever waiting."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tensortap.formats.link import Frame, Link
from tensortap.live.parcels import Parcel
from tensortap.live.subscriptions import Subscription

_MOST_FRAMES = 20_000  # small ones that wait; a session that takes none is given up
_WORTH_WAKING = 1 << 20
_TOGETHER, _MOST_TOGETHER = 1 << 18, 200  # bytes and frames of one call; the system takes 1024 parts
_SEND_BUFFER = 1 << 20  # bytes; with the usual 200 kB the link thread wakes eighty times for 16 MB
_BURST = 4 << 20  # bytes at a time, so that one fast session does not keep the others waiting
_DO_NOT_WAIT = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class _Item(NamedTuple):
    frame: bytes
    parcel: Parcel | None
    subscription: Subscription | None


class SessionLine:
    """`post` may be called by any thread; all else belongs to the link thread."""

    def __init__(self, connection: socket.socket, link: Link, wake: Callable[[], None]) -> None:
        self.socket, self.link = connection, link
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.is_open = True
        self.subscriptions: dict[int, Subscription] = {}
        self._wake = wake
        self._posted: deque[_Item] = deque()
        self._waiting: dict[object, _Item] = {}  # in order; a newer value takes the place of an older one
        self._views: list[memoryview] = []
        self._flight: deque[list[Any]] = deque()  # items, and how many bytes of each are still to go
        self._number = 0

    def post(self, frame: bytes, parcel: Parcel | None = None, subscription: Any = None) -> None:
        self._posted.append(_Item(frame, parcel, subscription))
        # A small value waits for the end of the step, or for the link thread to look again: to wake it each
        # time would take longer than the snapshot.
        if parcel is None or parcel.nbytes >= _WORTH_WAKING:
            self._wake()

    def receive(self) -> list[Frame]:
        """What has come by now."""
        found: list[Frame] = []
        try:
            while len(found) < 100:
                found.append(self.link.receive(timeout=0))
        except TimeoutError:
            pass
        return found

    def pump(self) -> bool:
        """Send what can be sent at once; True when more waits."""
        self._sort()
        sent = 0
        while sent < _BURST:
            if not self._views and not self._load():
                return False
            try:
                count = self.socket.sendmsg(self._views, (), _DO_NOT_WAIT)
            except (BlockingIOError, InterruptedError):
                return True
            sent += count
            self._advance(count)
        return True

    def close(self, *, is_shared: bool = False) -> None:
        self.is_open = False
        (self.link.abandon if is_shared else self.link.close)()
        left = [*self._waiting.values(), *self._posted, *(item for item, _ in self._flight)]
        for held in (self._waiting, self._posted, self._flight, self._views):
            held.clear()
        for item in left:
            self._finish(item, is_sent=False)

    def _sort(self) -> None:
        """Newest wins: of one name and call, what was not sent yet gives way."""
        while self._posted:
            item = self._posted.popleft()
            key: object = self._number
            self._number += 1
            if item.parcel is not None and item.subscription is not None:
                key = (item.subscription.number, item.parcel.name, item.parcel.meta.get("call", 0))
            older = self._waiting.get(key)
            self._waiting[key] = item
            if older is not None:
                self._finish(older, is_sent=False)
        if len(self._waiting) > _MOST_FRAMES:
            raise ConnectionError(f"the session has not taken {_MOST_FRAMES} frames; it is given up")

    def _load(self) -> bool:
        """Take what goes next; small frames go together."""
        nbytes = 0
        while self._waiting and nbytes < _TOGETHER and len(self._flight) < _MOST_TOGETHER:
            item = self._waiting.pop(next(iter(self._waiting)))
            views = [memoryview(item.frame)]
            if item.parcel is not None and item.parcel.nbytes:
                views.append(item.parcel.data)
            self._views += views
            size = sum(view.nbytes for view in views)
            self._flight.append([item, size])
            nbytes += size
        return bool(self._flight)

    def _advance(self, count: int) -> None:
        left = count
        while self._views and left >= self._views[0].nbytes:
            left -= self._views.pop(0).nbytes
        if left:
            self._views[0] = self._views[0][left:]
        while count and self._flight:
            first = self._flight[0]
            taken = min(count, first[1])
            count, first[1] = count - taken, first[1] - taken
            if first[1]:
                return
            self._flight.popleft()
            self._finish(first[0], is_sent=True)

    def _finish(self, item: _Item, is_sent: bool) -> None:
        if item.parcel is None or item.subscription is None:
            return
        item.subscription.done += item.parcel.nbytes
        item.subscription.sent += is_sent
        item.subscription.dropped += not is_sent
        item.parcel.let_go()
