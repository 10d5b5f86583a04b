"""Outgoing values: one snapshot each, in pooled buffers, within a byte budget."""

from __future__ import annotations

from typing import Any

from tensortap.core.record import Record
from tensortap.frameworks.retention import Buffer, BufferPool
from tensortap.transport.values import copy_buffers, encode_record


class OutgoingValue:
    """A snapshot, released by the socket thread once `pending_readers` have received it."""

    __slots__ = ("_budget", "_buffer", "data", "meta", "name", "nbytes", "pending_readers")

    def __init__(
        self, name: str, meta: dict[str, Any], buffer: Buffer | bytes, budget: OutgoingBudget
    ) -> None:
        self.name, self.meta = name, meta
        self._buffer, self._budget = buffer, budget
        self.data = memoryview(buffer if isinstance(buffer, bytes) else buffer.array.data)
        self.nbytes = self.data.nbytes
        self.pending_readers = 0

    def release_reader(self) -> None:
        self.pending_readers -= 1
        if not self.pending_readers:
            self._budget.finished_bytes += self.nbytes
            self._release()

    def cancel(self) -> None:
        """Release it before it is enqueued anywhere."""
        self._budget.queued_bytes -= self.nbytes
        self._release()

    def _release(self) -> None:
        if isinstance(self._buffer, Buffer):
            self._buffer.release()


class OutgoingBudget:
    """Bytes waiting to be sent; no lock: the program counts queued, the socket thread finished bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.queued_bytes = self.finished_bytes = 0
        self._pool = BufferPool(keep=max_bytes)

    @property
    def pending_bytes(self) -> int:
        return self.queued_bytes - self.finished_bytes

    def snapshot(self, record: Record, value: Any) -> OutgoingValue | None:
        """A snapshot of the record with this value; None when the budget is exhausted."""
        frame_content = encode_record(record.with_value(value))
        if self.pending_bytes and self.pending_bytes + frame_content.nbytes > self.max_bytes:
            return None
        outgoing = OutgoingValue(
            record.name, frame_content.meta, copy_buffers(frame_content, self._pool), self
        )
        self.queued_bytes += frame_content.nbytes
        return outgoing
