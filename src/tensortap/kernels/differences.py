"""How two arrays of one shape differ, and whether they are close, in one pass over both.

Blocks are compared by the C library if it supports their dtypes, else by numpy.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tensortap.kernels import native, numpy_differences
from tensortap.kernels.accumulator import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    ArrayDifference,
    DifferenceAccumulator,
    RunningMaximum,
    SideAccumulator,
    Tolerance,
    count_ulp_distances,
    has_ulp_distance,
)
from tensortap.kernels.decode import Array, block_size, decode_block, dtype_info, iterate_blocks


def measure_differences(
    a: Array,
    a_dtype: str,
    b: Array,
    b_dtype: str,
    *,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    equal_nan: bool = False,
    ulps: bool = False,
    threads: int | None = None,
    block: int | None = None,
) -> ArrayDifference:
    """All differences of two arrays of storage dtypes, compared by `|a - b| <= atol + rtol * |b|`.

    Integers and bools are compared exactly with each other, and with a tolerance only where it differs from
    the default; everything else in float64. Equal infinities are equal. With the compiled kernels, large
    arrays use all cores, or `threads`.
    """
    pair = BlockComparison(a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block, with_ulps=ulps)
    _check_threads(threads)
    if pair.is_native and native.accepts(a, b):
        return _accumulate_chunks(pair, a, b, block or native.CHUNK_SIZE, threads).finish(a.shape)
    accumulator = DifferenceAccumulator()
    for a_part, b_part in iterate_blocks([a, b], pair.block):
        pair.add(accumulator, a_part, b_part)
        accumulator.start += a_part.size
    return accumulator.finish(a.shape)


def is_within_tolerance(
    a: Array,
    a_dtype: str,
    b: Array,
    b_dtype: str,
    *,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    equal_nan: bool = False,
    block: int | None = None,
) -> bool:
    """Whether `measure_differences` would find no mismatch; stops at the first block that has one."""
    pair = BlockComparison(
        a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block, until_mismatch=True
    )
    size = native.CHUNK_SIZE if pair.is_native and block is None and native.accepts(a, b) else pair.block
    accumulator = DifferenceAccumulator()
    for a_part, b_part in iterate_blocks([a, b], size):
        if not pair.are_surely_within(a_part, b_part):
            pair.add(accumulator, a_part, b_part)
        if accumulator.mismatches:
            return False
    return True


def _accumulate_chunks(
    pair: BlockComparison, a: Array, b: Array, size: int, threads: int | None
) -> DifferenceAccumulator:
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    if a.size <= size:
        accumulator = DifferenceAccumulator()
        pair.add(accumulator, flat_a, flat_b)
        return accumulator

    def account(start: int) -> DifferenceAccumulator:
        part = DifferenceAccumulator(start=start)
        pair.add(part, flat_a[start : start + size], flat_b[start : start + size])
        return part

    accumulator = DifferenceAccumulator()
    for part in native.map_chunks(account, range(0, a.size, size), native.choose_threads(threads, a, b)):
        accumulator.join(part)
    return accumulator


def _check_threads(threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads!r}")


_PROBE_SIZE = 64
_COMPUTED_AS_STORED = {"float32", "float64"}


class _DtypePair(NamedTuple):
    """How a pair of dtypes is compared."""

    are_exact: bool
    are_complex: bool
    have_ulps: bool
    are_known: bool  # supported by the library
    blocks: tuple[int, int]  # block sizes of non-contiguous and of contiguous arrays


@lru_cache(maxsize=256)
def _dtype_pair(a: str, b: str) -> _DtypePair:
    families = {dtype_info(a).family, dtype_info(b).family}
    are_exact = families <= {"bool", "int"}
    # One array, the difference and its sums share the scratch. Differing integers need more memory each,
    # and so do elements that have to be gathered or widened first.
    eighths = (2, 2) if are_exact else (3, 5 if {a, b} <= _COMPUTED_AS_STORED else 4)
    size = block_size(a, b)
    blocks = size * eighths[0] // 8, size * eighths[1] // 8
    return _DtypePair(
        are_exact,
        "complex" in families,
        has_ulp_distance(a, b),
        native.has_loops_for(a, b),
        blocks,
    )


class BlockComparison:
    """Compares two arrays block by block."""

    def __init__(
        self,
        a: Array,
        a_dtype: str,
        b: Array,
        b_dtype: str,
        tolerance: Tolerance,
        block: int | None,
        *,
        until_mismatch: bool = False,
        with_ulps: bool = False,
    ) -> None:
        if a.shape != b.shape:
            raise ValueError(f"shapes differ: {a.shape} against {b.shape}")
        types = _dtype_pair(a_dtype, b_dtype)
        self._dtypes = a_dtype, b_dtype
        self._tolerance = tolerance
        self._is_exact, self._is_complex = types.are_exact, types.are_complex
        self.is_native = native.library is not None and types.are_known
        self._until_mismatch = until_mismatch
        # Only one thread at a time takes the numpy path: there is one scratch.
        self._scratch_lock = threading.Lock()
        self._scratch_memory: numpy_differences.Scratch | None = None
        self._size = a.size
        self._with_ulps = with_ulps and types.have_ulps
        self.block = block or types.blocks[a.flags.c_contiguous and b.flags.c_contiguous]

    def add(self, accumulator: DifferenceAccumulator, a: Array, b: Array) -> None:
        """Accumulate flat parts of both arrays, which start at `accumulator.start`."""
        start, stop = 0, a.size
        while start < stop and not (self._until_mismatch and accumulator.mismatches):
            if self.is_native:
                start = self._add_native(accumulator, a, b, start)
            if start < stop and not (self._until_mismatch and accumulator.mismatches):
                end = min(start + self.block, stop)
                with self._scratch_lock, np.errstate(all="ignore"):
                    self._add_with_numpy(accumulator, a[start:end], b[start:end], accumulator.start + start)
                start = end

    def are_surely_within(self, a_bits: Array, b_bits: Array) -> bool:
        """A cheap proof that a block has no mismatch; False proves nothing."""
        if self.is_native:  # the full comparison is as fast
            return False
        if self._are_same_bytes(a_bits, b_bits):
            return self._is_exact or self._tolerance.equal_nan or not _has_nan(b_bits, self._dtypes[1])
        if self._is_exact:
            return False
        a, b = decode_block(a_bits, self._dtypes[0]), decode_block(b_bits, self._dtypes[1])
        with np.errstate(all="ignore"):
            return self._scratch().are_surely_within(a, b, self._tolerance)

    def _add_native(self, accumulator: DifferenceAccumulator, a: Array, b: Array, start: int) -> int:
        """The position at which the library stopped: the end, or elements that only numpy can handle."""
        tolerance = self._tolerance
        atol, rtol = tolerance.for_integers() if self._is_exact else (tolerance.atol, tolerance.rtol)
        flags = (tolerance.equal_nan, self._until_mismatch, self._is_exact, self._with_ulps)
        sides = (*native.as_native(a, self._dtypes[0]), *native.as_native(b, self._dtypes[1]))
        report = native.library.differences(*sides, start, a.size, atol, rtol, *flags)
        if report[0] > start:
            self._add_report(accumulator, report)
        return int(report[0])

    def _add_report(self, accumulator: DifferenceAccumulator, report: Any) -> None:
        _, counts, nan, inf, disagreeing, both_nan, sums, bounds, absolute, relative, found_ulps = report
        finite, mismatches, above, below = counts
        accumulator.finite += finite
        accumulator.mismatches += mismatches
        accumulator.above += above
        accumulator.below += below
        accumulator.nan = accumulator.nan[0] + nan[0], accumulator.nan[1] + nan[1]
        accumulator.inf = accumulator.inf[0] + inf[0], accumulator.inf[1] + inf[1]
        accumulator.disagreeing += disagreeing
        accumulator.both_nan += both_nan
        d, abs_d, a_total, b_total, dd, db, aa, bb = sums
        accumulator.bias.add(d)
        accumulator.total.add(abs_d)
        accumulator.product.add(db)
        accumulator.gap.add_squares(dd)
        if finite:
            self._add_side_report(accumulator.a, bounds[:2], a_total, aa)
            self._add_side_report(accumulator.b, bounds[2:], b_total, bb)
        if self._is_exact:
            absolute = (int(absolute[0]), *absolute[1:])
        self._update_maximum(accumulator.absolute, absolute, accumulator.start)
        self._update_maximum(accumulator.relative, relative, accumulator.start)
        if found_ulps is not None:
            accumulator.add_ulps(found_ulps[1], found_ulps[0])

    def _add_side_report(self, side: SideAccumulator, bounds: Any, total: float, squares: float) -> None:
        low, high = map(int, bounds) if self._is_exact else bounds
        side.update_bounds(low, high)
        side.total.add(total)
        side.norm.add_squares(squares)

    def _update_maximum(
        self, peak: RunningMaximum, candidate: tuple[float, int, float, float], start: int
    ) -> None:
        size, at, x, y = candidate
        if size > peak.size:
            peak.size, peak.position = size, start + at
            peak.a, peak.b = (int(x), int(y)) if self._is_exact else (x, y)

    def _add_with_numpy(
        self, accumulator: DifferenceAccumulator, a_bits: Array, b_bits: Array, start: int
    ) -> None:
        before, accumulator.start = accumulator.start, start
        b = decode_block(b_bits, self._dtypes[1])
        if self._is_exact:
            numpy_differences.accumulate_integers(
                accumulator, decode_block(a_bits, self._dtypes[0]), b, self._tolerance
            )
        elif self._are_same_bytes(a_bits, b_bits):
            numpy_differences.accumulate_identical(accumulator, b, self._tolerance, self._scratch())
        else:
            a = decode_block(a_bits, self._dtypes[0])
            numpy_differences.accumulate_floats(accumulator, a, b, self._tolerance, self._scratch())
        if self._with_ulps:
            accumulator.add_ulps(*count_ulp_distances(a_bits, b_bits, self._dtypes[0]))
        accumulator.start = before

    def _are_same_bytes(self, a: Array, b: Array) -> bool:
        """Whether dtype and bytes are equal; most differing blocks differ within the first few."""
        if self._dtypes[0] != self._dtypes[1]:
            return False
        a, b = _as_uint64_words(a), _as_uint64_words(b)
        return bool((a[:_PROBE_SIZE] == b[:_PROBE_SIZE]).all() and (a == b).all())

    def _scratch(self) -> numpy_differences.Scratch:
        """Allocated once."""
        if self._scratch_memory is None:
            self._scratch_memory = numpy_differences.Scratch(
                min(self.block, self._size), is_complex=self._is_complex
            )
        return self._scratch_memory


def _as_uint64_words(bits: Array) -> Array:
    raw = bits.view(np.uint8)
    return raw.view(np.uint64) if raw.size % 8 == 0 else raw


def _has_nan(bits: Array, dtype: str) -> bool:
    values = decode_block(bits, dtype)
    # The minimum is NaN if any element is.
    return bool(np.isnan(values.min()))
