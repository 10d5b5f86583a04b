"""The index of a run as a query sees it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensortap.formats.columns import Columns

Array = np.ndarray[Any, Any]
STATISTICS = ("mean", "std", "min", "max", "absmax", "nan", "inf")
_PLACES = {"min": 1, "max": 2, "mean": 3, "std": 4, "nan": 6, "inf": 7}
_TIMES = {"since": "time", "before": "time"}
_ODD = np.iinfo(np.int64).min


class Asked:
    """Texts and numbers of every record; of statistics, those that were written with the values."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        column = self._columns.coded.get(field)
        return None if column is None else (column.codes, column.texts)

    def numbers(self, field: str) -> Array | None:
        field = _TIMES.get(field, field)
        if field in ("step", "rank"):
            return self._first(field)
        if field in STATISTICS:
            return self._statistic(field)
        return self._columns.plain.get(field)

    def _first(self, field: str) -> Array:
        """Of a record that was merged from several, the first."""
        found = self._columns.plain[field]
        odd = np.flatnonzero(found == _ODD)
        if len(odd):
            found = found.copy()
            read = self._columns.step if field == "step" else self._columns.rank
            found[odd] = [np.clip(_one(read(int(row))), -(1 << 62), 1 << 62) for row in odd]
        return found

    def _statistic(self, field: str) -> Array:
        column = self._columns.coded["statistics"]
        told = [None if text is None else json.loads(text) for text in column.texts]
        numbers = np.array([_number(row, field) for row in told], np.float64)
        return numbers[column.codes] if len(numbers) else np.full(len(self), np.nan)


def _one(number: int | tuple[int, ...]) -> int:
    return number if isinstance(number, int) else (number[0] if number else 0)


def _number(row: list[Any] | None, field: str) -> float:
    if row is None:
        return np.nan
    if field == "absmax":
        ends = [abs(end) for end in row[1:3] if end is not None]
        return max(ends, default=np.nan)
    found = row[_PLACES[field]]
    return np.nan if found is None else float(found)
