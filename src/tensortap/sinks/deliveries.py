"""What waits to be sent, what is on its way, and what became of each value."""

from __future__ import annotations

import threading
from collections import deque

from tensortap.formats.wire_values import Packed
from tensortap.frameworks.pool import Buffer

_QUEUE_OVERHEAD = 2048  # bytes that a waiting value takes besides its numbers


class Delivery:
    """Whether a value arrived. `wait` returns True once the other side has it, and False as soon as it is
    known that it never will, or when the time is over."""

    __slots__ = ("_pending_lock", "_outcome")

    def __init__(self) -> None:
        self._outcome: bool | None = None
        # Released when the outcome is known: a tenth of the price of an Event.
        self._pending_lock = threading.Lock()
        self._pending_lock.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        if self._outcome is None and self._pending_lock.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._pending_lock.release()  # for whoever else waits
        return bool(self._outcome)

    def __repr__(self) -> str:
        state = {None: "on its way", True: "delivered", False: "not delivered"}[self._outcome]
        return f"<{state}>"

    def settle(self, outcome: bool) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._pending_lock.release()


NOT_DELIVERED = Delivery()
NOT_DELIVERED.settle(False)


class QueuedValue:
    """A value with its snapshot, waiting or on its way."""

    __slots__ = ("cost", "data", "delivery", "has_failed", "pooled", "meta", "number")

    def __init__(self, packed: Packed, buffer: Buffer | bytes) -> None:
        self.meta = packed.meta
        self.cost = queue_cost(packed)
        self.pooled = None if isinstance(buffer, bytes) else buffer
        self.data: bytes | memoryview = buffer if isinstance(buffer, bytes) else buffer.array.data
        self.delivery = Delivery()
        self.number = 0
        self.has_failed = False  # once: a second connection may take it

    def release(self) -> None:
        pooled, self.pooled, self.data = self.pooled, None, b""
        if pooled is not None:
            pooled.release()


def queue_cost(packed: Packed) -> int:
    return packed.nbytes + _QUEUE_OVERHEAD


class Outbox:
    """Parcels in the order in which they came. The caller holds the lock."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._reserved = 0  # bytes that wait, are being copied or are being sent
        self.waiting: deque[QueuedValue] = deque()
        self.unconfirmed: deque[QueuedValue] = deque()
        self.dropped = 0
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.unconfirmed)

    @property
    def newest(self) -> Delivery | None:
        """Of what waits or is on its way."""
        values = self.waiting or self.unconfirmed
        return values[-1].delivery if values else None

    def reserve(self, cost: int) -> int:
        """Make room by dropping the oldest that wait; how many that were. One value larger than all the room
        still comes, alone."""
        dropped = 0
        while self.waiting and self._reserved + cost > self._budget:
            self._drop(self.waiting.popleft())
            dropped += 1
        self._reserved += cost
        return dropped

    def unreserve(self, cost: int) -> None:
        self._reserved -= cost

    def take_next(self) -> QueuedValue:
        """The next to be sent."""
        return self.mark_in_flight(self.waiting.popleft())

    def mark_in_flight(self, value: QueuedValue) -> QueuedValue:
        """It counts as unconfirmed before it is sent, since the answer may be quick."""
        self._count += 1
        value.number = self._count
        self.unconfirmed.append(value)
        return value

    def mark_sent(self, value: QueuedValue) -> None:
        value.release()
        self._free_budget(value)

    def put_back(self, value: QueuedValue) -> None:
        """It did not go; once it may be tried again."""
        self._remove_unconfirmed(value)
        if value.has_failed:
            self._drop(value)
        else:
            value.has_failed = True
            self.waiting.appendleft(value)

    def refuse(self, value: QueuedValue) -> None:
        self._remove_unconfirmed(value)
        self._free_budget(value)
        value.release()
        value.delivery.settle(False)

    def confirm(self, number: int) -> None:
        """The other side has all up to that one."""
        while self.unconfirmed and self.unconfirmed[0].number <= number:
            value = self.unconfirmed.popleft()
            self._free_budget(value)  # here too: the sending thread may learn later than we that it went
            value.delivery.settle(True)

    def drop_unconfirmed(self) -> int:
        """What was sent and never confirmed is gone with the connection; how many that were."""
        count = len(self.unconfirmed)
        for value in self.unconfirmed:
            self._free_budget(value)
            value.delivery.settle(False)
        self.unconfirmed.clear()
        return count

    def drop_all(self) -> int:
        count = len(self.waiting)
        while self.waiting:
            self._drop(self.waiting.popleft())
        return count

    def _remove_unconfirmed(self, value: QueuedValue) -> None:
        if value in self.unconfirmed:
            self.unconfirmed.remove(value)

    def _drop(self, value: QueuedValue) -> None:
        self.dropped += 1
        self._free_budget(value)
        value.release()
        value.delivery.settle(False)

    def _free_budget(self, value: QueuedValue) -> None:
        """Once, whoever comes first."""
        self._reserved -= value.cost
        value.cost = 0
