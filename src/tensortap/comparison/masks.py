"""Masks among numbers: what stands for minus infinity, and where only one side has it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tensortap.comparison.operands import Operand
from tensortap.kernels.blocks import block_size, blocks, numbers
from tensortap.kernels.numbers import Array, number_type

# Numbers beyond this share of what a type can hold stand for minus infinity in a mask; half precision is so
# narrow that real values come near.
_MASKED, _MASKED_HALF = 0.49, 0.9


@lru_cache(maxsize=64)
def lowest(dtype: str) -> float:
    """What stands for minus infinity in this type."""
    if dtype == "bfloat16":
        return -_MASKED * 3.3895313892515355e38
    known = number_type(dtype)
    if not known.native or known.family != "float":
        return -math.inf
    return -(_MASKED_HALF if dtype == "float16" else _MASKED) * float(np.finfo(known.storage).max)


def without_mask(side: Operand) -> Operand:
    """The lowest number of the type as minus infinity: both are how masks are written."""
    least = lowest(side.dtype)
    if least == -math.inf or not any(_has_lowest(part, least) for part in _parts(side)):
        return side
    wide = np.array(numbers(side.bits, side.dtype), copy=True)
    wide[wide <= least] = -np.inf
    return Operand(wide, str(wide.dtype))


def _parts(side: Operand) -> Iterator[Array]:
    return (numbers(part, side.dtype) for (part,) in blocks([side.bits], block_size(side.dtype)))


def _has_lowest(part: Array, least: float) -> bool:
    """Whether a number, and no infinity, stands for one."""
    return bool(((part <= least) & (part > -math.inf)).any())


def as_mask(side: Operand, other: Operand) -> Operand:
    """Truth values beside a mask of numbers, zero and minus infinity alone: what is seen is zero there."""
    if side.dtype != "bool" or other.dtype == "bool" or not np.isin(other.bits, (0, -np.inf)).all():
        return side
    return Operand(np.where(side.bits, 0.0, -np.inf), "float64")


def masked(a: Operand, b: Operand) -> int:
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
