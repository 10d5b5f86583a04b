"""A sink that keeps what arrived, by name and number, within a bound of memory."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import re
import threading
from collections import Counter, deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import time
from weakref import WeakSet

from tensortap.core.record import Record
from tensortap.formats.arrivals import Arrival, size_words
from tensortap.sinks.memory import nbytes_of

_OVERHEAD = 1024  # bytes of a record besides its numbers
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*([\d.]+)\s*(%|([KMGT]?)i?B?)\s*", re.IGNORECASE)
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_histories: WeakSet[History] = WeakSet()
log = logging.getLogger("tensortap.history")


class History:
    """All values of each name while they fit into `most` bytes. Beyond that the oldest go, first those
    that are not the last of their name; what is pinned stays."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.held = 0
        self.gone: Counter[str] = Counter()  # by name
        self._numbers = itertools.count(1)
        self._arrivals: dict[int, Arrival] = {}
        self._by_name: dict[str, deque[int]] = {}
        self._earlier: list[int] = []  # a heap of those that are not the last of their name
        self._pinned: set[int] = set()
        self._renew_lock()
        _watch_forks()
        _histories.add(self)

    def write(self, record: Record) -> None:
        nbytes = nbytes_of(record.value) + _OVERHEAD
        with self._lock:
            number = next(self._numbers)
            numbers = self._by_name.setdefault(record.name, deque())
            if numbers:
                heapq.heappush(self._earlier, numbers[-1])
            numbers.append(number)
            self._arrivals[number] = Arrival(number, record, nbytes, time())
            self.held += nbytes
            self._make_room(number)

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

    def all(self) -> list[Arrival]:
        """Everything that is still there, the oldest first."""
        with self._lock:
            return list(self._arrivals.values())

    def since(self, number: int) -> list[Arrival]:
        """What came after that one."""
        with self._lock:
            found = itertools.takewhile(lambda one: one.number > number, reversed(self._arrivals.values()))
            return list(found)[::-1]

    def of(self, name: str) -> list[Arrival]:
        with self._lock:
            return [self._arrivals[number] for number in self._by_name.get(name, ())]

    def numbered(self, number: int) -> Arrival | None:
        return self._arrivals.get(number)

    def is_pinned(self, number: int) -> bool:
        return number in self._pinned

    def pin(self, number: int) -> None:
        """Never let it go."""
        with self._lock:
            self._pinned.add(number)

    def unpin(self, number: int) -> None:
        with self._lock:
            if number in self._pinned:
                self._pinned.discard(number)
                arrival = self._arrivals[number]
                if self._by_name[arrival.record.name][-1] != number:
                    heapq.heappush(self._earlier, number)

    def _renew_lock(self) -> None:
        """A forked child has no other threads, but one may have held the lock when it was born."""
        self._lock = threading.RLock()

    def _make_room(self, newest: int) -> None:
        if self.most is None or self.held <= self.most:
            return
        if not self.gone:
            log.warning(
                "what arrived takes more than the %s that serve(memory=...) allows: the oldest values go, "
                "the last of each name at the end; pin() keeps one",
                size_words(self.most),
            )
        while self.held > self.most and self._earlier:
            number = heapq.heappop(self._earlier)
            if number not in self._pinned:
                self._remove(number)
        for number in list(self._arrivals) if self.held > self.most else ():
            if self.held <= self.most:
                return
            if number != newest and number not in self._pinned:
                self._remove(number)

    def _remove(self, number: int) -> None:
        arrival = self._arrivals.pop(number, None)
        if arrival is None:
            return
        name = arrival.record.name
        self.held -= arrival.nbytes
        self.gone[name] += 1
        numbers = self._by_name[name]
        numbers.remove(number)
        if not numbers:
            del self._by_name[name]


def memory_bound(said: str | int | None) -> int | None:
    """A number of bytes, from one, from `"4GB"` or from a share of the machine's memory, `"50%"`."""
    if said is None or (type(said) is int and said > 0):
        return said
    found = _SIZE.fullmatch(said) if isinstance(said, str) else None
    if found is None or found[1].count(".") > 1 or not found[1].strip("."):
        raise ValueError(f"memory is {said!r}; give a share such as '50%', a size such as '4GB', or None")
    amount = float(found[1])
    if found[2] == "%":
        return max(int(machine_memory() * amount / 100), 1)
    return max(int(amount * _UNITS[found[3].upper()]), 1)


def machine_memory() -> int:
    """Bytes of the machine, or of the container this runs in."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        return min(whole, int(_CGROUP.read_text()))
    return whole


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_locks)


def _renew_locks() -> None:
    for history in list(_histories):
        history._renew_lock()
