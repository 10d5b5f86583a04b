"""In-memory sinks: all records or the latest within a limit, and the history of a serving session."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import re
import threading
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from time import time
from typing import Any
from weakref import WeakSet

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.interpreter import call_in_forked_children
from tensortap.core.record import Record, Series
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves, snapshot_leaves
from tensortap.frameworks.retention import RetentionPolicy
from tensortap.render.received import ReceivedRecord, format_binary_nbytes

log = logging.getLogger("tensortap.memory")
_CONSTANTS = frozenset((bool, int, float, str, type(None)))


class Memory:
    """Keeps `keep(value)` of each record, by default a snapshot.

    Beyond `most` records or `most_bytes` the oldest are dropped and counted in `dropped`. A value that cannot
    be copied (it has no data) is named in `refused` and skipped.
    """

    # deque.append is atomic; two threads at once may exceed a limit by one value.
    needs_no_lock = True

    def __init__(
        self,
        *,
        keep: RetentionPolicy | None = snapshot_leaves,
        most: int | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.records: deque[Record] = deque()
        self.refused: dict[str, str] = {}
        self.dropped = 0
        self.keep = keep  # None: keep the value itself
        self._most, self._most_bytes = most, most_bytes
        self._nbytes = 0

    @property
    def series(self) -> dict[str, Series]:
        """One series per name, in the order of their first records."""
        series_by_name: dict[str, Series] = {}
        for record in list(self.records):
            series_by_name.setdefault(record.name, Series(record.name)).add(record)
        return series_by_name

    def write(self, record: Record) -> None:
        if self.keep is not None:
            try:
                record = record.with_value(self.keep(record.value))
            except UnsupportedValueError as error:
                self.refused.setdefault(record.name, str(error))
                return
        self.records.append(record)
        if self._most_bytes is not None:
            self._nbytes += nbytes_of(record.value)
            while self._nbytes > self._most_bytes and len(self.records) > 1:
                self._drop()
        if self._most is not None and len(self.records) > self._most:
            self._drop()

    def clear(self) -> None:
        self.records.clear()
        self._nbytes = 0

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _drop(self) -> None:
        if not self.dropped:
            log.warning("the limit of what is kept in memory is reached; from now on the oldest records go")
        oldest = self.records.popleft()
        if self._most_bytes is not None:
            self._nbytes -= nbytes_of(oldest.value)
        self.dropped += 1


def nbytes_of(value: Any) -> int:
    """The bytes of a value and of the arrays it contains."""
    if type(value) in _CONSTANTS:  # a forward binds many of these, and the checks below are far slower
        return getsizeof(value)
    try:
        nbytes = value.nbytes
        if type(nbytes) is int:  # of a class it is a property
            return nbytes
    except (AttributeError, RuntimeError):
        pass
    return sum(framework_of(leaf).describe(leaf).nbytes for _, leaf in leaves(value))


_RECORD_OVERHEAD = 1024  # bytes of a record besides its data
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE_PATTERN = re.compile(r"\s*([\d.]+)\s*(%|([KMGT]?)i?B?)\s*", re.IGNORECASE)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_histories: WeakSet[History] = WeakSet()
log_history = logging.getLogger("tensortap.history")


class History:
    """All values of each name within `max_bytes`. Beyond that the oldest are evicted, first those that are
    not the latest of their name; pinned values stay."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.dropped: Counter[str] = Counter()  # by name
        self._numbers = itertools.count(1)
        self._arrivals: dict[int, ReceivedRecord] = {}
        self._by_name: dict[str, deque[int]] = {}
        self._evictable: list[int] = []  # a heap of the numbers that are not the latest of their name
        self._pinned: set[int] = set()
        self._replace_lock()
        call_in_forked_children(_replace_locks)
        _histories.add(self)

    def write(self, record: Record) -> None:
        nbytes = nbytes_of(record.value) + _RECORD_OVERHEAD
        with self._lock:
            number = next(self._numbers)
            numbers = self._by_name.setdefault(record.name, deque())
            if numbers:
                heapq.heappush(self._evictable, numbers[-1])
            numbers.append(number)
            self._arrivals[number] = ReceivedRecord(number, record, nbytes, time())
            self.nbytes += nbytes
            self._evict_beyond_limit(number)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def count(self) -> int:
        return len(self._arrivals)

    @property
    def names(self) -> list[str]:
        with self._lock:
            return list(self._by_name)

    def all(self) -> list[ReceivedRecord]:
        """All values still held, oldest first."""
        with self._lock:
            return list(self._arrivals.values())

    def since(self, number: int) -> list[ReceivedRecord]:
        """The values received after that number."""
        with self._lock:
            newer = itertools.takewhile(
                lambda arrival: arrival.number > number, reversed(self._arrivals.values())
            )
            return list(newer)[::-1]

    def by_name(self, name: str) -> list[ReceivedRecord]:
        with self._lock:
            return [self._arrivals[number] for number in self._by_name.get(name, ())]

    def by_number(self, number: int) -> ReceivedRecord | None:
        return self._arrivals.get(number)

    def is_pinned(self, number: int) -> bool:
        return number in self._pinned

    def pin(self, number: int) -> None:
        """Exempt it from eviction."""
        with self._lock:
            self._pinned.add(number)

    def unpin(self, number: int) -> None:
        with self._lock:
            if number in self._pinned:
                self._pinned.discard(number)
                arrival = self._arrivals[number]
                if self._by_name[arrival.record.name][-1] != number:
                    heapq.heappush(self._evictable, number)

    def _replace_lock(self) -> None:
        """In a forked child: a thread of the parent may have held the lock at the fork."""
        self._lock = threading.RLock()

    def _evict_beyond_limit(self, newest: int) -> None:
        if self.max_bytes is None or self.nbytes <= self.max_bytes:
            return
        if not self.dropped:
            log_history.warning(
                "what arrived takes more than the %s that serve(memory=...) allows: the oldest values go, "
                "the last of each name at the end; pin() keeps one",
                format_binary_nbytes(self.max_bytes),
            )
        while self.nbytes > self.max_bytes and self._evictable:
            number = heapq.heappop(self._evictable)
            if number not in self._pinned:
                self._evict(number)
        for number in list(self._arrivals) if self.nbytes > self.max_bytes else ():
            if self.nbytes <= self.max_bytes:
                return
            if number != newest and number not in self._pinned:
                self._evict(number)

    def _evict(self, number: int) -> None:
        arrival = self._arrivals.pop(number, None)
        if arrival is None:
            return
        name = arrival.record.name
        self.nbytes -= arrival.nbytes
        self.dropped[name] += 1
        numbers = self._by_name[name]
        numbers.remove(number)
        if not numbers:
            del self._by_name[name]


def parse_memory_limit(limit: str | int | None) -> int | None:
    """Parse a number of bytes, a size as `"4GB"`, or a share of the machine's memory as `"50%"`."""
    if limit is None or (type(limit) is int and limit > 0):
        return limit
    parsed = _SIZE_PATTERN.fullmatch(limit) if isinstance(limit, str) else None
    if parsed is None or parsed[1].count(".") > 1 or not parsed[1].strip("."):
        raise ValueError(f"memory is {limit!r}; give a share such as '50%', a size such as '4GB', or None")
    amount = float(parsed[1])
    if parsed[2] == "%":
        return max(int(total_memory() * amount / 100), 1)
    return max(int(amount * _SIZE_UNITS[parsed[3].upper()]), 1)


def total_memory() -> int:
    """Physical memory of the machine, or the limit of the container, in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        return min(total, int(_CGROUP_LIMIT.read_text()))
    return total


def _replace_locks() -> None:
    for history in list(_histories):
        history._replace_lock()
