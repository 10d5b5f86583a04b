"""One run as the viewer holds it: rows with codes that never change, statistics, answers to queries."""

from __future__ import annotations

import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.operands import Operand
from tensortap.core.paths import closest_names, natural_sort_key
from tensortap.formats.index import index_files
from tensortap.formats.run_layout import OWN
from tensortap.readers.query import parse_query
from tensortap.viewer.answers import NO_ROW
from tensortap.viewer.books import TRACE_SUFFIXES, Dataset, open_dataset, format_site
from tensortap.viewer.counted import STATISTIC_NAMES, StatisticsColumns
from tensortap.viewer.problems import NotFoundError

Array = np.ndarray[Any, Any]
CATEGORICAL = {"name": "u4", "kind": "u1", "dtype": "u2", "shape": "u4", "site": "u4"}
_NUMERIC = {"step": "i4", "rank": "i2", "call": "u2", "order": "u4", "nbytes": "f8", "time": "f8"}
SORTS = (*CATEGORICAL, *_NUMERIC, *STATISTIC_NAMES)
_FINGERPRINT_BYTES = 4096  # bytes at the start of an index that tell it from another
_STATISTICS_BUDGET = 128 << 20  # bytes that are read for the statistics of one answer
_REFRESH_INTERVAL = 0.5  # seconds


