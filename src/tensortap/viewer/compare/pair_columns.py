"""The pairs of a comparison as columns, for queries, the table and the divergence map."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.verdict import VERDICTS, Finding, Origin
from tensortap.comparison.runs.compare import Comparison
from tensortap.comparison.sides.entry import Entry, RunValueRef, TraceValueRef, module_of
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.patterns import natural_sort_key
from tensortap.readers.query.parser import parse_query
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.data.dataset import factorize
from tensortap.viewer.web.responses import NO_ROW

Array = np.ndarray[Any, Any]
ERRORS = ("relative_l2", "max_abs", "ulp", "cosine", "mismatch", "ratio", "contribution")
_ERROR_FIELDS = {
    "err": "relative_l2",
    "abs": "max_abs",
    "ulp": "ulp",
    "cos": "cosine",
    "mismatch": "mismatch",
    "ratio": "ratio",
}
# Explicit mantissa bits.
_MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
_CATEGORICAL = {"name": "u4", "b_name": "u4", "kind": "u1", "dtype": "u2", "shape": "u4", "site": "u4"}
_NUMERIC = {"step": "i4", "rank": "i2", "call": "u2", "order": "u4"}
_MAX_CELLS = 4 << 20


class PairColumns:
    """Columns of a comparison's table; `a` and `b` are the runs, if the library has them."""

    def __init__(self, comparison: Comparison, a: CachedRun | None, b: CachedRun | None) -> None:
        self.table = comparison.table
        self._runs = a, b

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def categorical(self) -> dict[str, tuple[Array, list[str]]]:
        entries = [finding.pair.a for finding in self.table]
        return {
            "name": factorize([entry.name for entry in entries]),
            "b_name": factorize([finding.pair.b.name for finding in self.table]),
            "kind": factorize([entry.kind for entry in entries]),
            "dtype": factorize([entry.dtype for entry in entries]),
            "shape": factorize([",".join(map(str, entry.shape)) for entry in entries]),
            "site": factorize([_format_entry_site(entry) for entry in entries]),
        }

    @cached_property
    def numeric(self) -> dict[str, Array]:
        facts = [
            (finding.step, finding.rank, finding.call, finding.pair.a.order, finding.pair.a.nbytes)
            for finding in self.table
        ]
        columns = np.array(facts, np.float64).reshape(-1, 5).T
        return dict(zip(("step", "rank", "call", "order", "nbytes"), columns, strict=True))

    @cached_property
    def by_moment(self) -> dict[tuple[str, int, int, int], int]:
        """The first pair per (name, step, rank, call)."""
        number_of: dict[tuple[str, int, int, int], int] = {}
        for number, finding in enumerate(self.table):
            number_of.setdefault((finding.name, finding.step, finding.rank, finding.call), number)
        return number_of

    @cached_property
    def verdicts(self) -> Array:
        return np.array([VERDICTS.index(finding.verdict) for finding in self.table], np.uint8)

    @cached_property
    def errors(self) -> dict[str, Array]:
        measured = (
            np.array([_error_row(finding) for finding in self.table], np.float32)
            .reshape(-1, len(ERRORS) - 1)
            .T
        )
        errors = dict(zip(ERRORS, measured, strict=False))
        errors["contribution"] = self._contribution(errors["relative_l2"])
        return errors

    @cached_property
    def rows(self) -> tuple[Array, Array]:
        """Per pair: the rows of both runs; NO_ROW where a value was assembled from several."""
        sides = [[finding.pair.a for finding in self.table], [finding.pair.b for finding in self.table]]
        rows = [_run_rows(entries, run) for entries, run in zip(sides, self._runs, strict=True)]
        return rows[0], rows[1]

    def columns(self) -> tuple[dict[str, Array], dict[str, Any]]:
        texts = {field: texts for field, (_, texts) in self.categorical.items()}
        columns = {field: self.categorical[field][0].astype(kind) for field, kind in _CATEGORICAL.items()}
        columns |= {
            field: np.clip(self.numeric[field], 0 if kind[0] == "u" else -1 << 31, None).astype(kind)
            for field, kind in _NUMERIC.items()
        }
        rows = {"verdict": self.verdicts, "row_a": self.rows[0], "row_b": self.rows[1]}
        return {**columns, **rows, **self.errors}, {**texts, "verdict": list(VERDICTS)}

    def matching(self, query: str, sort: str = "", descending: bool = False) -> Array:
        matched = np.flatnonzero(parse_query(query).mask(self))
        if sort:
            keys = self._sort_keys(sort)[matched]
            matched = matched[np.argsort(-keys if descending else keys, kind="stable")]
        return matched.astype(np.uint32)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        if field == "verdict":
            return self.verdicts.astype(np.int64), list(VERDICTS)
        return self.categorical.get(field)

    def numbers(self, field: str) -> Array | None:
        return self.errors[_ERROR_FIELDS[field]] if field in _ERROR_FIELDS else self.numeric.get(field)

    def _sort_keys(self, sort: str) -> Array:
        sort = _ERROR_FIELDS.get(sort, sort)
        if sort in self.errors:
            return self.errors[sort]
        if sort in self.numeric:
            return self.numeric[sort]
        if sort == "verdict":
            return self.verdicts.astype(np.int64)
        if sort not in self.categorical:
            known = ", ".join([*self.categorical, *self.numeric, *ERRORS, "verdict"])
            raise ValueError(f"pairs cannot be sorted by {sort!r}; there are {known}")
        codes, texts = self.categorical[sort]
        ranks = np.empty(len(texts), np.int64)
        ranks[sorted(range(len(texts)), key=lambda code: natural_sort_key(texts[code]))] = np.arange(
            len(texts)
        )
        return ranks[codes]

    def _contribution(self, error: Array) -> Array:
        """Error added by a module: the error of its output minus the largest error of its inputs."""
        input_error: dict[tuple[Any, ...], float] = {}
        keys = []
        for finding, size in zip(self.table, error.tolist(), strict=True):
            key = (module_of(finding.name, finding.kind), finding.step, finding.rank, finding.call)
            keys.append(key)
            if finding.kind == "input" and not math.isnan(size):
                input_error[key] = max(input_error.get(key, 0.0), size)
        before = np.array(
            [
                0.0 if finding.kind == "input" else input_error.get(key, 0.0)
                for finding, key in zip(self.table, keys, strict=True)
            ],
            np.float32,
        )
        with np.errstate(invalid="ignore"):
            return np.maximum(error - before, 0).astype(np.float32)


