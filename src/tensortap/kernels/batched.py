"""Many small pairs of arrays in one call: it costs less for each, and other threads run meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensortap.kernels import native
from tensortap.kernels.decode import Array, dtype_info

ArrayPair = tuple[Array, str, Array, str]
PairReport = tuple[Any, ...]  # the numbers of an account


class PairDifferences(NamedTuple):
    """How the numbers of two arrays differ where both are finite, and how many are not: sums, squares,
    bounds, the largest difference; the worst row and column, of the larger side, where there are any.

    Of two arrays of integers there are no rows and columns."""

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
    """What the library is told of a pair beside its bytes: the same for all of such types and shapes."""

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
        """The pair as the library takes it: anything whose bytes lie in one piece."""
        return (a, *self.a_arguments, b, *self.b_arguments)


def compare_pairs(pairs: Sequence[ArrayPair]) -> list[PairDifferences | None]:
    """An account for each pair; None where it has to be compared by itself: it is too long, lies apart in
    memory, or has numbers that need more care."""
    differences: list[PairDifferences | None] = [None] * len(pairs)
    jobs, chosen = [], []
    for place, (a, a_dtype, b, b_dtype) in enumerate(pairs if native.library is not None else ()):
        known = pair_layout(a_dtype, a.shape, b_dtype, b.shape)
        if known is not None and native.accepts(a, b):
            jobs.append(known.job(a, b))
            chosen.append(place)
    for place, report in zip(chosen, compare_jobs(jobs), strict=True):
        differences[place] = None if report is None else PairDifferences._make(report)
    return differences


def compare_jobs(jobs: list[tuple[object, ...]]) -> list[PairReport | None]:
    """The numbers of an account for each job, in one call; None as there."""
    reports: list[PairReport | None] = native.library.measured(jobs) if jobs else []
    return reports


@lru_cache(maxsize=4096)
def pair_layout(
    a_dtype: str, a_shape: tuple[int, ...], b_dtype: str, b_shape: tuple[int, ...]
) -> PairLayout | None:
    """The terms of pairs of these types and shapes; None where the library does not take them."""
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
    """Whether both are integers or bools: decisions, not measurements."""
    return all(dtype_info(dtype).family in ("bool", "int") for dtype in (a_dtype, b_dtype))


def last_axis_length(shape: tuple[int, ...]) -> int:
    """How long the last axis is; 0 where there is no other, or it is of one number."""
    if len(shape) < 2 or shape[-1] < 2 or math.prod(shape[:-1]) < 2:
        return 0
    return shape[-1]
