"""The numpy counterpart of the C code: integers without overflow, real and complex numbers in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensortap.kernels.accumulator import DifferenceAccumulator, SideAccumulator, Tolerance
from tensortap.kernels.decode import Array
from tensortap.kernels.norms import dot, norm, scaled_dot, scaled_sum, sum_float64

_TWO_TO_64 = 2.0**64


def accumulate_integers(accumulator: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance) -> None:
    """Accumulate one block of integers."""
    a, b = _bool_as_uint8(a), _bool_as_uint8(b)
    accumulator.finite += a.size
    _add_integer_side(accumulator.a, a)
    _add_integer_side(accumulator.b, b)
    where = np.flatnonzero(a != b)
    if where.size:
        _add_differing_integers(accumulator, a[where], b[where], where, tolerance)


def _add_integer_side(side: SideAccumulator, values: Array) -> None:
    wide = values.astype(np.float64)
    side.update_bounds(values.min().item(), values.max().item())
    side.total.add(sum_float64(wide))
    side.norm.add(norm(wide))


def _add_differing_integers(
    accumulator: DifferenceAccumulator, a: Array, b: Array, where: Array, tolerance: Tolerance
) -> None:
    gap, beyond = _absolute_difference(a, b)
    wide, base = gap.astype(np.float64), b.astype(np.float64)
    wide[beyond] += _TWO_TO_64
    accumulator.total.add(sum_float64(wide))
    accumulator.gap.add(norm(wide))
    at = _largest_difference_at(gap, beyond)
    accumulator.absolute.update(
        abs(int(a[at]) - int(b[at])), accumulator.start + int(where[at]), a[at], b[at]
    )
    size = np.abs(base)
    ratio = wide / size
    at = int(ratio.argmax())
    accumulator.relative.update(float(ratio[at]), accumulator.start + int(where[at]), a[at], b[at])
    accumulator.mismatches += _count_integer_mismatches(gap, beyond, wide, size, tolerance)
    _add_signed(accumulator, np.where(a > b, wide, -wide), base)


def _add_signed(accumulator: DifferenceAccumulator, difference: Array, base: Array) -> None:
    above = int(np.count_nonzero(difference > 0))
    accumulator.above += above
    accumulator.below += difference.size - above
    accumulator.bias.add(sum_float64(difference))
    accumulator.product.add(dot(difference, base))


def _absolute_difference(a: Array, b: Array) -> tuple[Array, Array]:
    """|a - b| modulo 2**64, and a mask of where the true value is larger: a large unsigned against a
    negative number."""
    is_greater = a > b
    a_bits, b_bits = _as_uint64(a), _as_uint64(b)
    high, low = np.where(is_greater, a_bits, b_bits), np.where(is_greater, b_bits, a_bits)
    gap = high - low
    opposite = np.where(is_greater, (a >= 0) & (b < 0), (b >= 0) & (a < 0))
    return gap, opposite & (gap < high)


def _bool_as_uint8(values: Array) -> Array:
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def _as_uint64(values: Array) -> Array:
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def _largest_difference_at(gap: Array, beyond: Array) -> int:
    among = np.flatnonzero(beyond) if beyond.any() else np.arange(gap.size)
    return int(among[gap[among].argmax()])


def _count_integer_mismatches(
    gap: Array, beyond: Array, wide: Array, size: Array, tolerance: Tolerance
) -> int:
    atol, rtol = tolerance.for_integers()
    if rtol == 0.0 and atol < _TWO_TO_64:
        return int(np.count_nonzero(beyond | (gap > np.uint64(math.floor(atol)))))
    return int(np.count_nonzero(wide > atol + rtol * size))


# Shortcuts decide only what rounding cannot change; anything closer is computed in full.
_ROUNDING_MARGIN = 1.0 - 1e-6
_MIN_RATIO, _MIN_ATOL, _MAX_FLOAT64 = 1e-250, 1e-30, float(np.finfo(np.float64).max)
# Between these bounds the squares of a block are accurate; below the last share they cancel.
_MIN_SQUARES, _MAX_SQUARES, _MIN_SHARE_OF_BASE = 1e-280, 1e300, 0.01
_PIECE_SIZE = 4096


class Scratch:
    """Scratch memory for one block, allocated once."""

    def __init__(self, size: int, *, is_complex: bool) -> None:
        self.is_complex = is_complex
        # One matrix product computes all sums over the first two rows.
        self._rows = np.empty((3, size))
        self._rows[2] = 1.0
        self._gap, self._base, self._slack = self._rows[0], np.empty(size), np.empty(size)
        self._b = np.empty(size, np.complex128) if is_complex else self._rows[1]
        self._a = np.empty(size, np.complex128) if is_complex else self._base

    def widen(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Both in float64; a's copy is valid until `size` is called."""
        wide = self._b[: b.size]
        np.copyto(wide, b)
        return _widen(a, self._a), wide

    def gap(self, a: Array, b: Array) -> Array:
        """a - b of real numbers, |a - b| of complex ones."""
        gap: Array = self._gap[: a.size]
        if a.dtype.kind == "c":
            np.abs(np.subtract(a, b), out=gap)
        else:
            np.subtract(a, b, out=gap)
        return gap

    def sums(self, count: int) -> list[list[float]]:
        """Products of d = a - b and b in scratch: [[d*d, d*b, d], [b*d, b*b, b]]."""
        rows = self._rows[:, :count]
        sums: list[list[float]] = (rows[:2] @ rows.T).tolist()
        return sums

    def size(self, b: Array) -> Array:
        return np.abs(b, out=self._base[: b.size])

    def slack(self, count: int) -> Array:
        return self._slack[:count]

    def are_surely_within(self, a: Array, b: Array, tolerance: Tolerance) -> bool:
        """Whether a fast test in the arrays' own precision proves every pair close enough."""
        if a.dtype != b.dtype or a.dtype.kind != "f" or tolerance.atol < _MIN_ATOL:
            return False
        gap, slack = (room.view(a.dtype)[: a.size] for room in (self._gap, self._base))
        np.subtract(a, b, out=gap)
        np.abs(gap, out=gap)
        np.abs(b, out=slack)
        np.multiply(slack, tolerance.rtol * _ROUNDING_MARGIN, out=slack)
        np.subtract(gap, slack, out=gap)
        # A NaN or an infinity on either side propagates, and is left to the full computation.
        return float(gap.max()) <= min(tolerance.atol * _ROUNDING_MARGIN, _MAX_FLOAT64)


