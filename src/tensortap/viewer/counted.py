"""Statistics of records as columns: those that are known, and more as they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import TensortapError
from tensortap.kernels.statistics import Statistics, statistics

Array = np.ndarray[Any, Any]
_FLOATS = ("mean", "std", "min", "max", "absmax")
_COUNTS = ("nan", "inf")
STATISTIC_NAMES = (*_FLOATS, *_COUNTS)
UNKNOWN, KNOWN, NO_NUMBERS = 0, 1, 2


class StatisticsColumns:
    """One row for each record of a book; a row is filled once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.known = np.zeros(0, np.uint8)
        self.columns: dict[str, Array] = {
            **{name: np.zeros(0, np.float32) for name in _FLOATS},
            **{name: np.zeros(0, np.uint32) for name in _COUNTS},
        }

    def grow(self, size: int) -> None:
        with self._lock:
            more = size - len(self.known)
            if more > 0:
                self.known = np.concatenate([self.known, np.zeros(more, np.uint8)])
                for name, column in self.columns.items():
                    empty = np.nan if name in _FLOATS else 0
                    self.columns[name] = np.concatenate([column, np.full(more, empty, column.dtype)])

    def clear(self, size: int) -> None:
        """Rows that do not stand for what they stood for."""
        with self._lock:
            self.known = np.zeros(0, np.uint8)
            self.columns = {name: column[:0] for name, column in self.columns.items()}
        self.grow(size)

    def put(self, row: int, statistics: Statistics | None) -> None:
        with self._lock, np.errstate(over="ignore"):
            if statistics is not None:
                for name, number in zip(STATISTIC_NAMES, _column_values(statistics), strict=True):
                    self.columns[name][row] = number
            self.known[row] = NO_NUMBERS if statistics is None else KNOWN

    def compute(
        self, rows: Iterable[int], operand: Callable[[int], Operand | None], budget: int, nbytes: Array
    ) -> int:
        """Fill those rows that are not known, as far as the bytes of the budget go; how many were."""
        done = 0
        for row in rows:
            if self.known[row] != UNKNOWN:
                continue
            budget -= int(nbytes[row])
            if budget < 0:
                break
            self.put(row, statistics_of_row(operand, row))
            done += 1
        return done

    def numbers(self, name: str) -> Array:
        """NaN where it is not known."""
        if name in _FLOATS:
            return self.columns[name]
        return np.where(self.known == KNOWN, self.columns[name], np.nan)

    def nonfinite_mask(self) -> Array:
        """A mask of the records in which a NaN or an infinity was found."""
        return (self.columns["nan"] > 0) | (self.columns["inf"] > 0)


def statistics_of_row(operand: Callable[[int], Operand | None], row: int) -> Statistics | None:
    """None where there are no numbers, or no reading of them: the page of the value tells why."""
    try:
        array = operand(row)
    except (TensortapError, OSError, ValueError, TypeError, KeyError):
        return None
    return None if array is None else statistics(array.bits, array.dtype)


def absmax(statistics: Statistics) -> float:
    ends = [abs(float(end)) for end in (statistics.min, statistics.max) if end is not None]
    return max(ends, default=float("nan"))


def _column_values(statistics: Statistics) -> tuple[float, ...]:
    ends = [
        np.nan if end is None else float(end)
        for end in (statistics.mean, statistics.std, statistics.min, statistics.max)
    ]
    return (*ends, absmax(statistics), min(statistics.nan, 0xFFFFFFFF), min(statistics.inf, 0xFFFFFFFF))
