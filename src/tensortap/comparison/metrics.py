"""How far two values are apart, in numbers that do not depend on who is called A and who B."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.comparison.operands import Operand, are_equal, is_number, operand, shape_of_numbers
from tensortap.comparison.structure import Pair, pairs
from tensortap.kernels.along import worst_along
from tensortap.kernels.blocks import block_size, blocks, numbers
from tensortap.kernels.differences import ArrayDifference, Extreme, differences
from tensortap.kernels.numbers import Array, number_type

# Numbers beyond this share of what a type can hold stand for minus infinity in a mask; half precision is so
# narrow that real values come near.
_MASKED, _MASKED_HALF = 0.49, 0.9
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


@dataclass(frozen=True, slots=True)
class Metrics:
    """How two values differ. Everything relative speaks of the larger side, so it is the same seen from
    either. `row` and `column` are the worst along the last axis and across it, with their positions.

    `reason` says why nothing was measured: another shape, another structure. `is_opaque` means that the
    values are neither numbers nor text, so that a difference between them says nothing."""

    count: int = 0
    is_identical: bool = False
    is_discrete: bool = False
    relative_l2: float = 0.0
    row: float = 0.0
    column: float = 0.0
    worst_row: int = -1
    worst_column: int = -1
    absolute: Extreme | None = None
    cosine_distance: float | None = None
    gain: float | None = None
    bias: float = 0.0
    mismatches: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0  # not finite on one side, something else on the other
    masked: int = 0  # of those: minus infinity on one side, a number on the other
    norms: tuple[float, float] = (0.0, 0.0)
    part: str = ""  # of a nested value: the leaf that differs most
    reason: str = ""
    is_opaque: bool = False

    @property
    def is_nonfinite(self) -> bool:
        """Whether a NaN or an infinity that nobody meant stands against something else."""
        return self.disagreeing > self.masked


def measure(a: Any, b: Any, *, threads: int | None = None) -> Metrics:
    """How two values differ; of nested ones the leaf that differs most."""
    if shape_of_numbers(a) is not None and shape_of_numbers(b) is not None:
        return _of_leaf(Pair("", a, b), threads)
    found = [(pair, _of_leaf(pair, threads)) for pair in pairs(a, b, _is_leaf)]
    if not found:
        return Metrics(is_identical=True, is_discrete=True)
    pair, worst = max(found, key=lambda one: _badness(one[1]))
    is_same = all(one.is_identical for _, one in found)
    count = sum(one.count for _, one in found)
    return replace(worst, count=count, is_identical=is_same, part=pair.path)


def measure_operands(a: Operand, b: Operand, *, threads: int | None = None) -> Metrics:
    """How the numbers of two arrays differ."""
    if a.bits.shape != b.bits.shape:
        return Metrics(
            reason=f"shapes differ: {list(a.bits.shape)} against {list(b.bits.shape)}", count=a.bits.size
        )
    found = differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    if _is_discrete(a.dtype) and _is_discrete(b.dtype):
        return _of_discrete(found)
    if _has_mask(found, a, b):
        a, b = _without_mask(a), _without_mask(b)
        found = differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    return _of_numbers(found, a, b)


def _of_leaf(pair: Pair, threads: int | None) -> Metrics:
    if pair.reason is not None:
        return Metrics(reason=pair.reason)
    a_shape, b_shape = shape_of_numbers(pair.a), shape_of_numbers(pair.b)
    if a_shape is not None and b_shape is not None:
        if a_shape != b_shape:
            return Metrics(reason=f"shapes differ: {list(a_shape)} against {list(b_shape)}")
        a, b = operand(pair.a), operand(pair.b)
        if a is not None and b is not None:
            return measure_operands(a, b, threads=threads)
    return _of_others(pair)


def _of_others(pair: Pair) -> Metrics:
    """What only knows ==: text counts as a decision, an object that is not equal says nothing."""
    is_same, told = are_equal(pair.a, pair.b)
    if is_same:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    if isinstance(pair.a, _PLAIN) and isinstance(pair.b, _PLAIN):
        return Metrics(count=1, is_discrete=True, mismatches=1, reason="" if _are_text(pair) else told)
    return Metrics(count=1, is_opaque=True, reason=told)


def _are_text(pair: Pair) -> bool:
    return isinstance(pair.a, (str, bytes)) and type(pair.a) is type(pair.b)


def _is_leaf(a: Any, b: Any) -> bool:
    return is_number(a) and is_number(b)


def _badness(found: Metrics) -> tuple[bool, bool, bool, float]:
    is_apart = bool(found.reason) and not found.is_opaque
    return is_apart, found.is_nonfinite, found.mismatches > 0, max(found.relative_l2, found.row)


def _of_discrete(found: ArrayDifference) -> Metrics:
    apart = found.above + found.below
    return Metrics(
        count=found.count,
        is_identical=apart == 0,
        is_discrete=True,
        mismatches=apart,
        absolute=found.absolute,
        norms=(found.a.norm, found.b.norm),
    )


def _of_numbers(found: ArrayDifference, a: Operand, b: Operand) -> Metrics:
    is_same = found.absolute is None and not found.disagreeing
    rows, columns = ((0.0, -1), (0.0, -1)) if found.absolute is None else _along(found, a, b)
    return Metrics(
        count=found.count,
        is_identical=is_same,
        relative_l2=_relative(found),
        row=rows[0],
        column=columns[0],
        worst_row=rows[1],
        worst_column=columns[1],
        absolute=found.absolute,
        cosine_distance=found.cosine_distance,
        gain=found.gain,
        bias=found.bias,
        nan=found.nan,
        inf=found.inf,
        disagreeing=found.disagreeing,
        masked=_masked(a, b) if found.disagreeing else 0,
        norms=(found.a.norm, found.b.norm),
    )


def _relative(found: ArrayDifference) -> float:
    """|a - b| of the larger side."""
    a, b = found.a.norm, found.b.norm
    if found.absolute is None:
        return 0.0
    return 1.0 if not b else found.relative_l2 * min(1.0, b / a if a else 1.0)


def _along(found: ArrayDifference, a: Operand, b: Operand) -> tuple[tuple[float, int], tuple[float, int]]:
    """The worst row and the worst column, of the larger side."""
    if a.bits.ndim < 2 or a.bits.shape[-1] < 2 or a.bits.size == a.bits.shape[-1]:
        return (0.0, -1), (0.0, -1)
    smaller, larger = (b, a) if found.a.norm > found.b.norm else (a, b)
    x, y = (one.bits.reshape(-1, one.bits.shape[-1]) for one in (smaller, larger))
    dtypes = smaller.dtype, larger.dtype
    return worst_along(x, dtypes[0], y, dtypes[1], 0), worst_along(x, dtypes[0], y, dtypes[1], 1)


def _is_discrete(dtype: str) -> bool:
    return number_type(dtype).family in ("bool", "int")


def _has_mask(found: ArrayDifference, a: Operand, b: Operand) -> bool:
    return bool(found.disagreeing) or _reaches(found.a.min, a) or _reaches(found.b.min, b)


def _reaches(low: int | float | None, side: Operand) -> bool:
    return low is not None and low <= _lowest(side.dtype)


@lru_cache(maxsize=64)
def _lowest(dtype: str) -> float:
    """What stands for minus infinity in this type."""
    if dtype == "bfloat16":
        return -_MASKED * 3.3895313892515355e38
    known = number_type(dtype)
    if not known.native or known.family != "float":
        return -math.inf
    return -(_MASKED_HALF if dtype == "float16" else _MASKED) * float(np.finfo(known.storage).max)


def _without_mask(side: Operand) -> Operand:
    """The lowest number of the type as minus infinity: both are how masks are written."""
    lowest = _lowest(side.dtype)
    if lowest == -math.inf:
        return side
    wide = np.array(numbers(side.bits, side.dtype), copy=True)
    wide[wide <= lowest] = -np.inf
    return Operand(wide, str(wide.dtype))


def _masked(a: Operand, b: Operand) -> int:
    """How many positions are minus infinity on one side and a number on the other."""
    return sum(
        int(np.count_nonzero((np.isneginf(x) & np.isfinite(y)) | (np.isneginf(y) & np.isfinite(x))))
        for x, y in _real_blocks(a, b)
    )


def _real_blocks(a: Operand, b: Operand) -> Iterator[tuple[Array, Array]]:
    if "complex" in (number_type(a.dtype).family, number_type(b.dtype).family):
        return
    for x, y in blocks([a.bits, b.bits], block_size(a.dtype, b.dtype)):
        yield numbers(x, a.dtype), numbers(y, b.dtype)
