"""Distances between two values, symmetric in A and B; masks count as minus infinity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.comparison.sides.leaf import (
    Operand,
    are_equal,
    as_operand,
    is_big_int,
    is_composite_array,
    is_number,
    numeric_shape,
)
from tensortap.comparison.values.structure import LeafPair, walk_leaf_pairs
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels.accumulator import (
    ArrayDifference,
    LargestDifference,
    PairDifferences,
    PairLayout,
    PairReport,
    are_discrete,
    cosine_distance_from_shares,
    last_axis_length,
    unravel_index,
)
from tensortap.kernels.decode import Array, block_size, decode_block, iterate_blocks
from tensortap.kernels.differences import measure_differences
from tensortap.kernels.per_axis import worst_row_and_column

_PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))
_NORM_TOLERANCE = 1e-12  # summation order may change a norm by this much
# Numbers beyond this share of the dtype's range stand for minus infinity in a mask; float16 is so narrow that
# real values come near.
_MASK_SHARE, _MASK_SHARE_HALF = 0.49, 0.9


def measure(a: Any, b: Any, *, threads: int | None = None) -> Metrics:
    """The metrics of two values; of nested values those of the leaf that differs most."""
    are_plain = not any(map(is_composite_array, (a, b)))
    if are_plain and numeric_shape(a) is not None and numeric_shape(b) is not None:
        return _measure_leaf(LeafPair("", a, b), threads)
    measurements = [(pair, _measure_leaf(pair, threads)) for pair in walk_leaf_pairs(a, b, _is_leaf)]
    if not measurements:
        return Metrics(is_identical=True, is_discrete=True)
    pair, worst = max(measurements, key=lambda measurement: _badness(measurement[1]))
    is_same = all(metrics.is_identical for _, metrics in measurements)
    count = sum(metrics.count for _, metrics in measurements)
    return replace(worst, count=count, is_identical=is_same, part=pair.path)


def measure_operands(a: Operand, b: Operand, *, threads: int | None = None) -> Metrics:
    """The metrics of two numeric operands."""
    if a.bits.shape != b.bits.shape:
        return Metrics(
            reason=f"shapes differ: {list(a.bits.shape)} against {list(b.bits.shape)}", count=a.bits.size
        )
    difference = measure_differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    if are_discrete(a.dtype, b.dtype):
        return _discrete_metrics(difference)
    if (
        difference.disagreeing
        or _reaches_mask_value(difference.a.min, a)
        or _reaches_mask_value(difference.b.min, b)
    ):
        x, y = mask_values_to_inf(a), mask_values_to_inf(b)
        x, y = bool_mask_to_additive(x, y), bool_mask_to_additive(y, x)
        if x is not a or y is not b:
            a, b = x, y
            difference = measure_differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    return _float_metrics(difference, a, b, threads)


def _measure_leaf(pair: LeafPair, threads: int | None) -> Metrics:
    if pair.reason is not None:
        return Metrics(reason=pair.reason)
    a_shape, b_shape = numeric_shape(pair.a), numeric_shape(pair.b)
    if a_shape is not None and b_shape is not None:
        if a_shape != b_shape:
            return Metrics(reason=f"shapes differ: {list(a_shape)} against {list(b_shape)}")
        if is_big_int(pair.a) or is_big_int(pair.b):
            return _measure_big_ints(pair)
        a, b = as_operand(pair.a), as_operand(pair.b)
        if a is not None and b is not None:
            return measure_operands(a, b, threads=threads)
    return _measure_opaque(pair)


def _measure_big_ints(pair: LeafPair) -> Metrics:
    """Compare integers of any length exactly; against other numbers, as float64."""
    if pair.a == pair.b:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    a, b = as_operand(pair.a), as_operand(pair.b)
    if (isinstance(pair.a, int) and isinstance(pair.b, int)) or a is None or b is None:
        return Metrics(count=1, is_discrete=True, mismatches=1)
    metrics = measure_operands(a, b)
    return (
        replace(metrics, is_identical=False, is_discrete=True, mismatches=1)
        if metrics.is_identical
        else metrics
    )


def _measure_opaque(pair: LeafPair) -> Metrics:
    """Compare with ==: strings count as discrete values, other objects as opaque."""
    if _are_string_arrays(pair.a, pair.b):
        return _measure_string_arrays(pair.a, pair.b)
    is_same, reason = are_equal(pair.a, pair.b)
    if is_same:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    if isinstance(pair.a, _PLAIN_TYPES) and isinstance(pair.b, _PLAIN_TYPES):
        return Metrics(count=1, is_discrete=True, mismatches=1, reason="" if _are_strings(pair) else reason)
    return Metrics(count=1, is_opaque=True, reason=reason)


def _are_string_arrays(a: Any, b: Any) -> bool:
    are_arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape
    return are_arrays and a.dtype.kind in "USmMV" and a.dtype.kind == b.dtype.kind


def _measure_string_arrays(a: Array, b: Array) -> Metrics:
    """Compare arrays of strings or times elementwise; NaT equals itself."""
    apart = int(np.count_nonzero((a != b) & ((a == a) | (b == b))))
    return Metrics(count=a.size, is_identical=not apart, is_discrete=True, mismatches=apart)


def _are_strings(pair: LeafPair) -> bool:
    return isinstance(pair.a, (str, bytes)) and type(pair.a) is type(pair.b)


def _is_leaf(a: Any, b: Any) -> bool:
    return is_number(a) and is_number(b)


def _badness(metrics: Metrics) -> tuple[bool, bool, bool, float]:
    is_apart = bool(metrics.reason) and not metrics.is_opaque
    return is_apart, metrics.is_nonfinite, metrics.mismatches > 0, max(metrics.relative_l2, metrics.row)


def _discrete_metrics(difference: ArrayDifference) -> Metrics:
    differing = difference.above + difference.below
    return Metrics(
        count=difference.count,
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=difference.absolute,
        norms=(difference.a.norm, difference.b.norm),
    )


def _float_metrics(difference: ArrayDifference, a: Operand, b: Operand, threads: int | None) -> Metrics:
    is_same = difference.absolute is None and not difference.disagreeing
    rows, columns = (
        ((0.0, -1), (0.0, -1))
        if difference.absolute is None
        else _worst_row_and_column(difference, a, b, threads)
    )
    return Metrics(
        count=difference.count,
        is_identical=is_same,
        relative_l2=_symmetric_relative_l2(difference),
        row=rows[0],
        column=columns[0],
        worst_row=rows[1],
        worst_column=columns[1],
        absolute=difference.absolute,
        cosine_distance=difference.cosine_distance,
        gain=difference.gain,
        bias=difference.bias,
        nan=difference.nan,
        inf=difference.inf,
        disagreeing=difference.disagreeing,
        masked=count_one_sided_masked(a, b) if difference.disagreeing else 0,
        norms=(difference.a.norm, difference.b.norm),
    )


def _symmetric_relative_l2(difference: ArrayDifference) -> float:
    """|a - b| relative to the larger norm."""
    a, b = difference.a.norm, difference.b.norm
    if difference.absolute is None:
        return 0.0
    return 1.0 if not b else difference.relative_l2 * min(1.0, b / a if a else 1.0)


def _worst_row_and_column(
    difference: ArrayDifference, a: Operand, b: Operand, threads: int | None
) -> tuple[tuple[float, int], tuple[float, int]]:
    """The worst row and column, relative to the side with the larger norm; if tied, the worse of both."""
    if not last_axis_length(a.bits.shape):
        return (0.0, -1), (0.0, -1)
    are_finite = not any((*difference.nan, *difference.inf))

    def of(operand: Operand, base: Operand) -> tuple[tuple[float, int], tuple[float, int]]:
        x, y = (side.bits.reshape(-1, side.bits.shape[-1]) for side in (operand, base))
        return worst_row_and_column(x, operand.dtype, y, base.dtype, are_finite=are_finite, threads=threads)

    if are_norms_tied(difference.a.norm, difference.b.norm):
        relative_to_a, relative_to_b = of(b, a), of(a, b)
        return max(relative_to_a[0], relative_to_b[0]), max(relative_to_a[1], relative_to_b[1])
    return of(b, a) if difference.a.norm > difference.b.norm else of(a, b)


def _reaches_mask_value(low: int | float | None, side: Operand) -> bool:
    return low is not None and low <= mask_threshold(side.dtype)


class _LazyReport:
    """A kernel report, unpacked on first access: most fields are read for few pairs only."""

    __slots__ = ("_report", "_shape")
    _report: PairReport | None
    _shape: tuple[int, ...]

    if not TYPE_CHECKING:  # it would hide misspelt names from mypy

        def __getattr__(self, name: str) -> Any:
            # Only called for the lazy fields: `metrics_from_report` sets the others.
            if name not in _LAZY_FIELDS:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            for field_name, value in zip(
                _LAZY_FIELDS, _unpack_report(self._report, self._shape), strict=True
            ):
                setattr(self, field_name, value)
            return getattr(self, name)


# Not frozen: one is created per pair, and frozen dataclasses are seven times slower. Never mutated.
@dataclass(slots=True)
class Metrics(_LazyReport):
    """How two values differ. Relative errors refer to the side with the larger norm, so they are
    symmetric. `row` and `column` are the worst relative errors along the last axis and across it, with
    their positions.

    `reason` says why nothing was measured: shapes or structures differ. `is_opaque`: the values are
    neither numbers nor strings, so that a difference between them means nothing.
    """

    count: int = 0
    is_identical: bool = False
    is_discrete: bool = False
    relative_l2: float = 0.0
    row: float = 0.0
    column: float = 0.0
    worst_row: int = -1
    worst_column: int = -1
    absolute: LargestDifference | None = None
    cosine_distance: float | None = None
    gain: float | None = None
    bias: float = 0.0
    mismatches: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0  # positions that are non-finite on one side and differ
    masked: int = 0  # of those: minus infinity against a finite number
    norms: tuple[float, float] = (0.0, 0.0)
    part: str = ""  # of a nested value: the leaf that differs most
    reason: str = ""
    is_opaque: bool = False

    @property
    def is_nonfinite(self) -> bool:
        """Whether a NaN or infinity that is no mask stands against another value."""
        return self.disagreeing > self.masked

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the compact report: metrics may come from worker processes."""
        report = getattr(self, "_report", None)
        if report is not None:
            return _build_metrics, (report, self._shape, self.count)
        return Metrics, tuple(getattr(self, field.name) for field in fields(self))


