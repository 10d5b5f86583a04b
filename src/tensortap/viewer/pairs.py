"""The pairs of a comparison as columns: what a query, the table and the map are made of."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding
from tensortap.comparison.modules import module_of
from tensortap.comparison.references import RunValueRef, TraceValueRef
from tensortap.comparison.runs import Comparison
from tensortap.comparison.verdict import VERDICTS
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.paths import natural_sort_key
from tensortap.readers.query import parse_query
from tensortap.viewer.answers import NO_ROW
from tensortap.viewer.stock import CachedRun

Array = np.ndarray[Any, Any]
ERRORS = ("relative_l2", "max_abs", "ulp", "cosine", "mismatch", "ratio", "contribution")
_ASKED = {
    "err": "relative_l2",
    "abs": "max_abs",
    "ulp": "ulp",
    "cos": "cosine",
    "mismatch": "mismatch",
    "ratio": "ratio",
}
# How many bits of a number count, without the hidden one.
_MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
_CODED = {"name": "u4", "b_name": "u4", "kind": "u1", "dtype": "u2", "shape": "u4", "site": "u4"}
_PLAIN = {"step": "i4", "rank": "i2", "call": "u2", "order": "u4"}


class PairColumns:
    """Made once of a comparison; `a` and `b` are the runs, where they are in the library."""

    def __init__(self, found: Comparison, a: CachedRun | None, b: CachedRun | None) -> None:
        self.table = found.table
        self._stocks = a, b

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def coded(self) -> dict[str, tuple[Array, list[str]]]:
        entries = [one.pair.a for one in self.table]
        return {
            "name": _coded([entry.name for entry in entries]),
            "b_name": _coded([one.pair.b.name for one in self.table]),
            "kind": _coded([entry.kind for entry in entries]),
            "dtype": _coded([entry.dtype for entry in entries]),
            "shape": _coded([",".join(map(str, entry.shape)) for entry in entries]),
            "site": _coded([_site(entry) for entry in entries]),
        }

    @cached_property
    def plain(self) -> dict[str, Array]:
        facts = [(one.step, one.rank, one.call, one.pair.a.order, one.pair.a.nbytes) for one in self.table]
        columns = np.array(facts, np.float64).reshape(-1, 5).T
        return dict(zip(("step", "rank", "call", "order", "nbytes"), columns, strict=True))

    @cached_property
    def places(self) -> dict[tuple[str, int, int, int], int]:
        """The first pair of each name at each moment."""
        found: dict[tuple[str, int, int, int], int] = {}
        for number, one in enumerate(self.table):
            found.setdefault((one.name, one.step, one.rank, one.call), number)
        return found

    @cached_property
    def verdicts(self) -> Array:
        return np.array([VERDICTS.index(one.verdict) for one in self.table], np.uint8)

    @cached_property
    def errors(self) -> dict[str, Array]:
        measured = np.array([_errors(one) for one in self.table], np.float32).reshape(-1, len(ERRORS) - 1).T
        found = dict(zip(ERRORS, measured, strict=False))
        found["contribution"] = self._contribution(found["relative_l2"])
        return found

    @cached_property
    def rows(self) -> tuple[Array, Array]:
        """The rows of both runs that each pair is made of; none where a value was put together."""
        sides = [[one.pair.a for one in self.table], [one.pair.b for one in self.table]]
        made = [_rows(entries, stock) for entries, stock in zip(sides, self._stocks, strict=True)]
        return made[0], made[1]

    def columns(self) -> tuple[dict[str, Array], dict[str, Any]]:
        texts = {field: texts for field, (_, texts) in self.coded.items()}
        columns = {field: self.coded[field][0].astype(kind) for field, kind in _CODED.items()}
        columns |= {
            field: np.clip(self.plain[field], 0 if kind[0] == "u" else -1 << 31, None).astype(kind)
            for field, kind in _PLAIN.items()
        }
        rows = {"verdict": self.verdicts, "row_a": self.rows[0], "row_b": self.rows[1]}
        return {**columns, **rows, **self.errors}, {**texts, "verdict": list(VERDICTS)}

    def matching(self, query: str, sort: str = "", descending: bool = False) -> Array:
        found = np.flatnonzero(parse_query(query).mask(self))
        if sort:
            keys = self._keys(sort)[found]
            found = found[np.argsort(-keys if descending else keys, kind="stable")]
        return found.astype(np.uint32)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        if field == "verdict":
            return self.verdicts.astype(np.int64), list(VERDICTS)
        return self.coded.get(field)

    def numbers(self, field: str) -> Array | None:
        return self.errors[_ASKED[field]] if field in _ASKED else self.plain.get(field)

    def _keys(self, sort: str) -> Array:
        sort = _ASKED.get(sort, sort)
        if sort in self.errors:
            return self.errors[sort]
        if sort in self.plain:
            return self.plain[sort]
        if sort == "verdict":
            return self.verdicts.astype(np.int64)
        if sort not in self.coded:
            known = ", ".join([*self.coded, *self.plain, *ERRORS, "verdict"])
            raise ValueError(f"pairs cannot be sorted by {sort!r}; there are {known}")
        codes, texts = self.coded[sort]
        places = np.empty(len(texts), np.int64)
        places[sorted(range(len(texts)), key=lambda code: natural_sort_key(texts[code]))] = np.arange(len(texts))
        return places[codes]

    def _contribution(self, error: Array) -> Array:
        """What a module adds: the error of what it gives, without the largest of what it was given."""
        given: dict[tuple[Any, ...], float] = {}
        keys = []
        for one, size in zip(self.table, error.tolist(), strict=True):
            key = (module_of(one.name, one.kind), one.step, one.rank, one.call)
            keys.append(key)
            if one.kind == "input" and not math.isnan(size):
                given[key] = max(given.get(key, 0.0), size)
        before = np.array(
            [
                0.0 if one.kind == "input" else given.get(key, 0.0)
                for one, key in zip(self.table, keys, strict=True)
            ],
            np.float32,
        )
        with np.errstate(invalid="ignore"):
            return np.maximum(error - before, 0).astype(np.float32)


def _errors(one: Finding) -> tuple[float, ...]:
    metrics = one.metrics
    if metrics is None or metrics.is_opaque:
        return (math.nan,) * 5 + (one.ratio,)
    if metrics.is_identical:
        return (0.0,) * 6
    # Of floats nobody counts how many differ: nearly all do, by noise.
    share = metrics.mismatches / metrics.count if metrics.count and metrics.is_discrete else math.nan
    if metrics.reason or metrics.absolute is None:
        return (math.nan, math.nan, math.nan, math.nan, share, one.ratio)
    largest = metrics.absolute
    cosine = math.nan if metrics.cosine_distance is None else metrics.cosine_distance
    ulp = _ulps(largest.size, max(abs(largest.a), abs(largest.b)), one.pair.a.dtype)
    return _single(metrics.relative_l2), _single(largest.size), ulp, cosine, share, _single(one.ratio)


def _single(number: float) -> float:
    """As single precision can hold it."""
    return number if abs(number) < 3e38 or math.isinf(number) else math.copysign(3e38, number)


def _ulps(size: float, value: float, dtype: str) -> float:
    """At the element that differs most: in units of its last place."""
    bits = _MANTISSA.get(dtype)
    if bits is None or not value or not math.isfinite(size):
        return math.nan
    return _single(size / math.ldexp(1.0, math.frexp(value)[1] - 1 - bits))


def _rows(entries: list[Entry], stock: CachedRun | None) -> Array:
    if stock is None:
        return np.full(len(entries), NO_ROW, np.uint32)
    places = _places(stock)
    return np.array([places.get(_place(entry), NO_ROW) for entry in entries], np.uint32)


def _place(entry: Entry) -> tuple[Any, ...]:
    reference = entry.reference
    if isinstance(reference, RunValueRef):
        return reference.file, reference.start, reference.offset
    return (reference.name, reference.position) if isinstance(reference, TraceValueRef) else ()


def _places(stock: CachedRun) -> dict[tuple[Any, ...], int]:
    """Where each row of a run lies in its files."""
    book: Any = stock.book
    if book.type == "trace":
        return {place: row for row, place in enumerate(book.places)}
    columns = book.run.columns
    files = map(columns.coded["file"].texts.__getitem__, columns.coded["file"].codes.tolist())
    starts, offsets = columns.plain["start"].tolist(), columns.plain["offset"].tolist()
    return {place: row for row, place in enumerate(zip(files, starts, offsets, strict=True))}


def _site(entry: Entry) -> str:
    site = entry.site
    return "" if site is None else f"{site.file.rpartition('/')[2]}:{site.line} {site.function}"


def _coded(cells: list[str]) -> tuple[Array, list[str]]:
    texts = list(dict.fromkeys(cells))
    place = {text: code for code, text in enumerate(texts)}
    return np.fromiter(map(place.__getitem__, cells), np.int64, len(cells)), texts


assert DTYPE_TABLE.keys() >= _MANTISSA.keys()
