"""Differences of two arrays, block by block, or of many small pairs in one native call; ULP distances.

A call for many pairs costs less for each, and releases the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels import native
from tensortap.kernels.decode import Array, decode, dtype_info
from tensortap.kernels.norms import RunningNorm, ScaledSum

DEFAULT_ATOL = 1e-8
DEFAULT_RTOL = 1e-5

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What counts as equal: `|a - b| <= atol + rtol * |b|`, and NaN equal to NaN only with `equal_nan`."""

    atol: float = DEFAULT_ATOL
    rtol: float = DEFAULT_RTOL
    equal_nan: bool = False

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not value >= 0:
                raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
        if math.isinf(self.rtol):
            raise ValueError("rtol must be finite; atol=inf takes all finite numbers as equal")

    def for_integers(self) -> tuple[float, float]:
        """Integers are compared exactly unless the caller gives a tolerance other than the defaults."""
        atol = 0.0 if self.atol == DEFAULT_ATOL else self.atol
        rtol = 0.0 if self.rtol == DEFAULT_RTOL else self.rtol
        return atol, rtol


@dataclass(frozen=True, slots=True)
class LargestDifference:
    """The largest difference of two arrays: its size, its index, and both elements there."""

    size: int | float
    index: tuple[int, ...]
    a: Number
    b: Number


@dataclass(frozen=True, slots=True)
class SideStatistics:
    """Statistics of one array over the positions where both are finite; None if there are none."""

    min: int | float | None
    max: int | float | None
    mean: float | None
    norm: float


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """How two arrays of one shape differ.

    `mismatches` counts every position beyond the tolerance. The sizes speak of positions where both sides
    are finite; `absolute` and `relative` are None when no such pair differs. `nan` and `inf` count each side,
    `disagreeing` the positions where a NaN or an infinity of one side is not matched on the other, and
    `both_nan` those where both are NaN.

    `mean` is that of |a - b|, `bias` that of a - b; `above` and `below` count where a is the larger and the
    smaller one. `gain` is by how much b must grow to fit a best, and `cosine_distance` what no growth mends:
    1 - cos of the angle between them. Both are None where a side is nothing but zeros. Complex numbers
    count by their absolute value in `bias`, `above`, `below` and the sides. `ulps` is there if asked for,
    between floats of one type."""

    count: int
    mismatches: int
    absolute: LargestDifference | None
    relative: LargestDifference | None
    mean: float
    relative_l2: float
    nan: tuple[int, int]
    inf: tuple[int, int]
    disagreeing: int
    both_nan: int
    bias: float
    above: int
    below: int
    gain: float | None
    cosine_distance: float | None
    a: SideStatistics
    b: SideStatistics
    ulps: UlpDistances | None = None


@dataclass(slots=True)
class RunningMaximum:
    """The maximum so far; the first of equals."""

    size: int | float = 0
    position: int = 0
    a: Number = 0
    b: Number = 0

    def update(self, size: int | float, position: int, a: Any, b: Any) -> None:
        if size > self.size:
            self.size, self.position, self.a, self.b = size, position, a.item(), b.item()

    def join(self, later: RunningMaximum) -> None:
        if later.size > self.size:
            self.size, self.position, self.a, self.b = later.size, later.position, later.a, later.b

    def extreme(self, shape: tuple[int, ...]) -> LargestDifference | None:
        if not self.size:
            return None
        return LargestDifference(self.size, unravel_index(self.position, shape), self.a, self.b)


@dataclass(slots=True)
class SideAccumulator:
    """Running statistics of one array."""

    low: int | float | None = None
    high: int | float | None = None
    total: ScaledSum = field(default_factory=ScaledSum)
    norm: RunningNorm = field(default_factory=RunningNorm)

    def update_bounds(self, low: int | float, high: int | float) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def join(self, other: SideAccumulator) -> None:
        if other.low is not None and other.high is not None:
            self.update_bounds(other.low, other.high)
        self.total.join(other.total)
        self.norm.join(other.norm)

    def finish(self, count: int) -> SideStatistics:
        mean = self.total.divided_by(count) if count else None
        return SideStatistics(self.low, self.high, mean, self.norm.value)


