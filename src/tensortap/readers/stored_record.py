"""One record on disk: its metadata from the index, its value and statistics on demand."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError, TensortapError
from tensortap.core.record import Kind, Placement, Record, Site, render_card
from tensortap.formats import serializers
from tensortap.formats.index import parse_placement, parse_site
from tensortap.formats.index_columns import IndexColumns
from tensortap.formats.run_layout import INTERNAL_FOLDER, is_own_run
from tensortap.frameworks.base import Framework, framework_named
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.render.value_rows import ValueRow, value_row


class StoredRecord:
    """A record of a run; `load` reads the value, everything else comes from the index."""

    __slots__ = ("_columns", "_row", "_statistics", "_values")

    def __init__(
        self, row: int, columns: IndexColumns, values: ValueReader, statistics: StatisticsCache
    ) -> None:
        self._row = row
        self._columns = columns
        self._values = values
        self._statistics = statistics

    def load(self, *, trust: bool = False) -> Any:
        """The value, in the framework it came from; memory-mapped where it is an array."""
        columns, row = self._columns, self._row
        offset = int(columns.plain["offset"][row])
        if offset >= 0:
            dtype, shape = columns.coded["dtype"][row], self.shape
            return self._values.array(self.file, offset, self.nbytes, dtype, shape, self.framework)
        start, length = int(columns.plain["start"][row]), int(columns.plain["length"][row])
        return self._values.deserialize(self.file, start, length, self.suffix, trust)

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the elements, computed on first use and cached; None if not an array."""
        columns, row = self._columns, self._row
        stored_statistics = columns.coded["statistics"][row]
        known = None if stored_statistics is None else Statistics.from_stored(json.loads(stored_statistics))
        if known is not None:
            return known
        offset = int(columns.plain["offset"][row])
        if offset < 0:
            return None
        key = f"{self.file}:{offset}"
        return self._statistics.get(key, self._bits, self.dtype)

    @property
    def bits(self) -> np.ndarray[Any, Any] | None:
        """The numbers as they lie in the file, in the storage type of `dtype` (`kernels.decode.decode` reads
        them): no framework is needed. None for what is not an array."""
        return self._bits() if int(self._columns.plain["offset"][self._row]) >= 0 else None

    def _bits(self) -> np.ndarray[Any, Any]:
        offset = int(self._columns.plain["offset"][self._row])
        return self._values.bits(self.file, offset, self.nbytes, self.dtype, self.shape)

    def record(self) -> Record:
        """The record as it was written, with its value."""
        coordinates = (self.step, self.rank, self.call, self.order, self.time, self.site, self.placement)
        return Record(self.name, self.load(), self.kind, *coordinates)

    @property
    def name(self) -> str:
        return str(self._columns.coded["name"][self._row])

    @property
    def kind(self) -> Kind:
        kind: Kind = self._columns.coded["kind"][self._row]
        return kind

    @property
    def step(self) -> int | tuple[int, ...]:
        return self._columns.step(self._row)

    @property
    def rank(self) -> int | tuple[int, ...]:
        return self._columns.rank(self._row)

    @property
    def call(self) -> int:
        return int(self._columns.plain["call"][self._row])

    @property
    def order(self) -> int:
        return int(self._columns.plain["order"][self._row])

    @property
    def time(self) -> float:
        return float(self._columns.plain["time"][self._row])

    @property
    def framework(self) -> str:
        return str(self._columns.coded["framework"][self._row])

    @property
    def type(self) -> str:
        return str(self._columns.coded["type"][self._row])

    @property
    def dtype(self) -> str:
        return str(self._columns.coded["dtype"][self._row])

    @property
    def shape(self) -> tuple[int, ...]:
        text = self._columns.coded["shape"][self._row]
        return tuple(map(int, text.split(","))) if text else ()

    @property
    def device(self) -> str:
        return str(self._columns.coded["device"][self._row])

    @property
    def nbytes(self) -> int:
        return int(self._columns.plain["nbytes"][self._row])

    @property
    def file(self) -> str:
        return str(self._columns.coded["file"][self._row])

    @property
    def suffix(self) -> str:
        return str(self._columns.coded["suffix"][self._row])

    @property
    def checksum(self) -> str | None:
        return self._columns.plain["checksum"][self._row].decode() or None

    @property
    def site(self) -> Site | None:
        text = self._columns.coded["site"][self._row]
        return None if text is None else parse_site(text)

    @property
    def placement(self) -> Placement | None:
        text = self._columns.coded["placement"][self._row]
        return None if text is None else parse_placement(json.loads(text))

    def row(self) -> list[str]:
        """The record as cells of a table row."""
        shape = str(list(self.shape)) if self.dtype else ""
        return [
            self.name if self.name.isprintable() else repr(self.name),
            str(self.step),
            str(self.rank),
            self.dtype or self.type,
            shape,
            str(self.nbytes),
            self.file,
        ]

    def _repr_html_(self) -> str | None:
        return render_card(self)

    def __repr__(self) -> str:
        description = f"{self.dtype} {list(self.shape)}" if self.dtype else self.type
        return f"<{self.name} step {self.step} rank {self.rank}: {description}>"


UNREADABLE = "cannot be read"  # start of the note of a row without its value
_SMALL = 4096  # bytes: a number, or a few of them


