"""One run in the viewer's memory: stable codes, cached statistics, matching rows."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import TensortapError
from tensortap.core.patterns import closest_names, natural_sort_key
from tensortap.formats.index import index_files
from tensortap.formats.run_layout import INTERNAL_FOLDER
from tensortap.kernels.statistics import STATISTIC_COLUMNS, StatisticField, Statistics, statistics
from tensortap.readers.query.parser import parse_query
from tensortap.viewer.data.dataset import TRACE_SUFFIXES, Dataset, format_site, open_dataset
from tensortap.viewer.web.responses import NO_ROW, NotFoundError

_FLOATS = tuple(field.name for field in STATISTIC_COLUMNS if not field.is_count)
STATISTIC_NAMES = tuple(field.name for field in STATISTIC_COLUMNS)
UNKNOWN, KNOWN, NO_NUMBERS = 0, 1, 2
Array = np.ndarray[Any, Any]
CATEGORICAL = {"name": "u4", "kind": "u1", "dtype": "u2", "shape": "u4", "site": "u4"}
_NUMERIC = {"step": "i4", "rank": "i2", "call": "u2", "order": "u4", "nbytes": "f8", "time": "f8"}
SORTS = (*CATEGORICAL, *_NUMERIC, *STATISTIC_NAMES)
_FINGERPRINT_BYTES = 4096  # compared at the start of an index
_STATISTICS_BUDGET = 128 << 20  # bytes read for the statistics of one response
_REFRESH_INTERVAL = 0.5  # seconds


class StatisticsColumns:
    """One row per record of a dataset; a row is filled once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.known = np.zeros(0, np.uint8)
        self.columns: dict[str, Array] = {
            field.name: np.zeros(0, np.uint32 if field.is_count else np.float32)
            for field in STATISTIC_COLUMNS
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
        """Forget all rows: they now stand for other records."""
        with self._lock:
            self.known = np.zeros(0, np.uint8)
            self.columns = {name: column[:0] for name, column in self.columns.items()}
        self.grow(size)

    def put(self, row: int, statistics: Statistics | None) -> None:
        with self._lock, np.errstate(over="ignore"):
            if statistics is not None:
                for field in STATISTIC_COLUMNS:
                    self.columns[field.name][row] = _column_value(field, statistics)
            self.known[row] = NO_NUMBERS if statistics is None else KNOWN

    def compute(
        self, rows: Iterable[int], operand: Callable[[int], Operand | None], budget: int, nbytes: Array
    ) -> int:
        """Fill unknown rows until `budget` bytes are read; returns how many were filled."""
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
        """A statistic of every row; NaN where unknown."""
        if name in _FLOATS:
            return self.columns[name]
        return np.where(self.known == KNOWN, self.columns[name], np.nan)

    def nonfinite_mask(self) -> Array:
        """Mask of the records that contain a NaN or an infinity."""
        return (self.columns["nan"] > 0) | (self.columns["inf"] > 0)


def statistics_of_row(operand: Callable[[int], Operand | None], row: int) -> Statistics | None:
    """None for a value that is not numeric or not readable; its own page says why."""
    try:
        array = operand(row)
    except (TensortapError, OSError, ValueError, TypeError, KeyError):
        return None
    return None if array is None else statistics(array.bits, array.dtype)


def _column_value(field: StatisticField, statistics: Statistics) -> float:
    number = field.read(statistics)
    if field.is_count:
        return min(number or 0, 0xFFFFFFFF)
    return np.nan if number is None else float(number)


class CachedRun:
    """A dataset with cached codes and statistics; several threads use it at once."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, run_id
        self.dataset: Dataset = open_dataset(path)
        self.statistics = StatisticsColumns()
        self._categories: dict[str, dict[str, int]] = {field: {} for field in CATEGORICAL}
        self._codes_of_field: dict[str, Array] = {}  # valid until the dataset grows
        self._lock = threading.RLock()
        self._last_refresh = 0.0
        self.generation = secrets.token_hex(8)  # changes when row numbers are reassigned
        self._fingerprint = _fingerprint_index(path)
        self._extend_statistics(0)

    def __len__(self) -> int:
        return len(self.statistics.known)

    def refresh(self) -> int:
        """Read new rows, at most every _REFRESH_INTERVAL; returns how many."""
        with self._lock:
            if time.monotonic() - self._last_refresh < _REFRESH_INTERVAL:
                return 0
            self._last_refresh = time.monotonic()
            before = len(self)
            if not self.dataset.refresh():
                return 0
            if self.dataset.type == "trace":
                self.generation = secrets.token_hex(8)
                self._codes_of_field.clear()
                self.statistics.clear(len(self.dataset))
            self._extend_statistics(before)
            return len(self) - before

    @property
    def is_replaced(self) -> bool:
        """Whether another run was written at the same path."""
        before = self._fingerprint
        try:
            now = _fingerprint_index(self.path)
        except OSError:
            return False
        if not before.head or now == before:
            return False
        has_grown = now.size > before.size and now.inode == before.inode
        if has_grown and now.head.startswith(before.head):
            self._fingerprint = now
            return False
        return True

    def columns(self, start: int = 0) -> tuple[dict[str, Array], dict[str, list[str]]]:
        """The rows from `start` on, and the categories of the categorical columns."""
        with self._lock:
            end = len(self)
            coded = {field: self._codes(field)[start:end].astype(kind) for field, kind in CATEGORICAL.items()}
            plain = {
                field: _clip_to_dtype(self.column(field)[start:end], kind) for field, kind in _NUMERIC.items()
            }
            return {**coded, **plain}, {field: list(texts) for field, texts in self._categories.items()}

    def column(self, field: str) -> Array:
        column = self.dataset.numbers(field)
        return np.zeros(len(self.dataset), np.int64) if column is None else column

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        with self._lock:
            if field in CATEGORICAL:
                return self._codes(field)[: len(self)], list(self._categories[field])
            column = self.dataset.texts(field)
            return None if column is None else (column[0][: len(self)], column[1])

    def numbers(self, field: str) -> Array | None:
        if field in STATISTIC_NAMES:
            return self.statistics.numbers(field)
        column = self.dataset.numbers(field)
        return None if column is None else column[: len(self)]

    def matching_rows(self, query: str, sort: str = "", descending: bool = False) -> Array:
        """The rows that match a query, sorted."""
        rows = np.flatnonzero(parse_query(query).mask(self))
        if sort:
            rows = rows[_stable_argsort(self._sort_keys(sort)[rows], descending)]
        return rows.astype(np.uint32)

    def find_row(self, criteria: dict[str, Any]) -> int:
        """The best matching row: exact name, then kind, call, rank and the nearest step, where given."""
        codes, names = self.texts("name") or (np.zeros(0, np.int64), [])
        if criteria["name"] not in names:
            similar = closest_names(criteria["name"], names)
            hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            raise NotFoundError(f"no record is called {criteria['name']!r}{hint}")
        rows = np.flatnonzero(codes == names.index(criteria["name"]))
        if criteria.get("kind"):
            kinds, kind_names = self.texts("kind") or (codes, [])
            rows = _filter_or_all(
                rows, np.array([kind_names[kinds[row]] == criteria["kind"] for row in rows])
            )
        for field in ("call", "rank"):
            numbers = self.column(field)[rows]
            rows = _filter_or_all(
                rows, numbers == (numbers.min() if criteria.get(field) is None else criteria[field])
            )
        steps = self.column("step")[rows]
        if criteria.get("step") is None:
            return int(rows[np.flatnonzero(steps == steps.max())[-1]])
        return int(rows[np.abs(steps - criteria["step"]).argmin()])

    def series_rows(self, row: int, by: str) -> Array:
        """Rows of the same name, kind and call: over the steps of its rank, or over the ranks of its step."""
        mask = np.ones(len(self), bool)
        for field in ("name", "kind"):
            codes, _ = self.texts(field) or (np.zeros(len(self), np.int64), [])
            mask &= codes == codes[row]
        for field in ("call", "rank" if by == "steps" else "step"):
            numbers = self.column(field)[: len(self)]
            mask &= numbers == numbers[row]
        rows = np.flatnonzero(mask)
        return rows[np.argsort(self.column("step" if by == "steps" else "rank")[rows], kind="stable")]

    def same_name_before(self, row: int) -> Array:
        """Mask of the earlier rows with the same name."""
        codes, _ = self.texts("name") or (np.zeros(len(self), np.int64), [])
        return np.asarray(codes[:row] == codes[row])

    def operand(self, row: int) -> Operand | None:
        self.check_row(row)
        return self.dataset.operand(row)

    def check_row(self, row: int) -> None:
        if not 0 <= row < len(self):
            raise NotFoundError(f"there is no row {row}; the run has {len(self)}")

    def compute_statistics(self, rows: Array, budget: int = _STATISTICS_BUDGET) -> int:
        """Compute missing statistics of these rows; returns how many."""
        chosen = [row for row in rows.tolist() if row < len(self)]
        return self.statistics.compute(chosen, self.dataset.operand, budget, self.column("nbytes"))

    def text(self, field: str, row: int) -> str:
        codes, texts = self.texts(field) or (np.zeros(len(self), np.int64), [""])
        return str(texts[codes[row]] or "")

    def _extend_statistics(self, start: int) -> None:
        self.statistics.grow(len(self.dataset))
        for row, row_statistics in self.dataset.stored_statistics(start).items():
            self.statistics.put(row, row_statistics)

    def _codes(self, field: str) -> Array:
        """Codes that stay the same while the dataset grows, unlike the dataset's own."""
        codes = self._codes_of_field.get(field)
        if codes is None or len(codes) != len(self.dataset):
            self._codes_of_field[field] = self._encode(field)
        return self._codes_of_field[field]

    def _encode(self, field: str) -> Array:
        codes, texts = self.dataset.texts(field) or (np.zeros(len(self.dataset), np.int64), [""])
        if field == "dtype":
            return self._encode_dtypes(codes, texts)
        labels = [format_site(text) if field == "site" else text or "" for text in texts]
        return self._assign_codes(field, labels)[codes] if len(labels) else codes

    def _encode_dtypes(self, codes: Array, texts: list[Any]) -> Array:
        """The dtype, or the class of a value without one."""
        classes, names = self.dataset.texts("type") or (codes, texts)
        is_none = np.array([not text for text in texts], bool)[codes] if texts else np.zeros(0, bool)
        dtype_codes, class_codes = (
            self._assign_codes("dtype", [text or "" for text in texts]),
            self._assign_codes("dtype", names),
        )
        return np.where(is_none, class_codes[classes], dtype_codes[codes]) if len(codes) else codes

    def _assign_codes(self, field: str, texts: list[Any]) -> Array:
        codes = self._categories[field]
        return np.array([codes.setdefault(str(text), len(codes)) for text in texts], np.int64)

    def _sort_keys(self, sort: str) -> Array:
        if sort not in SORTS:
            raise ValueError(f"rows cannot be sorted by {sort!r}; there are {', '.join(SORTS)}")
        if sort in CATEGORICAL:
            codes, texts = self.texts(sort) or (np.zeros(len(self), np.int64), [""])
            ranks = np.empty(len(texts), np.int64)
            ranks[sorted(range(len(texts)), key=lambda code: natural_sort_key(texts[code]))] = np.arange(
                len(texts)
            )
            return ranks[codes]
        column = self.numbers(sort)
        return np.zeros(len(self)) if column is None else column


class _IndexFingerprint(NamedTuple):
    """Identifies an index file. Inodes are reused, so size, ctime and the first bytes are compared too."""

    inode: int
    size: int
    ctime_ns: int
    head: bytes


def _fingerprint_index(path: Path) -> _IndexFingerprint:
    """Distinguishes a run that was rewritten at the same path from one that has grown."""
    file = path if path.is_file() else next(iter(sorted(index_files(path / INTERNAL_FOLDER))), None)
    if file is None or file.suffix.lower() in TRACE_SUFFIXES:  # a changed trace is read again as a whole
        return _IndexFingerprint(0, 0, 0, b"")
    with open(file, "rb") as stream:
        status = os.fstat(stream.fileno())
        return _IndexFingerprint(
            status.st_ino, status.st_size, status.st_ctime_ns, stream.read(_FINGERPRINT_BYTES)
        )


def _stable_argsort(keys: Array, descending: bool) -> Array:
    """Stable in both directions; NaN comes last."""
    return np.argsort(-keys if descending else keys, kind="stable")


def _filter_or_all(rows: Array, mask: Array) -> Array:
    """The rows where the mask holds, or all if it holds nowhere."""
    return rows[mask] if mask.any() else rows


def _clip_to_dtype(column: Array, kind: str) -> Array:
    if kind[0] == "f":
        return column.astype(kind)
    ends = np.iinfo(np.dtype(kind))
    return np.clip(column, ends.min, ends.max).astype(kind)


assert np.iinfo(np.uint32).max == NO_ROW
