"""A sink that keeps records in memory: all of them, or the latest within a limit."""

from __future__ import annotations

import logging
from collections import deque
from sys import getsizeof
from typing import Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Record, Series
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves, snapshot_leaves
from tensortap.frameworks.retention import RetentionPolicy

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
