"""What waits to be sent, what is on its way, and what became of each value."""

from __future__ import annotations

import threading
from collections import deque

from tensortap.formats.wire_values import Packed
from tensortap.frameworks.pool import Buffer

_OVERHEAD = 2048  # bytes that a waiting value takes besides its numbers


class Delivery:
    """Whether a value arrived. `wait` returns True once the other side has it, and False as soon as it is
    known that it never will, or when the time is over."""

    __slots__ = ("_gate", "_outcome")

    def __init__(self) -> None:
        self._outcome: bool | None = None
        # Released when the outcome is known: a tenth of the price of an Event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        if self._outcome is None and self._gate.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._gate.release()  # for whoever else waits
        return bool(self._outcome)

    def __repr__(self) -> str:
        state = {None: "on its way", True: "delivered", False: "not delivered"}[self._outcome]
        return f"<{state}>"

    def settle(self, outcome: bool) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._gate.release()


NEVER = Delivery()
NEVER.settle(False)


class Parcel:
    """A value with its snapshot, waiting or on its way."""

    __slots__ = ("cost", "data", "delivery", "has_failed", "lent", "meta", "number")

    def __init__(self, sent: Packed, buffer: Buffer | bytes) -> None:
        self.meta = sent.meta
        self.cost = cost_of(sent)
        self.lent = None if isinstance(buffer, bytes) else buffer
        self.data: bytes | memoryview = buffer if isinstance(buffer, bytes) else buffer.array.data
        self.delivery = Delivery()
        self.number = 0
        self.has_failed = False  # once: a second connection may take it

    def release(self) -> None:
        lent, self.lent, self.data = self.lent, None, b""
        if lent is not None:
            lent.release()


def cost_of(sent: Packed) -> int:
    return sent.nbytes + _OVERHEAD


class Outbox:
    """Parcels in the order in which they came. The caller holds the lock."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0  # bytes that wait, are being copied or are being sent
        self.waiting: deque[Parcel] = deque()
        self.unconfirmed: deque[Parcel] = deque()
        self.dropped = 0
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.unconfirmed)

    @property
    def newest(self) -> Delivery | None:
        """Of what waits or is on its way."""
        parcels = self.waiting or self.unconfirmed
        return parcels[-1].delivery if parcels else None

    def reserve(self, cost: int) -> int:
        """Make room by dropping the oldest that wait; how many that were. One value larger than all the room
        still comes, alone."""
        dropped = 0
        while self.waiting and self._held + cost > self._budget:
            self._drop(self.waiting.popleft())
            dropped += 1
        self._held += cost
        return dropped

    def unreserve(self, cost: int) -> None:
        self._held -= cost

    def take(self) -> Parcel:
        """The next to be sent."""
        return self.begin(self.waiting.popleft())

    def begin(self, parcel: Parcel) -> Parcel:
        """It counts as unconfirmed before it is sent, since the answer may be quick."""
        self._count += 1
        parcel.number = self._count
        self.unconfirmed.append(parcel)
        return parcel

    def sent(self, parcel: Parcel) -> None:
        parcel.release()
        self._discount(parcel)

    def put_back(self, parcel: Parcel) -> None:
        """It did not go; once it may be tried again."""
        self._forget(parcel)
        if parcel.has_failed:
            self._drop(parcel)
        else:
            parcel.has_failed = True
            self.waiting.appendleft(parcel)

    def refuse(self, parcel: Parcel) -> None:
        self._forget(parcel)
        self._discount(parcel)
        parcel.release()
        parcel.delivery.settle(False)

    def confirm(self, number: int) -> None:
        """The other side has all up to that one."""
        while self.unconfirmed and self.unconfirmed[0].number <= number:
            parcel = self.unconfirmed.popleft()
            self._discount(parcel)  # here too: the sending thread may learn later than we that it went
            parcel.delivery.settle(True)

    def lose(self) -> int:
        """What was sent and never confirmed is gone with the connection; how many that were."""
        count = len(self.unconfirmed)
        for parcel in self.unconfirmed:
            self._discount(parcel)
            parcel.delivery.settle(False)
        self.unconfirmed.clear()
        return count

    def drop_all(self) -> int:
        count = len(self.waiting)
        while self.waiting:
            self._drop(self.waiting.popleft())
        return count

    def _forget(self, parcel: Parcel) -> None:
        if parcel in self.unconfirmed:
            self.unconfirmed.remove(parcel)

    def _drop(self, parcel: Parcel) -> None:
        self.dropped += 1
        self._discount(parcel)
        parcel.release()
        parcel.delivery.settle(False)

    def _discount(self, parcel: Parcel) -> None:
        """Once, whoever comes first."""
        self._held -= parcel.cost
        parcel.cost = 0
