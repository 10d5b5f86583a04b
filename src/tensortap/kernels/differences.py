"""How two arrays of one shape differ, and whether they are close enough, in one pass over both."""

from tensortap.kernels import native
from tensortap.kernels.blocks import iterate_blocks
from tensortap.kernels.numbers import Array
from tensortap.kernels.pairs import BlockComparison
from tensortap.kernels.tally import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    ArrayDifference,
    DifferenceAccumulator,
    Tolerance,
)


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
    """The full account of two arrays of storage types, compared by `|a - b| <= atol + rtol * |b|`.

    Integers and bools are compared exactly with each other, and with a tolerance only where it differs from
    the default; everything else in float64. Equal infinities are equal. Large arrays take all processors, or
    as many as `threads` says, where the compiled kernels are there."""
    pair = BlockComparison(a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block, with_ulps=ulps)
    _check_threads(threads)
    if pair.is_native and native.accepts(a, b):
        return _accumulate_chunks(pair, a, b, block or native.CHUNK_SIZE, threads).finish(a.shape)
    tally = DifferenceAccumulator()
    for a_part, b_part in iterate_blocks([a, b], pair.block):
        pair.add(tally, a_part, b_part)
        tally.start += a_part.size
    return tally.finish(a.shape)


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
    """Whether `differences` would find no mismatch; stops at the first block that has one."""
    pair = BlockComparison(
        a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block, until_mismatch=True
    )
    size = native.CHUNK_SIZE if pair.is_native and block is None and native.accepts(a, b) else pair.block
    tally = DifferenceAccumulator()
    for a_part, b_part in iterate_blocks([a, b], size):
        if not pair.are_surely_within(a_part, b_part):
            pair.add(tally, a_part, b_part)
        if tally.mismatches:
            return False
    return True


def _accumulate_chunks(
    pair: BlockComparison, a: Array, b: Array, size: int, threads: int | None
) -> DifferenceAccumulator:
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    if a.size <= size:
        tally = DifferenceAccumulator()
        pair.add(tally, flat_a, flat_b)
        return tally

    def account(start: int) -> DifferenceAccumulator:
        part = DifferenceAccumulator(start=start)
        pair.add(part, flat_a[start : start + size], flat_b[start : start + size])
        return part

    tally = DifferenceAccumulator()
    for part in native.map_chunks(account, range(0, a.size, size), native.choose_threads(threads, a, b)):
        tally.join(part)
    return tally


def _check_threads(asked: int | None) -> None:
    if asked is not None and asked < 1:
        raise ValueError(f"threads must be at least 1, not {asked!r}")