class CachedRun:
    """A book, and what was found out about it; several threads ask at once."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self.book: Dataset = open_dataset(path)
        self.counted = StatisticsColumns()
        self._words: dict[str, dict[str, int]] = {field: {} for field in CATEGORICAL}
        self._made: dict[str, Array] = {}  # codes, until the book grows
        self._lock = threading.RLock()
        self._looked = 0.0
        self.edition = secrets.token_hex(8)  # another when rows come to stand for others
        self._mark = _fingerprint_index(path)
        self._grow(0)

    def __len__(self) -> int:
        return len(self.counted.known)

    def refresh(self) -> int:
        """How many rows are new; not more often than it is worth."""
        with self._lock:
            if time.monotonic() - self._looked < _REFRESH_INTERVAL:
                return 0
            self._looked = time.monotonic()
            before = len(self)
            if not self.book.refresh():
                return 0
            if self.book.type == "trace":
                self.edition = secrets.token_hex(8)
                self._made.clear()
                self.counted.clear(len(self.book))
            self._grow(before)
            return len(self) - before

    @property
    def is_replaced(self) -> bool:
        """Whether another run has been written where this one was."""
        known = self._mark
        try:
            now = _fingerprint_index(self.path)
        except OSError:
            return False
        if not known.start or now == known:
            return False
        has_grown = now.size > known.size and now.number == known.number
        if has_grown and now.start.startswith(known.start):
            self._mark = now
            return False
        return True

    def columns(self, start: int = 0) -> tuple[dict[str, Array], dict[str, list[str]]]:
        """The rows from `start` on, and the texts that their codes stand for."""
        with self._lock:
            end = len(self)
            coded = {field: self._codes(field)[start:end].astype(kind) for field, kind in CATEGORICAL.items()}
            plain = {field: _clip_to_dtype(self.plain(field)[start:end], kind) for field, kind in _NUMERIC.items()}
            return {**coded, **plain}, {field: list(words) for field, words in self._words.items()}

    def plain(self, field: str) -> Array:
        found = self.book.numbers(field)
        return np.zeros(len(self.book), np.int64) if found is None else found

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        with self._lock:
            if field in CATEGORICAL:
                return self._codes(field)[: len(self)], list(self._words[field])
            found = self.book.texts(field)
            return None if found is None else (found[0][: len(self)], found[1])

    def numbers(self, field: str) -> Array | None:
        if field in STATISTIC_NAMES:
            return self.counted.numbers(field)
        found = self.book.numbers(field)
        return None if found is None else found[: len(self)]

    def rows(self, query: str, sort: str = "", descending: bool = False) -> Array:
        """The rows that a query means, in the order that is asked for."""
        found = np.flatnonzero(parse_query(query).mask(self))
        if sort:
            found = found[_stable_argsort(self._keys(sort)[found], descending)]
        return found.astype(np.uint32)

    def find(self, wanted: dict[str, Any]) -> int:
        """The record that fits best: of the name, then of the kind, call, rank and step that are told."""
        codes, names = self.texts("name") or (np.zeros(0, np.int64), [])
        if wanted["name"] not in names:
            near = closest_names(wanted["name"], names)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise NotFoundError(f"no record is called {wanted['name']!r}{hint}")
        rows = np.flatnonzero(codes == names.index(wanted["name"]))
        if wanted.get("kind"):
            kinds, words = self.texts("kind") or (codes, [])
            rows = _filter_or_all(rows, np.array([words[kinds[row]] == wanted["kind"] for row in rows]))
        for field in ("call", "rank"):
            numbers = self.plain(field)[rows]
            rows = _filter_or_all(rows, numbers == (numbers.min() if wanted.get(field) is None else wanted[field]))
        steps = self.plain("step")[rows]
        if wanted.get("step") is None:
            return int(rows[np.flatnonzero(steps == steps.max())[-1]])
        return int(rows[np.abs(steps - wanted["step"]).argmin()])

    def alike(self, row: int, by: str) -> Array:
        """The rows of the same name, kind and call: over the steps of its rank, or the ranks of its step."""
        mask = np.ones(len(self), bool)
        for field in ("name", "kind"):
            codes, _ = self.texts(field) or (np.zeros(len(self), np.int64), [])
            mask &= codes == codes[row]
        for field in ("call", "rank" if by == "steps" else "step"):
            numbers = self.plain(field)[: len(self)]
            mask &= numbers == numbers[row]
        rows = np.flatnonzero(mask)
        return rows[np.argsort(self.plain("step" if by == "steps" else "rank")[rows], kind="stable")]

    def alike_before(self, row: int) -> Array:
        """A mask of the rows before one that have its name."""
        codes, _ = self.texts("name") or (np.zeros(len(self), np.int64), [])
        return np.asarray(codes[:row] == codes[row])

    def operand(self, row: int) -> Operand | None:
        self.check(row)
        return self.book.operand(row)

    def check(self, row: int) -> None:
        if not 0 <= row < len(self):
            raise NotFoundError(f"there is no row {row}; the run has {len(self)}")

    def compute(self, rows: Array, budget: int = _STATISTICS_BUDGET) -> int:
        """Statistics of rows that have none yet."""
        chosen = [row for row in rows.tolist() if row < len(self)]
        return self.counted.compute(chosen, self.book.operand, budget, self.plain("nbytes"))

    def text(self, field: str, row: int) -> str:
        codes, words = self.texts(field) or (np.zeros(len(self), np.int64), [""])
        return str(words[codes[row]] or "")

    def _grow(self, start: int) -> None:
        self.counted.grow(len(self.book))
        for row, known in self.book.known_statistics(start).items():
            self.counted.put(row, known)

    def _codes(self, field: str) -> Array:
        """Codes of our own: what the book calls a text may move when it grows."""
        made = self._made.get(field)
        if made is None or len(made) != len(self.book):
            self._made[field] = self._coded(field)
        return self._made[field]

    def _coded(self, field: str) -> Array:
        codes, texts = self.book.texts(field) or (np.zeros(len(self.book), np.int64), [""])
        if field == "dtype":
            return self._types(codes, texts)
        shown = [format_site(text) if field == "site" else text or "" for text in texts]
        return self._table(field, shown)[codes] if len(shown) else codes

    def _types(self, codes: Array, texts: list[Any]) -> Array:
        """The number type, or the class of what has none."""
        classes, names = self.book.texts("type") or (codes, texts)
        is_none = np.array([not text for text in texts], bool)[codes] if texts else np.zeros(0, bool)
        mine, others = self._table("dtype", [text or "" for text in texts]), self._table("dtype", names)
        return np.where(is_none, others[classes], mine[codes]) if len(codes) else codes

    def _table(self, field: str, texts: list[Any]) -> Array:
        known = self._words[field]
        return np.array([known.setdefault(str(text), len(known)) for text in texts], np.int64)

    def _keys(self, sort: str) -> Array:
        if sort not in SORTS:
            raise ValueError(f"rows cannot be sorted by {sort!r}; there are {', '.join(SORTS)}")
        if sort in CATEGORICAL:
            codes, texts = self.texts(sort) or (np.zeros(len(self), np.int64), [""])
            places = np.empty(len(texts), np.int64)
            places[sorted(range(len(texts)), key=lambda code: natural_sort_key(texts[code]))] = np.arange(len(texts))
            return places[codes]
        found = self.numbers(sort)
        return np.zeros(len(self)) if found is None else found


class _IndexFingerprint(NamedTuple):
    """Of an index: the number of its file, which another one may get later, its size, when it was last
    changed, and how it begins."""

    number: int
    size: int
    changed: int
    start: bytes


def _fingerprint_index(path: Path) -> _IndexFingerprint:
    """What tells a run that was written anew at the same place from one that has grown."""
    file = path if path.is_file() else next(iter(sorted(index_files(path / OWN))), None)
    if file is None or file.suffix.lower() in TRACE_SUFFIXES:  # a trace is read again when it changes
        return _IndexFingerprint(0, 0, 0, b"")
    with open(file, "rb") as stream:
        found = os.fstat(stream.fileno())
        return _IndexFingerprint(found.st_ino, found.st_size, found.st_ctime_ns, stream.read(_FINGERPRINT_BYTES))


def _stable_argsort(keys: Array, descending: bool) -> Array:
    """Stable both ways, and what is not known comes last."""
    return np.argsort(-keys if descending else keys, kind="stable")


def _filter_or_all(rows: Array, mask: Array) -> Array:
    """Those that fit, or all where none does."""
    return rows[mask] if mask.any() else rows


def _clip_to_dtype(column: Array, kind: str) -> Array:
    if kind[0] == "f":
        return column.astype(kind)
    ends = np.iinfo(np.dtype(kind))
    return np.clip(column, ends.min, ends.max).astype(kind)


assert np.iinfo(np.uint32).max == NO_ROW