_LAZY_FIELDS = (
    "worst_row", "worst_column", "absolute", "cosine_distance", "gain", "bias",
    "mismatches", "nan", "inf", "norms", "part",
)  # fmt: skip


def metrics_from_report(report: PairReport, terms: PairLayout) -> Metrics | None:
    """Like `measure_operands`, from a batched kernel report; None if the pair has to be measured alone:
    with masks, one-sided non-finite values, or tied norms."""
    if terms.are_integers:
        return _discrete_metrics_from_account(PairDifferences._make(report), terms.shape)
    a_lowest, b_lowest = mask_threshold(terms.a_dtype), mask_threshold(terms.b_dtype)
    if report[_LARGEST] and are_norms_tied(math.sqrt(report[_A_SQUARES]), math.sqrt(report[_B_SQUARES])):
        return None
    if report[_DISAGREEING] or report[_A_MIN] <= a_lowest or report[_B_MIN] <= b_lowest:
        return None
    return _build_metrics(report, terms.shape, terms.size)


# Positions in a report: unpacking every report would take as long as all the rest.
_DISAGREEING, _GAP_SQUARES, _A_SQUARES, _B_SQUARES, _A_MIN, _B_MIN, _LARGEST, _ROW, _COLUMN = map(
    PairDifferences._fields.index,
    ("disagreeing", "gap_squares", "a_squares", "b_squares", "a_min", "b_min", "largest", "row", "column"),
)


