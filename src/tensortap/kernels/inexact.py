"""Differences of real and complex numbers, computed in float64."""

import math

import numpy as np

from tensortap.kernels.norms import dot, norm, total
from tensortap.kernels.numbers import Array
from tensortap.kernels.tally import Tally, Tolerance, raise_peak

# Shortcuts decide only what no rounding could turn around; anything closer takes the long way.
_SURELY = 1.0 - 1e-6
_LEAST_ATOL, _MOST = 1e-30, float(np.finfo(np.float64).max)


class Scratch:
    """Room for one block, taken once."""

    def __init__(self, size: int, *, is_complex: bool) -> None:
        kind = np.complex128 if is_complex else np.float64
        self._a, self._b = np.empty(size, kind), np.empty(size, kind)
        self._gap, self._base = np.empty(size), np.empty(size)

    def widened(self, a: Array, b: Array) -> tuple[Array, Array]:
        return _widened(a, self._a), _widened(b, self._b)

    def gap(self, a: Array, b: Array) -> Array:
        """|a - b|"""
        gap = self._gap[: a.size]
        if a.dtype.kind == "c":
            return np.abs(np.subtract(a, b), out=gap)
        np.subtract(a, b, out=gap)
        return np.abs(gap, out=gap)

    def size(self, b: Array) -> Array:
        return np.abs(b, out=self._base[: b.size])

    def are_surely_within(self, a: Array, b: Array, tolerance: Tolerance) -> bool:
        """Whether a quick look in the numbers' own precision already proves every pair close enough."""
        if a.dtype != b.dtype or a.dtype.kind != "f" or tolerance.atol < _LEAST_ATOL:
            return False
        gap, slack = (room.view(a.dtype)[: a.size] for room in (self._gap, self._base))
        np.subtract(a, b, out=gap)
        np.abs(gap, out=gap)
        np.abs(b, out=slack)
        np.multiply(slack, tolerance.rtol * _SURELY, out=slack)
        np.subtract(gap, slack, out=gap)
        # A NaN or an infinity on either side shows as one here, and is left to the long way.
        return float(gap.max()) <= min(tolerance.atol * _SURELY, _MOST)


def add(tally: Tally, a: Array, b: Array, tolerance: Tolerance, scratch: Scratch) -> None:
    """Account for one block of numbers."""
    a, b = scratch.widened(a, b)
    gap = scratch.gap(a, b)
    if math.isfinite(dot(gap, gap)):
        _add_finite(tally, a, b, gap, tolerance, scratch, None)
    else:
        _add_any(tally, a, b, tolerance, scratch)


def add_same(tally: Tally, b: Array, tolerance: Tolerance, scratch: Scratch) -> None:
    """Account for one block whose bytes are the same on both sides."""
    wide, _ = scratch.widened(b, b[:0])
    size = scratch.size(wide)
    length = norm(size)
    if math.isfinite(length):
        tally.finite += b.size
        tally.base.add(length)
    else:
        _add_any(tally, wide, wide, tolerance, scratch)


def _widened(values: Array, room: Array) -> Array:
    if values.dtype == room.dtype:
        return values
    wide = room[: values.size]
    np.copyto(wide, values)
    return wide


def _add_any(tally: Tally, a: Array, b: Array, tolerance: Tolerance, scratch: Scratch) -> None:
    """Numbers among which some are not finite: those are counted apart, the rest as usual."""
    finite = np.isfinite(a) & np.isfinite(b)
    _add_nonfinite(tally, a[~finite], b[~finite], tolerance)
    where = np.flatnonzero(finite)
    if where.size:
        a, b = a[where], b[where]
        _add_finite(tally, a, b, scratch.gap(a, b), tolerance, scratch, where)


def _add_nonfinite(tally: Tally, a: Array, b: Array, tolerance: Tolerance) -> None:
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    both_nan = a_nan & b_nan
    disagreeing, undefined = _count(~both_nan & (a != b)), _count(both_nan)
    tally.nan = _counted(tally.nan, a_nan, b_nan)
    tally.inf = _counted(tally.inf, np.isinf(a) & ~a_nan, np.isinf(b) & ~b_nan)
    tally.disagreeing += disagreeing
    tally.both_nan += undefined
    tally.mismatches += disagreeing + (0 if tolerance.equal_nan else undefined)


def _counted(counts: tuple[int, int], a: Array, b: Array) -> tuple[int, int]:
    return counts[0] + _count(a), counts[1] + _count(b)


def _count(mask: Array) -> int:
    return int(np.count_nonzero(mask))


def _add_finite(
    tally: Tally, a: Array, b: Array, gap: Array, tolerance: Tolerance, scratch: Scratch, where: Array | None
) -> None:
    size = scratch.size(b)
    tally.finite += gap.size
    tally.total += total(gap)
    tally.gap.add(norm(gap))
    tally.base.add(norm(size))
    at = int(gap.argmax())
    raise_peak(tally.absolute, float(gap[at]), _position(tally, at, where), a, b, at)
    largest = float(gap[at])
    if largest:
        steepest = _add_relative(tally, a, b, gap, size, where)
        if not _is_surely_within(largest, steepest, tolerance):
            size *= tolerance.rtol
            size += tolerance.atol
            tally.mismatches += _count(gap > size)


def _add_relative(tally: Tally, a: Array, b: Array, gap: Array, size: Array, where: Array | None) -> float:
    ratio = gap / size
    at = int(ratio.argmax())
    if np.isnan(ratio[at]):
        # Nothing apart from nothing: zero on both sides.
        np.copyto(ratio, 0.0, where=gap == 0.0)
        at = int(ratio.argmax())
    raise_peak(tally.relative, float(ratio[at]), _position(tally, at, where), a, b, at)
    return float(ratio[at])


def _is_surely_within(largest: float, steepest: float, tolerance: Tolerance) -> bool:
    if tolerance.atol < _LEAST_ATOL:
        return False
    return largest <= tolerance.atol * _SURELY or steepest <= tolerance.rtol * _SURELY


def _position(tally: Tally, at: int, where: Array | None) -> int:
    return tally.start + (at if where is None else int(where[at]))
