"""The receive buffer of a session, bounded in bytes: keeps the latest of each name, evicts the oldest."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator

from tensortap.core.record import Record

_MAX_DEFAULT_BYTES = 2 << 30
_RECORD_OVERHEAD = 256  # bytes per record, besides its value


class BufferedRecord:
    """A record, the number of its tap, and its size."""

    __slots__ = ("is_pinned", "nbytes", "number", "record", "tap")

    def __init__(self, record: Record, tap: int, nbytes: int, number: int) -> None:
        self.record, self.tap, self.number = record, tap, number
        self.nbytes = nbytes + _RECORD_OVERHEAD
        self.is_pinned = False


class ReceiveBuffer:
    """Records by tap, in order of arrival. One lock: reader threads write, the user's thread reads."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes if max_bytes is not None else _default_max_bytes()
        self.nbytes = self.evicted = 0
        self.changed = threading.Condition()
        self._by_tap: dict[int, dict[int, BufferedRecord]] = {}
        self._latest: dict[tuple[int, str, object], BufferedRecord] = {}
        self._older: deque[BufferedRecord] = deque()
        self._number = 0

    def add(self, record: Record, tap: int, nbytes: int) -> None:
        with self.changed:
            self._number += 1
            entry = BufferedRecord(record, tap, nbytes, self._number)
            self._by_tap.setdefault(tap, {})[entry.number] = entry
            key = (tap, record.name, record.rank)
            previous = self._latest.get(key)
            if previous is not None:
                self._older.append(previous)
            self._latest[key] = entry
            self.nbytes += entry.nbytes
            self._evict()
            self.changed.notify_all()

    def entries(self, tap: int) -> list[BufferedRecord]:
        with self.changed:
            return list(self._by_tap.get(tap, {}).values())

    def entries_after(self, tap: int, number: int) -> list[BufferedRecord]:
        """The records that arrived after a number; the caller must hold `changed`."""
        newer = []
        for entry in reversed(self._by_tap.get(tap, {}).values()):
            if entry.number <= number:
                break
            newer.append(entry)
        return newer[::-1]

    def latest(self, tap: int) -> BufferedRecord | None:
        with self.changed:
            return next(reversed(self._by_tap.get(tap, {}).values()), None)

    def latest_by_name(self, tap: int) -> Iterator[BufferedRecord]:
        with self.changed:
            latest = [entry for key, entry in self._latest.items() if key[0] == tap]
        yield from latest

    def forget(self, tap: int) -> None:
        with self.changed:
            for entry in self._by_tap.pop(tap, {}).values():
                self.nbytes -= entry.nbytes
            self._latest = {key: entry for key, entry in self._latest.items() if key[0] != tap}
            self._older = deque(entry for entry in self._older if entry.tap != tap)

    def _evict(self) -> None:
        pinned = []
        while self.nbytes > self.max_bytes and self._older:
            entry = self._older.popleft()
            if entry.is_pinned:
                pinned.append(entry)
                continue
            self._by_tap[entry.tap].pop(entry.number, None)
            self.nbytes -= entry.nbytes
            self.evicted += 1
        self._older.extendleft(reversed(pinned))


def _default_max_bytes() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return _MAX_DEFAULT_BYTES
    return min(_MAX_DEFAULT_BYTES, memory // 10)