def _error_row(finding: Finding) -> tuple[float, ...]:
    metrics = finding.metrics
    if metrics is None or metrics.is_opaque:
        return (math.nan,) * 5 + (finding.ratio,)
    if metrics.is_identical:
        return (0.0,) * 6
    # A mismatch share says nothing of floats: nearly all elements differ by noise.
    share = metrics.mismatches / metrics.count if metrics.count and metrics.is_discrete else math.nan
    if metrics.reason or metrics.absolute is None:
        return (math.nan, math.nan, math.nan, math.nan, share, finding.ratio)
    largest = metrics.absolute
    cosine = math.nan if metrics.cosine_distance is None else metrics.cosine_distance
    ulp = _ulps_at_largest(largest.size, max(abs(largest.a), abs(largest.b)), finding.pair.a.dtype)
    return (
        _clamp_to_float32(metrics.relative_l2),
        _clamp_to_float32(largest.size),
        ulp,
        cosine,
        share,
        _clamp_to_float32(finding.ratio),
    )


def _clamp_to_float32(number: float) -> float:
    """Clamped to the range of float32."""
    return number if abs(number) < 3e38 or math.isinf(number) else math.copysign(3e38, number)


def _ulps_at_largest(size: float, value: float, dtype: str) -> float:
    """The largest absolute difference in ulps of the larger operand."""
    bits = _MANTISSA_BITS.get(dtype)
    if bits is None or not value or not math.isfinite(size):
        return math.nan
    return _clamp_to_float32(size / math.ldexp(1.0, math.frexp(value)[1] - 1 - bits))


def _run_rows(entries: list[Entry], run: CachedRun | None) -> Array:
    if run is None:
        return np.full(len(entries), NO_ROW, np.uint32)
    row_of_key = _rows_by_storage_key(run)
    return np.array([row_of_key.get(_storage_key(entry), NO_ROW) for entry in entries], np.uint32)


def _storage_key(entry: Entry) -> tuple[Any, ...]:
    reference = entry.reference
    if isinstance(reference, RunValueRef):
        return reference.file, reference.start, reference.offset
    return (reference.name, reference.position) if isinstance(reference, TraceValueRef) else ()


def _rows_by_storage_key(run: CachedRun) -> dict[tuple[Any, ...], int]:
    """The row of each stored value, by its position in the files."""
    dataset: Any = run.dataset
    if dataset.type == "trace":
        return {position: row for row, position in enumerate(dataset.positions)}
    columns = dataset.run.columns
    files = map(columns.coded["file"].texts.__getitem__, columns.coded["file"].codes.tolist())
    starts, offsets = columns.plain["start"].tolist(), columns.plain["offset"].tolist()
    return {position: row for row, position in enumerate(zip(files, starts, offsets, strict=True))}