@dataclass(slots=True)
class DifferenceAccumulator:
    """Running difference of two arrays; `start` is the flat position of the current block."""

    start: int = 0
    mismatches: int = 0
    finite: int = 0
    above: int = 0
    below: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0
    both_nan: int = 0
    total: ScaledSum = field(default_factory=ScaledSum)
    bias: ScaledSum = field(default_factory=ScaledSum)
    product: ScaledSum = field(default_factory=ScaledSum)  # of a - b with b
    absolute: RunningMaximum = field(default_factory=RunningMaximum)
    relative: RunningMaximum = field(default_factory=RunningMaximum)
    gap: RunningNorm = field(default_factory=RunningNorm)
    a: SideAccumulator = field(default_factory=SideAccumulator)
    b: SideAccumulator = field(default_factory=SideAccumulator)
    ulps: list[int] | None = None
    max_ulps: int = 0

    def add_ulps(self, counts: list[int], most: int) -> None:
        self.ulps = counts if self.ulps is None else [x + y for x, y in zip(self.ulps, counts, strict=True)]
        self.max_ulps = max(self.max_ulps, most)

    def join(self, later: DifferenceAccumulator) -> None:
        """Add the accumulator of a later part of the same arrays."""
        for name in ("mismatches", "finite", "above", "below", "disagreeing", "both_nan"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("total", "bias", "product", "absolute", "relative", "gap", "a", "b"):
            getattr(self, name).join(getattr(later, name))
        self.nan = self.nan[0] + later.nan[0], self.nan[1] + later.nan[1]
        self.inf = self.inf[0] + later.inf[0], self.inf[1] + later.inf[1]
        if later.ulps is not None:
            self.add_ulps(later.ulps, later.max_ulps)

    def finish(self, shape: tuple[int, ...]) -> ArrayDifference:
        a, b, gap = self.a.finish(self.finite), self.b.finish(self.finite), self.gap.value
        gain, cosine_distance = gain_and_cosine_distance(self.product, a.norm, b.norm, gap)
        return ArrayDifference(
            count=math.prod(shape),
            mismatches=self.mismatches,
            absolute=self.absolute.extreme(shape),
            relative=self.relative.extreme(shape),
            mean=self.total.divided_by(self.finite) if self.finite else 0.0,
            relative_l2=_ratio(gap, b.norm),
            nan=self.nan,
            inf=self.inf,
            disagreeing=self.disagreeing,
            both_nan=self.both_nan,
            bias=self.bias.divided_by(self.finite) if self.finite else 0.0,
            above=self.above,
            below=self.below,
            gain=gain,
            cosine_distance=cosine_distance,
            a=a,
            b=b,
            ulps=None if self.ulps is None else UlpDistances(tuple(self.ulps), self.max_ulps),
        )


def gain_and_cosine_distance(
    product: ScaledSum, a: float, b: float, gap: float
) -> tuple[float | None, float | None]:
    """Gain and cosine distance of two arrays, from their norms and the dot product of a - b with b."""
    if not a or not b:
        return None, None
    longest = max(a, b)
    shares = gap / longest, product.divided_by(longest, longest), a / longest, b / longest
    return product.divided_by(b, b), cosine_distance_from_shares(*shares)


def cosine_distance_from_shares(gap: float, product: float, a: float, b: float) -> float:
    """1 - cos(a, b) from sums of the differences, since sums of the elements would cancel. All arguments
    are relative to the larger norm."""
    stretch = (gap * gap + 2 * product) / (a + b)  # |a| - |b|
    distance = (gap * gap - stretch * stretch) / (2 * a * b) if a * b else math.nan
    return distance if math.isnan(distance) else min(max(distance, 0.0), 2.0)


def unravel_index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a flat position in an array of this shape."""
    if len(shape) == 1:
        return (position,)
    index, rest = [], position
    for length in reversed(shape):
        rest, coordinate = divmod(rest, length)
        index.append(coordinate)
    return tuple(reversed(index))


def _ratio(gap: float, base: float) -> float:
    if not gap:
        return 0.0
    return gap / base if base else math.inf


# Distances below 16 have one bin each, then eight bins per power of two.
BINS = 512
_EXACT_BINS = 16
_UNSIGNED_DTYPES = ("float8_e8m0fnu",)


@dataclass(frozen=True, slots=True)
class UlpDistances:
    """Distances of the finite elements of two arrays in units in the last place: 0 where they are equal
    (also 0.0 and -0.0), 1 where they are adjacent floats."""

    counts: tuple[int, ...]
    max: int

    def quantile(self, share: float) -> int:
        """A distance that this share of the elements does not exceed: exact below 16, then within 1/8."""
        target, seen = share * sum(self.counts), 0
        for position, count in enumerate(self.counts):
            seen += count
            if count and seen >= target:
                return min(bin_upper_bound(position), self.max)
        return self.max


def bin_upper_bound(position: int) -> int:
    """The largest distance that falls into the bin."""
    if position < _EXACT_BINS:
        return position
    power, eighth = position // 8 + 2, position % 8
    return int(((9 + eighth) << (power - 3)) - 1)


def has_ulp_distance(a_dtype: str, b_dtype: str) -> bool:
    return a_dtype == b_dtype and dtype_info(a_dtype).family == "float"


def count_ulp_distances(a: Array, b: Array, dtype: str) -> tuple[list[int], int]:
    """The number of pairs per bin and the largest distance; nonfinite pairs are not counted."""
    finite = np.isfinite(decode(a, dtype)) & np.isfinite(decode(b, dtype))
    gap = ulp_distances(a[finite], b[finite], dtype)
    most = int(gap.max()) if gap.size else 0
    counts: list[int] = np.bincount(_bin_indices(gap, dtype), minlength=BINS).tolist()
    return counts, most


def ulp_distances(a: Array, b: Array, dtype: str) -> Array:
    """Elementwise; undefined for nonfinite elements."""
    a_keys, b_keys = _ordered_integers(a, dtype), _ordered_integers(b, dtype)
    return np.where(a_keys > b_keys, a_keys - b_keys, b_keys - a_keys).view(np.uint64)


def _ordered_integers(bits: Array, dtype: str) -> Array:
    """Integers in the same order as the floats."""
    width = dtype_info(dtype).itemsize
    codes = bits.view(f"<u{width}").astype(np.uint64)
    if dtype in _UNSIGNED_DTYPES:
        return codes.view(np.int64)
    sign = np.uint64(1 << (8 * width - 1))
    sizes = (codes & (sign - np.uint64(1))).view(np.int64)
    return np.where(codes & sign, -sizes, sizes)


def _bin_indices(gap: Array, dtype: str) -> Array:
    # As in C: distances beyond the signed integers of the dtype's width are clipped.
    gap = np.minimum(gap, np.uint64(2**63 - 1 if dtype == "float64" else 2**31 - 1))
    rough = gap & ~(gap >> np.uint64(4))  # then rounding to float32 cannot carry into the first four bits
    codes = (rough.astype(np.float32).view(np.uint32) >> 20).astype(np.int64)
    return np.where(gap < _EXACT_BINS, gap.astype(np.int64), codes - 1032)


ArrayPair = tuple[Array, str, Array, str]
PairReport = tuple[Any, ...]  # the fields of PairDifferences


class PairDifferences(NamedTuple):
    """Differences of two arrays over the positions where both are finite, and nonfinite counts: sums,
    squares, bounds, the largest difference, the worst row and column relative to the larger side.

    For two integer arrays there are no rows and columns.
    """

    finite: int
    above: int
    below: int
    a_nan: int
    b_nan: int
    a_inf: int
    b_inf: int
    disagreeing: int
    total: float  # of a - b
    gap_squares: float
    product: float  # of a - b with b
    a_squares: float
    b_squares: float
    a_min: float
    b_min: float
    largest: float  # of |a - b|, with its flat position and both numbers there
    position: int
    a: float
    b: float
    row: float
    worst_row: int
    column: float
    worst_column: int


class PairLayout(NamedTuple):
    """What the library needs to know of a pair besides its bytes; equal for equal dtypes and shapes."""

    a_dtype: str
    b_dtype: str
    shape: tuple[int, ...]
    size: int
    are_integers: bool
    a_nbytes: int
    b_nbytes: int
    nbytes: int
    a_arguments: tuple[object, ...]
    b_arguments: tuple[object, ...]

    def job(self, a: object, b: object) -> tuple[object, ...]:
        """The arguments of the library for a pair of contiguous buffers."""
        return (a, *self.a_arguments, b, *self.b_arguments)


def compare_pairs(pairs: Sequence[ArrayPair]) -> list[PairDifferences | None]:
    """The differences of each pair; None where a pair must be compared by itself: too large, not
    contiguous, or with elements that need the careful path."""
    differences: list[PairDifferences | None] = [None] * len(pairs)
    jobs, chosen = [], []
    for position, (a, a_dtype, b, b_dtype) in enumerate(pairs if native.library is not None else ()):
        known = pair_layout(a_dtype, a.shape, b_dtype, b.shape)
        if known is not None and native.accepts(a, b):
            jobs.append(known.job(a, b))
            chosen.append(position)
    for position, report in zip(chosen, compare_jobs(jobs), strict=True):
        differences[position] = None if report is None else PairDifferences._make(report)
    return differences


def compare_jobs(jobs: list[tuple[object, ...]]) -> list[PairReport | None]:
    """The raw report of each job, in one call; None as in `compare_pairs`."""
    reports: list[PairReport | None] = native.library.measured(jobs) if jobs else []
    return reports


@lru_cache(maxsize=4096)
def pair_layout(
    a_dtype: str, a_shape: tuple[int, ...], b_dtype: str, b_shape: tuple[int, ...]
) -> PairLayout | None:
    """The layout of pairs of these dtypes and shapes; None if the library does not support them."""
    size = math.prod(a_shape)
    if a_shape != b_shape or not 0 < size <= native.CHUNK_SIZE or not native.has_loops_for(a_dtype, b_dtype):
        return None
    are_integers = are_discrete(a_dtype, b_dtype)
    rest = size, 0 if are_integers else last_axis_length(a_shape), are_integers
    a, b = (size * DTYPE_TABLE[dtype].itemsize for dtype in (a_dtype, b_dtype))
    native_arguments = native.dtype_code(a_dtype), (*native.dtype_code(b_dtype), *rest)
    return PairLayout(a_dtype, b_dtype, a_shape, size, are_integers, a, b, a + b, *native_arguments)


@lru_cache(maxsize=512)
def are_discrete(a_dtype: str, b_dtype: str) -> bool:
    """Whether both dtypes are integer or bool: decisions, not measurements."""
    return all(DTYPE_TABLE[dtype].family in ("bool", "int") for dtype in (a_dtype, b_dtype))


def last_axis_length(shape: tuple[int, ...]) -> int:
    """The length of the last axis; 0 if it is the only one, or if either extent is 1."""
    if len(shape) < 2 or shape[-1] < 2 or math.prod(shape[:-1]) < 2:
        return 0
    return shape[-1]
