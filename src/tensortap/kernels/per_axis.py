"""Differences of two arrays per index of one axis: per row, column or head."""

import math

import numpy as np

from tensortap.kernels import native
from tensortap.kernels.decode import Array, block_size, decode_block, iterate_blocks
from tensortap.kernels.statistics import statistics

_SAFE_SQUARES = (1e-280, 1e300)
# Of the median row: rounding that cancels in one order of operations remains in another.
_MIN_BASE_SHARE = 0.3
_ORDINARY_RANGE = (1e-100, 1e100)
# Squares of narrower floats fit into float64.
_WIDE_DTYPES = {"float64", "complex128"}


def relative_l2_per_index(a: Array, a_dtype: str, b: Array, b_dtype: str, axis: int) -> Array:
    """|a - b| / |b| for each index of the axis, over all other axes; the worst is at `argmax`.

    Positions where either element is nonfinite are skipped. A difference from zero is infinite.
    """
    gaps, bases = norms_per_index(a, a_dtype, b, b_dtype, axis)
    with np.errstate(all="ignore"):
        return np.where(gaps == 0, 0.0, gaps / bases)


def norms_per_index(a: Array, a_dtype: str, b: Array, b_dtype: str, axis: int) -> tuple[Array, Array]:
    """|a - b| and |b| for each index of the axis, both scaled by a common factor if they are extreme."""
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} against {b.shape}")
    axis = np.lib.array_utils.normalize_axis_index(axis, a.ndim)
    with np.errstate(all="ignore"):
        gaps, bases = _squares_per_index(a, a_dtype, b, b_dtype, axis, 1.0)
        if {a_dtype, b_dtype} & _WIDE_DTYPES and not (_squares_are_safe(gaps) and _squares_are_safe(bases)):
            scale = _choose_scale((a, a_dtype), (b, b_dtype))
            gaps, bases = (
                _squares_per_index(a, a_dtype, b, b_dtype, axis, scale) if scale != 1.0 else (gaps, bases)
            )
        return np.sqrt(gaps), np.sqrt(bases)


def worst_row_and_column(
    a: Array, a_dtype: str, b: Array, b_dtype: str, *, are_finite: bool = False, threads: int | None = None
) -> tuple[tuple[float, int], tuple[float, int]]:
    """The largest |a - b| / |b| over the rows and over the columns of two matrices, each with its index.

    A |b| far below the median is replaced by a share of the median: relative noise of zeros says nothing.
    `are_finite` skips the search for nonfinite elements.
    """
    if not (native.supports(a_dtype, b_dtype) and a.size and native.accepts(a, b)):
        return _worst_index(a, a_dtype, b, b_dtype, 0), _worst_index(a, a_dtype, b, b_dtype, 1)
    sums = _row_and_column_squares(a, a_dtype, b, b_dtype, are_finite, threads)
    if {a_dtype, b_dtype} & _WIDE_DTYPES and not all(map(_squares_are_safe, sums)):
        return _worst_index(a, a_dtype, b, b_dtype, 0), _worst_index(a, a_dtype, b, b_dtype, 1)
    row_gaps, row_bases, column_gaps, column_bases = map(np.sqrt, sums)
    return _largest_ratio(row_gaps, row_bases), _largest_ratio(column_gaps, column_bases)


def _worst_index(a: Array, a_dtype: str, b: Array, b_dtype: str, axis: int) -> tuple[float, int]:
    return _largest_ratio(*norms_per_index(a, a_dtype, b, b_dtype, axis))


def _largest_ratio(gaps: Array, bases: Array) -> tuple[float, int]:
    middle = bases.size // 2
    usual = float(np.partition(bases, middle)[middle])
    # If most are zero, a difference from zero is relative to the maximum.
    ratios = gaps / np.maximum(bases, _MIN_BASE_SHARE * usual or float(bases.max()) or 1.0)
    at = int(ratios.argmax())
    return float(ratios[at]), at


def _row_and_column_squares(
    a: Array, a_dtype: str, b: Array, b_dtype: str, are_finite: bool, threads: int | None
) -> tuple[Array, Array, Array, Array]:
    """Sums of squares of a - b and of b per row, and the same per column."""
    rows, columns = a.shape
    row_gaps, row_bases = np.zeros(rows), np.zeros(rows)
    sides = (*native.as_native(a, a_dtype), *native.as_native(b, b_dtype))
    # Each chunk has its own column sums: for very long rows those would take too much memory.
    together = max(1, native.CHUNK_SIZE // columns) if columns <= native.CHUNK_SIZE // 16 else rows

    def of_rows(first: int) -> Array:
        sums = np.zeros((2, columns))
        span = first * columns, min(first + together, rows) * columns
        native.library.axes(*sides, *span, rows, columns, are_finite, row_gaps, row_bases, sums[0], sums[1])
        return sums

    column_sums = np.zeros((2, columns))
    for part in native.map_chunks(of_rows, range(0, rows, together), native.choose_threads(threads, a, b)):
        column_sums += part
    return row_gaps, row_bases, column_sums[0], column_sums[1]


def _squares_are_safe(squares: Array) -> bool:
    """Whether no sum has overflowed or underflowed; a zero may be an underflow."""
    return bool(np.all((squares > _SAFE_SQUARES[0]) & (squares < _SAFE_SQUARES[1])))


def _choose_scale(*sides: tuple[Array, str]) -> float:
    """A power of two that scales the largest element to about one, 1.0 if that is not needed."""
    ends = [end for bits, dtype in sides for end in _min_and_max(bits, dtype)]
    largest = max((abs(float(end)) for end in ends if end is not None), default=0.0)
    if not largest or _ORDINARY_RANGE[0] < largest < _ORDINARY_RANGE[1]:
        return 1.0
    return math.ldexp(1.0, min(-math.frexp(largest)[1], 1023))


def _min_and_max(bits: Array, dtype: str) -> tuple[int | float | None, int | float | None]:
    summary = statistics(bits, dtype)
    return summary.min, summary.max


def _squares_per_index(
    a: Array, a_dtype: str, b: Array, b_dtype: str, axis: int, scale: float
) -> tuple[Array, Array]:
    """Sums of squares of a - b and of b per index, of elements multiplied by `scale`."""
    length, inner = a.shape[axis], math.prod(a.shape[axis + 1 :])
    gaps, bases = np.zeros(length), np.zeros(length)
    if native.supports(a_dtype, b_dtype) and a.size and native.accepts(a, b):
        sides = (*native.as_native(a, a_dtype), *native.as_native(b, b_dtype))
        native.library.along(*sides, 0, a.size, length, inner, scale, gaps, bases)
        return gaps, bases
    start = 0
    for a_part, b_part in iterate_blocks([a, b], block_size(a_dtype, b_dtype) // 4):
        at = np.arange(start, start + a_part.size) // inner % length
        gap, base = _block_squares(decode_block(a_part, a_dtype), decode_block(b_part, b_dtype), scale)
        gaps += np.bincount(at, gap, length)
        bases += np.bincount(at, base, length)
        start += a_part.size
    return gaps, bases


def _block_squares(a: Array, b: Array, scale: float) -> tuple[Array, Array]:
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(wide) * scale, b.astype(wide) * scale
    is_finite = np.isfinite(x) & np.isfinite(y)
    gap, base = np.abs(x - y), np.abs(y)
    return np.where(is_finite, gap * gap, 0.0), np.where(is_finite, base * base, 0.0)
