"""What has arrived in a session, bounded in bytes: the last of each name stays, the oldest of the rest go."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator

from tensortap.core.record import Record

_MOST = 2 << 30
_SMALLEST = 256  # bytes that a record takes in any case


class Entry:
    """A record, the tap it came for, and how much it weighs."""

    __slots__ = ("is_pinned", "nbytes", "number", "record", "tap")

    def __init__(self, record: Record, tap: int, nbytes: int, number: int) -> None:
        self.record, self.tap, self.number = record, tap, number
        self.nbytes = nbytes + _SMALLEST
        self.is_pinned = False


class Shelf:
    """Entries by tap, in the order of their arrival. One lock: the reader thread writes, the user reads."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most if most is not None else _default()
        self.held = self.evicted = 0
        self.changed = threading.Condition()
        self._by_tap: dict[int, dict[int, Entry]] = {}
        self._last: dict[tuple[int, str, object], Entry] = {}
        self._older: deque[Entry] = deque()
        self._number = 0

    def add(self, record: Record, tap: int, nbytes: int) -> None:
        with self.changed:
            self._number += 1
            entry = Entry(record, tap, nbytes, self._number)
            self._by_tap.setdefault(tap, {})[entry.number] = entry
            key = (tap, record.name, record.rank)
            before = self._last.get(key)
            if before is not None:
                self._older.append(before)
            self._last[key] = entry
            self.held += entry.nbytes
            self._evict()
            self.changed.notify_all()

    def entries(self, tap: int) -> list[Entry]:
        with self.changed:
            return list(self._by_tap.get(tap, {}).values())

    def entries_after(self, tap: int, number: int) -> list[Entry]:
        """Those that came after a number; to be asked while holding `changed`."""
        found = []
        for entry in reversed(self._by_tap.get(tap, {}).values()):
            if entry.number <= number:
                break
            found.append(entry)
        return found[::-1]

    def last(self, tap: int) -> Entry | None:
        with self.changed:
            return next(reversed(self._by_tap.get(tap, {}).values()), None)

    def lasts(self, tap: int) -> Iterator[Entry]:
        with self.changed:
            found = [entry for key, entry in self._last.items() if key[0] == tap]
        yield from found

    def forget(self, tap: int) -> None:
        with self.changed:
            for entry in self._by_tap.pop(tap, {}).values():
                self.held -= entry.nbytes
            self._last = {key: entry for key, entry in self._last.items() if key[0] != tap}
            self._older = deque(entry for entry in self._older if entry.tap != tap)

    def _evict(self) -> None:
        pinned = []
        while self.held > self.most and self._older:
            entry = self._older.popleft()
            if entry.is_pinned:
                pinned.append(entry)
                continue
            self._by_tap[entry.tap].pop(entry.number, None)
            self.held -= entry.nbytes
            self.evicted += 1
        self._older.extendleft(reversed(pinned))


def _default() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return _MOST
    return min(_MOST, memory // 10)