def display_row(record: StoredRecord) -> ValueRow:
    """The display row of a record; if it cannot be read, the note says why."""
    row = ValueRow(record.name, record.kind, record.step, record.rank, record.call)
    try:
        stats = record.statistics
        if stats is None:
            return _non_array_row(record, row)
    except (TensortapError, OSError, ValueError) as error:
        return replace(row, dtype=record.dtype or record.type, note=f"{UNREADABLE}: {error}")
    note = "absolute values" if record.dtype.startswith("complex") else "" if stats.count else "empty"
    return replace(
        row,
        dtype=record.dtype,
        shape=record.shape,
        device=record.device,
        low=stats.min,
        high=stats.max,
        mean=stats.mean,
        sigma=stats.std,
        nan=stats.nan,
        inf=stats.inf,
        count=stats.count,
        note=note,
    )


def _non_array_row(record: StoredRecord, row: ValueRow) -> ValueRow:
    """A small value is loaded, since it may be a number; a larger one is shown by its class."""
    if record.nbytes <= _SMALL and record.framework == "python":
        return value_row(Record(row.name, record.load(), row.kind, row.step, row.rank, row.call))
    return replace(row, dtype=record.dtype or record.type, shape=record.shape if record.dtype else None)


_MAX_CACHED_FILES = 64
_MAX_MAPPED_FILES = 256  # a process may often open no more than 1024
Memory = mmap.mmap | bytearray
Array = np.ndarray[Any, Any]


class ValueReader:
    """Caches recent mappings; a pack that has grown is mapped again."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._mapped = lru_cache(maxsize=_MAX_CACHED_FILES)(self._map)
        self._lock = Lock()  # else two threads may map one file at two lengths, and the shorter may stay
        self._alive: WeakSet[mmap.mmap] = WeakSet()

    def array(
        self, file: str, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...], framework: str
    ) -> Any:
        """An array or tensor over the file's own bytes; writing to it stays in this process."""
        bits = self.bits(file, offset, nbytes, dtype, shape)
        return _framework_or_numpy(framework).from_bits(bits, dtype)

    def view(self, file: str, end: int) -> memoryview:
        """The bytes of a file of the run, which must be at least `end` long."""
        return memoryview(self._memory(file, end))

    def bits(self, file: str, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> Array:
        number_type = DTYPE_TABLE.get(dtype)
        if number_type is None:
            raise CorruptRunError(
                f"the index names the number type {dtype!r} for a value of {self._run / file}, which is "
                "none; the other values of the run can still be read"
            )
        if nbytes == 0:
            return np.empty(shape, number_type.storage)
        memory = self._memory(file, offset + nbytes)
        return np.frombuffer(memory, number_type.storage, nbytes // number_type.itemsize, offset).reshape(
            shape
        )

    def deserialize(self, file: str, start: int, length: int, suffix: str, trust: bool) -> Any:
        path = self._run / file
        if not file.startswith(INTERNAL_FOLDER):
            self._mapped(file)  # raises for a file that is missing or outside the run
            return serializers.load(path, trust=trust)
        data = memoryview(self._memory(file, start + length))[start : start + length]
        trusted = trust or is_own_run(path)
        return serializers.read(suffix, data, f"{file} at byte {start}", is_trusted=trusted)

    def _memory(self, file: str, end: int) -> Memory:
        with self._lock:
            memory = self._mapped(file)
            if len(memory) < end:
                self._mapped.cache_clear()
                memory = self._mapped(file)
        if len(memory) < end:
            raise CorruptRunError(
                f"{self._run / file} ends at byte {len(memory)} before a value that should reach to {end}; "
                f"the other values of the run can still be read"
            )
        return memory

    def _map(self, file: str) -> Memory:
        path = os.path.join(self._run, file)
        if os.path.isabs(file) or ".." in file.split("/"):
            raise CorruptRunError(f"the index names {file!r}, which lies outside the run; it is not read")
        try:
            with open(path, "rb") as stream:
                # A mapping holds a file descriptor as long as a value of it lives, and those are limited.
                if len(self._alive) >= _MAX_MAPPED_FILES and not file.startswith(INTERNAL_FOLDER):
                    return bytearray(stream.read())
                # Copy-on-write: writing to a value never changes the file.
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
                self._alive.add(memory)
                return memory
        except FileNotFoundError:
            raise _missing_file_error(path) from None
        except ValueError:
            raise CorruptRunError(
                f"{path} is empty although the index lists a value in it; the others can still be read"
            ) from None


def _missing_file_error(path: str) -> CorruptRunError:
    return CorruptRunError(
        f"{path} is in the index but not on disk; the other values of the run can still be read"
    )


@lru_cache(maxsize=16)
def _framework_or_numpy(name: str) -> Framework:
    """The framework a value came from, or numpy where that is not installed."""
    try:
        return framework_named(name)
    except ImportError:
        return framework_named("numpy")


class StatisticsCache:
    """An append-only JSONL file of `[key, row]`; for a read-only run nothing is cached on disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "statistics.jsonl"
        self._cached: dict[str, Statistics] | None = None

    def get(self, key: str, bits: Callable[[], np.ndarray[Any, Any]], dtype: str) -> Statistics:
        cached = self._load()
        if key not in cached:
            cached[key] = statistics(bits(), dtype)
            self._append(key, cached[key].to_dict())
        return cached[key]

    def _load(self) -> dict[str, Statistics]:
        if self._cached is None:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
            self._cached = dict(filter(None, map(_parse_line, lines)))
        return self._cached

    def _append(self, key: str, row: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(fd, json.dumps([key, row]).encode() + b"\n")
            finally:
                os.close(fd)


def _parse_line(line: bytes) -> tuple[str, Statistics] | None:
    """The entry of a line, or None if it is damaged; its statistics are computed again."""
    try:
        key, row = json.loads(line)
    except (ValueError, TypeError):
        return None
    statistics = Statistics.from_stored(row)
    return None if statistics is None else (str(key), statistics)