def _format_entry_site(entry: Entry) -> str:
    site = entry.site
    return "" if site is None else f"{site.file.rpartition('/')[2]}:{site.line} {site.function}"


assert DTYPE_TABLE.keys() >= _MANTISSA_BITS.keys()


def divergence_columns(
    comparison: Comparison, pairs: PairColumns, error: str, rank: int | None, query: str
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The cells of the map as columns, and its axis labels."""
    if error not in ERRORS:
        raise ValueError(f"there is no error {error!r}; there are {', '.join(ERRORS)}")
    known_ranks = np.unique(pairs.numeric["rank"]).astype(np.int64).tolist()
    rank = (known_ranks[0] if known_ranks else 0) if rank is None else rank
    chosen = np.flatnonzero(pairs.numeric["rank"] == rank)
    if query:
        chosen = np.intersect1d(chosen, pairs.matching(query))
    line_of_pair, names, kinds = _tensor_lines(pairs, chosen)
    steps = np.unique(pairs.numeric["step"][chosen]).astype(np.int64)
    _check_cell_count(len(names) * len(steps))
    cells = line_of_pair, np.searchsorted(steps, pairs.numeric["step"][chosen])
    shape = len(names), len(steps)
    errors, pair_numbers, verdicts = (
        np.full(shape, np.nan, np.float32),
        np.full(shape, NO_ROW, np.uint32),
        np.full(shape, 255, np.uint8),
    )
    errors[cells], pair_numbers[cells], verdicts[cells] = (
        pairs.errors[error][chosen],
        chosen,
        pairs.verdicts[chosen],
    )
    facts = {
        "names": names,
        "name_kinds": kinds,
        "steps": steps,
        "error": error,
        "rank": rank,
        "ranks": known_ranks,
    }
    facts |= {"first": _first_cell(comparison, pairs, pair_numbers), **_error_range(errors)}
    return {"error": errors, "pair": pair_numbers, "verdict": verdicts}, facts


def _tensor_lines(pairs: PairColumns, chosen: Array) -> tuple[Array, list[str], list[str]]:
    """The line of each pair, and the names and kinds of all lines; repeated calls have lines of their own."""
    codes, name_texts = pairs.categorical["name"]
    kinds, kind_texts = pairs.categorical["kind"]
    calls = pairs.numeric["call"].astype(np.int64)
    calls_per_name = int(calls.max(initial=0)) + 1
    keys = ((codes * len(kind_texts) + kinds) * calls_per_name + calls)[chosen]
    unique_keys, firsts, lines = np.unique(keys, return_index=True, return_inverse=True)
    # Execution order within a step, not order of first appearance: a tensor that first appears in a later
    # step may run earlier in it.
    ordered = np.lexsort([firsts, pairs.numeric["order"][chosen][firsts]])
    position = np.empty(len(ordered), np.int64)
    position[ordered] = np.arange(len(ordered))
    rest, call = np.divmod(unique_keys[ordered], calls_per_name)
    name, kind = np.divmod(rest, max(len(kind_texts), 1))
    names = [
        name_texts[code] + (f"@{call_number}" if call_number else "")
        for code, call_number in zip(name, call, strict=True)
    ]
    return position[lines], names, [kind_texts[code] for code in kind]


def pair_of_first_origin(comparison: Comparison, pairs: PairColumns) -> int | None:
    """The pair at which the first origin was observed."""
    origin = comparison.first
    return None if origin is None else pair_of_origin(origin, pairs)


def pair_of_origin(origin: Origin, pairs: PairColumns) -> int | None:
    return pairs.by_moment.get((origin.seen_at, origin.step, origin.rank, origin.call))


def _first_cell(comparison: Comparison, pairs: PairColumns, pair_numbers: Array) -> dict[str, int] | None:
    pair = pair_of_first_origin(comparison, pairs)
    cells: Array = np.argwhere(pair_numbers == (NO_ROW - 1 if pair is None else pair))
    return {"tensor": int(cells[0][0]), "step": int(cells[0][1])} if len(cells) else None


def _error_range(errors: Array) -> dict[str, float | None]:
    positive = errors[np.isfinite(errors) & (errors > 0)]
    return {
        "low": float(positive.min()) if positive.size else None,
        "high": float(positive.max()) if positive.size else None,
    }


def _check_cell_count(cells: int) -> None:
    if cells > _MAX_CELLS:
        raise ValueError(f"a map of {cells:,} cells is too large; narrow it with a query")
