"""Many small pairs of arrays in one native call: less overhead per pair, and the GIL is released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensortap.kernels import native
from tensortap.kernels.decode import Array, dtype_info

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
    a, b = (size * dtype_info(dtype).itemsize for dtype in (a_dtype, b_dtype))
    native_arguments = native.dtype_code(a_dtype), (*native.dtype_code(b_dtype), *rest)
    return PairLayout(a_dtype, b_dtype, a_shape, size, are_integers, a, b, a + b, *native_arguments)


@lru_cache(maxsize=512)
def are_discrete(a_dtype: str, b_dtype: str) -> bool:
    """Whether both dtypes are integer or bool: decisions, not measurements."""
    return all(dtype_info(dtype).family in ("bool", "int") for dtype in (a_dtype, b_dtype))


def last_axis_length(shape: tuple[int, ...]) -> int:
    """The length of the last axis; 0 if it is the only one, or if either extent is 1."""
    if len(shape) < 2 or shape[-1] < 2 or math.prod(shape[:-1]) < 2:
        return 0
    return shape[-1]
