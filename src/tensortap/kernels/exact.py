"""Differences of integers and bools, in integer arithmetic that cannot overflow."""

import math

import numpy as np

from tensortap.kernels.norms import dot, norm, sum_float64
from tensortap.kernels.numbers import Array
from tensortap.kernels.tally import DifferenceAccumulator, SideAccumulator, Tolerance

_TWO_TO_64 = 2.0**64


def accumulate_integers(tally: DifferenceAccumulator, a: Array, b: Array, tolerance: Tolerance) -> None:
    """Account for one block of integers."""
    a, b = _bool_as_uint8(a), _bool_as_uint8(b)
    tally.finite += a.size
    _add_integer_side(tally.a, a)
    _add_integer_side(tally.b, b)
    where = np.flatnonzero(a != b)
    if where.size:
        _add_differing_integers(tally, a[where], b[where], where, tolerance)


def _add_integer_side(side: SideAccumulator, values: Array) -> None:
    wide = values.astype(np.float64)
    side.bound(values.min().item(), values.max().item())
    side.total.add(sum_float64(wide))
    side.norm.add(norm(wide))


def _add_differing_integers(
    tally: DifferenceAccumulator, a: Array, b: Array, where: Array, tolerance: Tolerance
) -> None:
    gap, beyond = _absolute_difference(a, b)
    wide, base = gap.astype(np.float64), b.astype(np.float64)
    wide[beyond] += _TWO_TO_64
    tally.total.add(sum_float64(wide))
    tally.gap.add(norm(wide))
    at = _largest_difference_at(gap, beyond)
    tally.absolute.raise_to(abs(int(a[at]) - int(b[at])), tally.start + int(where[at]), a[at], b[at])
    size = np.abs(base)
    ratio = wide / size
    at = int(ratio.argmax())
    tally.relative.raise_to(float(ratio[at]), tally.start + int(where[at]), a[at], b[at])
    tally.mismatches += _count_integer_mismatches(gap, beyond, wide, size, tolerance)
    _add_signed(tally, np.where(a > b, wide, -wide), base)


def _add_signed(tally: DifferenceAccumulator, difference: Array, base: Array) -> None:
    above = int(np.count_nonzero(difference > 0))
    tally.above += above
    tally.below += difference.size - above
    tally.bias.add(sum_float64(difference))
    tally.product.add(dot(difference, base))


def _absolute_difference(a: Array, b: Array) -> tuple[Array, Array]:
    """|a - b| modulo 2**64, and where the true one is larger: a large unsigned against a negative number."""
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
