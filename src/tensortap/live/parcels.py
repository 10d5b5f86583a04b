"""Values on their way to sessions: one snapshot each, in recycled memory, within a budget."""

from __future__ import annotations

from typing import Any

from tensortap.core.record import Record
from tensortap.formats.wire_snapshots import copied, described
from tensortap.frameworks.pool import Buffer, BufferPool


class Parcel:
    """A snapshot that waits for `readers` to have got it; only the link thread lets go of it."""

    __slots__ = ("_budget", "_buffer", "data", "meta", "name", "nbytes", "readers")

    def __init__(self, name: str, meta: dict[str, Any], buffer: Buffer | bytes, budget: Budget) -> None:
        self.name, self.meta = name, meta
        self._buffer, self._budget = buffer, budget
        self.data = memoryview(buffer if isinstance(buffer, bytes) else buffer.array.data)
        self.nbytes = self.data.nbytes
        self.readers = 0

    def let_go(self) -> None:
        self.readers -= 1
        if not self.readers:
            self._budget.done += self.nbytes
            self._release()

    def withdraw(self) -> None:
        """Before anybody was told of it."""
        self._budget.put -= self.nbytes
        self._release()

    def _release(self) -> None:
        if isinstance(self._buffer, Buffer):
            self._buffer.release()


class Budget:
    """How many bytes wait. The program's threads count what comes, the link thread what has gone: no lock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.put = self.done = 0
        self._pool = BufferPool(keep=most)

    @property
    def waiting(self) -> int:
        return self.put - self.done

    def parcel(self, record: Record, value: Any) -> Parcel | None:
        """A snapshot of what is sent of the record; None when the budget is used up."""
        sent = described(record.with_value(value))
        if self.waiting and self.waiting + sent.nbytes > self.most:
            return None
        parcel = Parcel(record.name, sent.meta, copied(sent, self._pool), self)
        self.put += sent.nbytes
        return parcel