def _build_metrics(report: PairReport, shape: tuple[int, ...], count: int) -> Metrics:
    x, y, largest = report[_A_SQUARES], report[_B_SQUARES], report[_LARGEST]
    metrics = Metrics.__new__(Metrics)
    metrics._report, metrics._shape = report, shape  # type: ignore[misc]  # slots of the base class
    metrics.count = count
    metrics.is_identical, metrics.is_discrete, metrics.is_opaque = not largest, False, False
    metrics.relative_l2 = math.sqrt(report[_GAP_SQUARES]) / math.sqrt(x if x > y else y) if largest else 0.0
    metrics.row, metrics.column = report[_ROW], report[_COLUMN]
    metrics.disagreeing = metrics.masked = 0
    metrics.reason = ""
    return metrics


def _unpack_report(report: PairReport, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The values of `_LAZY_FIELDS`."""
    account = PairDifferences._make(report)
    norms = x, y = math.sqrt(account.a_squares), math.sqrt(account.b_squares)
    gap, longest = math.sqrt(account.gap_squares), max(norms)
    gain = cosine_distance = absolute = None
    if x and y:
        gain = account.product / y / y
        along = account.product / longest / longest
        cosine_distance = cosine_distance_from_shares(gap / longest, along, x / longest, y / longest)
    if account.largest:
        absolute = LargestDifference(
            account.largest, unravel_index(account.position, shape), account.a, account.b
        )
    bias = account.total / account.finite if account.finite else 0.0
    nan, inf = (account.a_nan, account.b_nan), (account.a_inf, account.b_inf)
    return (
        account.worst_row,
        account.worst_column,
        absolute,
        cosine_distance,
        gain,
        bias,
        0,
        nan,
        inf,
        norms,
        "",
    )


def _discrete_metrics_from_account(account: PairDifferences, shape: tuple[int, ...]) -> Metrics:
    differing = account.above + account.below
    if differing:
        index = unravel_index(account.position, shape)
        absolute = LargestDifference(int(account.largest), index, int(account.a), int(account.b))
    return Metrics(
        count=math.prod(shape),
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=absolute if differing else None,
        norms=(math.sqrt(account.a_squares), math.sqrt(account.b_squares)),
    )


def are_norms_tied(x: float, y: float) -> bool:
    """Whether two norms are equal up to summation order."""
    return abs(x - y) <= _NORM_TOLERANCE * x


@lru_cache(maxsize=64)
def mask_threshold(dtype: str) -> float:
    """Numbers up to this one stand for minus infinity in a mask of this dtype."""
    if dtype == "bfloat16":
        return -_MASK_SHARE * 3.3895313892515355e38
    dtype_facts = DTYPE_TABLE[dtype]
    if not dtype_facts.native or dtype_facts.family != "float":
        return -math.inf
    return -(_MASK_SHARE_HALF if dtype == "float16" else _MASK_SHARE) * float(
        np.finfo(dtype_facts.storage).max
    )


def mask_values_to_inf(side: Operand) -> Operand:
    """Replace large negative mask values by minus infinity, the other way to write a mask."""
    least = mask_threshold(side.dtype)
    if least == -math.inf or not any(_has_finite_mask_values(part, least) for part in _number_blocks(side)):
        return side
    wide = np.array(decode_block(side.bits, side.dtype), copy=True)
    wide[wide <= least] = -np.inf
    return Operand(wide, str(wide.dtype))


def _number_blocks(side: Operand) -> Iterator[Array]:
    return (decode_block(part, side.dtype) for (part,) in iterate_blocks([side.bits], block_size(side.dtype)))


def _has_finite_mask_values(part: Array, least: float) -> bool:
    """Whether a finite number stands for minus infinity."""
    return bool(((part <= least) & (part > -math.inf)).any())


def bool_mask_to_additive(side: Operand, additive: Operand) -> Operand:
    """Convert a bool mask to an additive one (0 or minus infinity), if the other side is one."""
    if side.dtype != "bool" or additive.dtype == "bool" or not np.isin(additive.bits, (0, -np.inf)).all():
        return side
    return Operand(np.where(side.bits, 0.0, -np.inf), "float64")


def count_one_sided_masked(a: Operand, b: Operand) -> int:
    """How many positions are minus infinity on one side and finite on the other."""
    return sum(
        int(np.count_nonzero((np.isneginf(x) & np.isfinite(y)) | (np.isneginf(y) & np.isfinite(x))))
        for x, y in _real_block_pairs(a, b)
    )


def _real_block_pairs(a: Operand, b: Operand) -> Iterator[tuple[Array, Array]]:
    if "complex" in (DTYPE_TABLE[a.dtype].family, DTYPE_TABLE[b.dtype].family):
        return
    for x, y in iterate_blocks([a.bits, b.bits], block_size(a.dtype, b.dtype)):
        yield decode_block(x, a.dtype), decode_block(y, b.dtype)
