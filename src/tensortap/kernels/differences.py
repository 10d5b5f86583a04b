"""How two arrays of one shape differ, and whether they are close enough, in one pass over both."""

import numpy as np

from tensortap.kernels import exact, inexact
from tensortap.kernels.blocks import block_size, blocks, numbers
from tensortap.kernels.numbers import Array, number_type
from tensortap.kernels.tally import DEFAULT_ATOL, DEFAULT_RTOL, ArrayDifference, Extreme, Tally, Tolerance

__all__ = [
    "DEFAULT_ATOL",
    "DEFAULT_RTOL",
    "ArrayDifference",
    "Extreme",
    "differences",
    "within",
]

_PROBE = 64


def differences(
    a: Array,
    a_dtype: str,
    b: Array,
    b_dtype: str,
    *,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    equal_nan: bool = False,
    block: int | None = None,
) -> ArrayDifference:
    """The full account of two arrays of storage types, compared by `|a - b| <= atol + rtol * |b|`.

    Integers and bools are compared exactly with each other, and with a tolerance only where it differs from
    the default; everything else in float64. Equal infinities are equal."""
    pair = _Pair(a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block)
    tally = Tally()
    with np.errstate(all="ignore"):
        for a_part, b_part in blocks([a, b], pair.block):
            pair.add(tally, a_part, b_part)
            tally.start += a_part.size
    return tally.finish(a.shape)


def within(
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
    pair = _Pair(a, a_dtype, b, b_dtype, Tolerance(atol, rtol, equal_nan), block)
    tally = Tally()
    with np.errstate(all="ignore"):
        for a_part, b_part in blocks([a, b], pair.block):
            if not pair.are_surely_within(a_part, b_part):
                pair.add(tally, a_part, b_part)
            if tally.mismatches:
                return False
    return True


class _Pair:
    """What two arrays have in common: how their blocks are compared."""

    def __init__(
        self, a: Array, a_dtype: str, b: Array, b_dtype: str, tolerance: Tolerance, block: int | None
    ) -> None:
        if a.shape != b.shape:
            raise ValueError(f"shapes differ: {a.shape} against {b.shape}")
        families = {number_type(a_dtype).family, number_type(b_dtype).family}
        self._dtypes = a_dtype, b_dtype
        self._tolerance = tolerance
        self._is_exact = families <= {"bool", "int"}
        # Two arrays and their difference share the scratch; integers that differ need more room each.
        self.block = block or block_size(a_dtype, b_dtype) * (2 if self._is_exact else 3) // 8
        room = 0 if self._is_exact else min(self.block, a.size)
        self._scratch = inexact.Scratch(room, is_complex="complex" in families)

    def add(self, tally: Tally, a_bits: Array, b_bits: Array) -> None:
        b = numbers(b_bits, self._dtypes[1])
        if self._is_exact:
            exact.add(tally, numbers(a_bits, self._dtypes[0]), b, self._tolerance)
        elif self._are_same_bytes(a_bits, b_bits):
            inexact.add_same(tally, b, self._tolerance, self._scratch)
        else:
            a = numbers(a_bits, self._dtypes[0])
            inexact.add(tally, a, b, self._tolerance, self._scratch)

    def are_surely_within(self, a_bits: Array, b_bits: Array) -> bool:
        """A cheap proof that a block holds no mismatch; False says nothing."""
        if self._are_same_bytes(a_bits, b_bits):
            return self._is_exact or self._tolerance.equal_nan or not _has_nan(b_bits, self._dtypes[1])
        if self._is_exact:
            return False
        a, b = numbers(a_bits, self._dtypes[0]), numbers(b_bits, self._dtypes[1])
        return self._scratch.are_surely_within(a, b, self._tolerance)

    def _are_same_bytes(self, a: Array, b: Array) -> bool:
        """Whether type and bits are the same; most blocks that differ already do among the first few."""
        if self._dtypes[0] != self._dtypes[1]:
            return False
        a, b = _words(a), _words(b)
        return bool((a[:_PROBE] == b[:_PROBE]).all() and (a == b).all())


def _words(bits: Array) -> Array:
    raw = bits.view(np.uint8)
    return raw.view(np.uint64) if raw.size % 8 == 0 else raw


def _has_nan(bits: Array, dtype: str) -> bool:
    values = numbers(bits, dtype)
    # The minimum is NaN as soon as one number is.
    return bool(np.isnan(values.min()))
