"""The send queue of a stream: values queued, in flight, and the delivery receipt of each."""

from __future__ import annotations

import threading
from collections import deque

from tensortap.frameworks.retention import Buffer
from tensortap.transport.values import WireValue

_QUEUE_OVERHEAD = 2048  # bytes that a queued value takes besides its data


class Delivery:
    """A delivery receipt. `wait` returns True once the listener has confirmed the value, False as soon as
    it is known to be lost, or after the timeout."""

    __slots__ = ("_outcome", "_pending_lock")

    def __init__(self) -> None:
        self._outcome: bool | None = None
        # Released when the outcome is known: a tenth of the cost of an Event.
        self._pending_lock = threading.Lock()
        self._pending_lock.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        if self._outcome is None and self._pending_lock.acquire(
            timeout=-1 if timeout is None else max(timeout, 0)
        ):
            self._pending_lock.release()  # for other waiting threads
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
    """A value's snapshot, queued or in flight."""

    __slots__ = ("cost", "data", "delivery", "has_failed", "meta", "number", "pooled")

    def __init__(self, packed: WireValue, buffer: Buffer | bytes) -> None:
        self.meta = packed.meta
        self.cost = queue_cost(packed)
        self.pooled = None if isinstance(buffer, bytes) else buffer
        self.data: bytes | memoryview = buffer if isinstance(buffer, bytes) else buffer.array.data
        self.delivery = Delivery()
        self.number = 0
        self.has_failed = False  # it is retried once, on the next connection

    def release(self) -> None:
        pooled, self.pooled, self.data = self.pooled, None, b""
        if pooled is not None:
            pooled.release()


def queue_cost(packed: WireValue) -> int:
    return packed.nbytes + _QUEUE_OVERHEAD


class Outbox:
    """Queued values in order of arrival. The caller holds the lock."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._reserved = 0  # bytes queued, being copied or being sent
        self.waiting: deque[QueuedValue] = deque()
        self.unconfirmed: deque[QueuedValue] = deque()
        self.dropped = 0
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.unconfirmed)

    @property
    def newest(self) -> Delivery | None:
        """The receipt of the newest value that is queued or in flight."""
        values = self.waiting or self.unconfirmed
        return values[-1].delivery if values else None

    def reserve(self, cost: int) -> int:
        """Reserve budget by dropping the oldest queued values; returns how many. A value larger than the
        budget is still accepted, alone."""
        dropped = 0
        while self.waiting and self._reserved + cost > self._budget:
            self._drop(self.waiting.popleft())
            dropped += 1
        self._reserved += cost
        return dropped

    def unreserve(self, cost: int) -> None:
        self._reserved -= cost

    def take_next(self) -> QueuedValue:
        """The next value to send, marked as in flight."""
        return self.mark_in_flight(self.waiting.popleft())

    def mark_in_flight(self, value: QueuedValue) -> QueuedValue:
        """Number it and add it to the unconfirmed ones before it is sent, since the ack may be quick."""
        self._count += 1
        value.number = self._count
        self.unconfirmed.append(value)
        return value

    def mark_sent(self, value: QueuedValue) -> None:
        value.release()
        self._free_budget(value)

    def put_back(self, value: QueuedValue) -> None:
        """Sending failed: requeue it once, then drop it."""
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
        """The listener has received all values up to that number."""
        while self.unconfirmed and self.unconfirmed[0].number <= number:
            value = self.unconfirmed.popleft()
            self._free_budget(value)  # here too: the ack may arrive before send() returns
            value.delivery.settle(True)

    def drop_unconfirmed(self) -> int:
        """Settle as lost what was sent but not confirmed on a dead connection; returns how many."""
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
        """Free it once, whichever of send and confirmation comes first."""
        self._reserved -= value.cost
        value.cost = 0
