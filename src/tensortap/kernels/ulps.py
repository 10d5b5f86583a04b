"""How many numbers of their type two floats are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensortap.kernels.numbers import Array, decode, dtype_info

# Distances below 16 have a bin of their own, then come eight for each power of two.
BINS = 512
_EXACT_BINS = 16
_UNSIGNED_DTYPES = ("float8_e8m0fnu",)


@dataclass(frozen=True, slots=True)
class UlpDistances:
    """How far the finite numbers of two arrays are apart, counted in numbers of their type that lie between
    them: 0 where they are the same, zeros of either sign among them, and 1 where they are neighbours."""

    counts: tuple[int, ...]
    max: int

    def quantile(self, share: float) -> int:
        """A distance that this share of the numbers does not exceed: exact below 16, then to an eighth."""
        wanted, seen = share * sum(self.counts), 0
        for position, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(bin_upper_bound(position), self.max)
        return self.max


def bin_upper_bound(position: int) -> int:
    """The largest distance that falls into a bin."""
    if position < _EXACT_BINS:
        return position
    power, eighth = position // 8 + 2, position % 8
    return int(((9 + eighth) << (power - 3)) - 1)


def has_ulp_distance(a_dtype: str, b_dtype: str) -> bool:
    return a_dtype == b_dtype and dtype_info(a_dtype).family == "float"


def count_ulp_distances(a: Array, b: Array, dtype: str) -> tuple[list[int], int]:
    """The number of pairs in each bin and the largest distance; pairs that are not finite do not count."""
    finite = np.isfinite(decode(a, dtype)) & np.isfinite(decode(b, dtype))
    gap = ulp_distances(a[finite], b[finite], dtype)
    most = int(gap.max()) if gap.size else 0
    counts: list[int] = np.bincount(_bin_indices(gap, dtype), minlength=BINS).tolist()
    return counts, most


def ulp_distances(a: Array, b: Array, dtype: str) -> Array:
    """Element by element; what is said of numbers that are not finite means nothing."""
    a_keys, b_keys = _ordered_integers(a, dtype), _ordered_integers(b, dtype)
    return np.where(a_keys > b_keys, a_keys - b_keys, b_keys - a_keys).view(np.uint64)


def _ordered_integers(bits: Array, dtype: str) -> Array:
    """An integer for each number, in the order of the numbers."""
    width = dtype_info(dtype).itemsize
    codes = bits.view(f"<u{width}").astype(np.uint64)
    if dtype in _UNSIGNED_DTYPES:
        return codes.view(np.int64)
    sign = np.uint64(1 << (8 * width - 1))
    sizes = (codes & (sign - np.uint64(1))).view(np.int64)
    return np.where(codes & sign, -sizes, sizes)


def _bin_indices(gap: Array, dtype: str) -> Array:
    # As the compiled twin: what is beyond the signed integers of the type's width counts as their largest.
    gap = np.minimum(gap, np.uint64(2**63 - 1 if dtype == "float64" else 2**31 - 1))
    rough = gap & ~(gap >> np.uint64(4))  # then rounding to float32 cannot carry into the first four bits
    codes = (rough.astype(np.float32).view(np.uint32) >> 20).astype(np.int64)
    return np.where(gap < _EXACT_BINS, gap.astype(np.int64), codes - 1032)