def accumulate_floats(
    accumulator: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance, scratch: Scratch
) -> None:
    """Accumulate one block of real or complex numbers."""
    wide_a, wide_b = scratch.widen(a, b)
    gap = scratch.gap(wide_a, wide_b)
    sums = None if scratch.is_complex else scratch.sums(gap.size)
    if sums is None or not (_squares_in_range(sums[0][0], gap) and _squares_in_range(sums[1][1], wide_b)):
        _accumulate_in_pieces(accumulator, a, b, tolerance, scratch)
        return
    accumulator.finite += gap.size
    _add_bounds_and_signs(accumulator, a, b)
    _add_block_sums(accumulator, wide_a, sums)
    _add_absolute_differences(accumulator, a, wide_b, gap, tolerance, scratch, None)


def _squares_in_range(squares: float, values: Array) -> bool:
    """Whether the squares of a block have neither overflowed nor underflowed."""
    return _MIN_SQUARES < squares < _MAX_SQUARES or (squares == 0.0 and not values.any())


def _add_block_sums(accumulator: DifferenceAccumulator, a: Array, sums: list[list[float]]) -> None:
    """The sums over a follow from the others, unless a is so much smaller that they cancel."""
    (squares, product, difference), (_, base, total_b) = sums
    accumulator.product.add(product)
    accumulator.bias.add(difference)
    accumulator.gap.add_squares(squares)
    accumulator.b.total.add(total_b)
    accumulator.b.norm.add_squares(base)
    squares_a = base + 2 * product + squares
    if squares_a > _MIN_SHARE_OF_BASE * base:
        accumulator.a.total.add(total_b + difference)
        accumulator.a.norm.add_squares(squares_a)
    else:
        _add_float_side(accumulator.a, a)


