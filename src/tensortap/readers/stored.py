"""One record on disk: its metadata at once, its value on demand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensortap.core.record import Kind, Placement, Record, Site, render_card
from tensortap.formats.index import parse_placement, parse_site
from tensortap.formats.index_columns import IndexColumns
from tensortap.kernels.statistics import Statistics
from tensortap.readers.statistics_cache import StatisticsCache
from tensortap.readers.values import ValueReader


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
        if stored_statistics is not None:
            return Statistics(*json.loads(stored_statistics))
        offset = int(columns.plain["offset"][row])
        if offset < 0:
            return None
        key = f"{self.file}:{offset}"
        return self._statistics.get(key, self._bits, self.dtype)

    @property
    def bits(self) -> np.ndarray[Any, Any] | None:
        """The numbers as they lie in the file, in the storage type of `dtype` (`kernels.numbers.decode` reads
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
