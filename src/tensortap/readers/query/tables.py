"""The index of a run as a query table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensortap.core.record import first_number
from tensortap.formats.index_columns import IndexColumns
from tensortap.kernels.statistics import STATISTIC_COLUMNS, StatisticField, Statistics

Array = np.ndarray[Any, Any]
_STATISTICS = {field.name: field for field in STATISTIC_COLUMNS}
_TIME_FIELDS = {"since": "time", "before": "time"}
_MERGED = np.iinfo(np.int64).min


class IndexTable:
    """String and number columns, a row per record; statistics only where they were written with the value."""

    def __init__(self, columns: IndexColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        column = self._columns.coded.get(field)
        return None if column is None else (column.codes, column.texts)

    def numbers(self, field: str) -> Array | None:
        field = _TIME_FIELDS.get(field, field)
        if field in ("step", "rank"):
            return self._first_numbers(field)
        if field in _STATISTICS:
            return self._statistic(_STATISTICS[field])
        return self._columns.plain.get(field)

    def _first_numbers(self, field: str) -> Array:
        """The step or rank of each record; the first one of a record merged from several."""
        numbers = self._columns.plain[field]
        merged = np.flatnonzero(numbers == _MERGED)
        if len(merged):
            numbers = numbers.copy()
            read = self._columns.step if field == "step" else self._columns.rank
            numbers[merged] = [np.clip(first_number(read(int(row))), -(1 << 62), 1 << 62) for row in merged]
        return numbers

    def _statistic(self, field: StatisticField) -> Array:
        column = self._columns.coded["statistics"]
        rows = [None if text is None else json.loads(text) for text in column.texts]
        numbers = np.array([_statistic_from_row(row, field) for row in rows], np.float64)
        return numbers[column.codes] if len(numbers) else np.full(len(self), np.nan)


def _statistic_from_row(row: Any, field: StatisticField) -> float:
    statistics = Statistics.from_stored(row)
    number = None if statistics is None else field.read(statistics)
    return np.nan if number is None else float(number)