def accumulate_identical(
    accumulator: DifferenceAccumulator, b: Array, tolerance: Tolerance, scratch: Scratch
) -> None:
    """Accumulate one block whose bytes are equal on both sides."""
    _, wide = scratch.widen(b[:0], b)
    if not math.isfinite(norm(scratch.size(wide))):
        _accumulate_in_pieces(accumulator, b, b, tolerance, scratch)
        return
    accumulator.finite += b.size
    sides = SideAccumulator()
    _add_bounds(sides, b)
    _add_float_side(sides, wide)
    accumulator.a.join(sides)
    accumulator.b.join(sides)


def _widen(values: Array, room: Array) -> Array:
    if values.dtype == room.dtype:
        return values
    wide = room[: values.size]
    np.copyto(wide, values)
    return wide


def _accumulate_in_pieces(
    accumulator: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance, scratch: Scratch
) -> None:
    """The path for any numbers, in small pieces so that its temporaries stay small."""
    start, wide = accumulator.start, np.complex128 if scratch.is_complex else np.float64
    for first in range(0, a.size, _PIECE_SIZE):
        accumulator.start = start + first
        a_piece, b_piece = (side[first : first + _PIECE_SIZE].astype(wide) for side in (a, b))
        _add_piece(accumulator, a_piece, b_piece, tolerance, scratch)
    accumulator.start = start


def _add_piece(
    accumulator: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance, scratch: Scratch
) -> None:
    """Count nonfinite elements separately, accumulate the rest."""
    finite = np.isfinite(a) & np.isfinite(b)
    where = None if finite.all() else np.flatnonzero(finite)
    if where is not None:
        _add_nonfinite(accumulator, a[~finite], b[~finite], tolerance)
        a, b = a[where], b[where]
    if a.size:
        gap = scratch.gap(a, b)
        accumulator.finite += gap.size
        _add_bounds_and_signs(accumulator, a, b)
        _add_sums(accumulator, a, b, gap)
        _add_absolute_differences(accumulator, a, b, gap, tolerance, scratch, where)


def _add_nonfinite(accumulator: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance) -> None:
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    both_nan = a_nan & b_nan
    disagreeing, undefined = _count_true(~both_nan & (a != b)), _count_true(both_nan)
    accumulator.nan = _add_counts(accumulator.nan, a_nan, b_nan)
    accumulator.inf = _add_counts(accumulator.inf, np.isinf(a) & ~a_nan, np.isinf(b) & ~b_nan)
    accumulator.disagreeing += disagreeing
    accumulator.both_nan += undefined
    accumulator.mismatches += disagreeing + (0 if tolerance.equal_nan else undefined)


def _add_counts(counts: tuple[int, int], a: Array, b: Array) -> tuple[int, int]:
    return counts[0] + _count_true(a), counts[1] + _count_true(b)


def _count_true(mask: Array) -> int:
    return int(np.count_nonzero(mask))


def _add_sums(accumulator: DifferenceAccumulator, a: Array, b: Array, gap: Array) -> None:
    """Overflow-safe; `gap` is still a - b."""
    _add_float_side(accumulator.a, a)
    _add_float_side(accumulator.b, b)
    accumulator.gap.add(norm(gap))
    if a.dtype.kind == "c":
        difference = a - b
        accumulator.product.add(
            *scaled_dot(difference.view(np.float64), np.ascontiguousarray(b).view(np.float64))
        )
        gap = np.abs(a) - np.abs(b)
    else:
        accumulator.product.add(*scaled_dot(gap, b))
    accumulator.bias.add(*scaled_sum(gap))


def _add_absolute_differences(
    accumulator: DifferenceAccumulator,
    a: Array,
    b: Array,
    gap: Array,
    tolerance: Tolerance,
    scratch: Scratch,
    where: Array | None,
) -> None:
    """Everything that needs |a - b|."""
    np.abs(gap, out=gap)
    accumulator.total.add(*scaled_sum(gap))
    largest = float(gap.max())
    if largest > accumulator.absolute.size:
        at = int(gap.argmax())
        accumulator.absolute.update(largest, _flat_position(accumulator, at, where), *_numbers_at(a, b, at))
    if largest:
        size, slack = scratch.size(b), scratch.slack(gap.size)
        if _may_exceed_ratio(largest, size, float(accumulator.relative.size)):
            _add_relative_difference(accumulator, a, b, gap, size, slack, where)
        if not _is_surely_within(largest, float(accumulator.relative.size), tolerance):
            np.multiply(size, tolerance.rtol, out=slack)
            slack += tolerance.atol
            accumulator.mismatches += _count_true(gap > slack)


def _add_bounds_and_signs(accumulator: DifferenceAccumulator, a: Array, b: Array) -> None:
    """Bounds and sign counts, in the arrays' own dtypes, which is faster."""
    if "c" in (a.dtype.kind, b.dtype.kind):
        a, b = (np.abs(side.astype(np.complex128)) for side in (a, b))
    elif a.dtype != b.dtype:
        a, b = a.astype(np.float64), b.astype(np.float64)
    _add_bounds(accumulator.a, a)
    _add_bounds(accumulator.b, b)
    accumulator.above += _count_true(a > b)
    accumulator.below += _count_true(a < b)


def _add_bounds(side: SideAccumulator, values: Array) -> None:
    real = np.abs(values.astype(np.complex128)) if values.dtype.kind == "c" else values
    side.update_bounds(float(real.min()), float(real.max()))


def _add_float_side(side: SideAccumulator, values: Array) -> None:
    real = np.abs(values) if values.dtype.kind == "c" else values
    side.total.add(*scaled_sum(real))
    side.norm.add(norm(real))


def _add_relative_difference(
    accumulator: DifferenceAccumulator,
    a: Array,
    b: Array,
    gap: Array,
    size: Array,
    slack: Array,
    where: Array | None,
) -> None:
    # A product is faster than a quotient; slightly below the largest ratio so far, since it is rounded.
    steepest = accumulator.relative.size
    np.multiply(size, steepest * _ROUNDING_MARGIN if steepest > _MIN_RATIO else 0.0, out=slack)
    if not (gap > slack).any():
        return
    ratio = np.divide(gap, size, out=slack)
    at = int(ratio.argmax())
    if np.isnan(ratio[at]):
        # 0 / 0: zero on both sides.
        np.copyto(ratio, 0.0, where=gap == 0.0)
        at = int(ratio.argmax())
    accumulator.relative.update(
        float(ratio[at]), _flat_position(accumulator, at, where), *_numbers_at(a, b, at)
    )


def _may_exceed_ratio(largest: float, size: Array, steepest: float) -> bool:
    """Whether any ratio can exceed the largest so far: it needs a small enough denominator."""
    if math.isinf(steepest):
        return False
    return steepest <= _MIN_RATIO or float(size.min()) * (steepest * _ROUNDING_MARGIN) < largest


def _numbers_at(a: Array, b: Array, at: int) -> tuple[Any, Any]:
    """Both elements at a position, in the dtype of the computation."""
    return a[at].astype(b.dtype), b[at]


def _is_surely_within(largest: float, steepest: float, tolerance: Tolerance) -> bool:
    if tolerance.atol < _MIN_ATOL:
        return False
    return largest <= tolerance.atol * _ROUNDING_MARGIN or steepest <= tolerance.rtol * _ROUNDING_MARGIN


def _flat_position(accumulator: DifferenceAccumulator, at: int, where: Array | None) -> int:
    return accumulator.start + (at if where is None else int(where[at]))
