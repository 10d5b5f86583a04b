"""Masks among numbers: what stands for minus infinity, and where only one side has it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tensortap.comparison.operands import Operand
from tensortap.kernels.decode import Array, block_size, decode_block, dtype_info, iterate_blocks

# Numbers beyond this share of what a type can hold stand for minus infinity in a mask; half precision is so
# narrow that real values come near.
_MASK_SHARE, _MASK_SHARE_HALF = 0.49, 0.9


@lru_cache(maxsize=64)
def mask_threshold(dtype: str) -> float:
    """What stands for minus infinity in this type."""
    if dtype == "bfloat16":
        return -_MASK_SHARE * 3.3895313892515355e38
    dtype_facts = dtype_info(dtype)
    if not dtype_facts.native or dtype_facts.family != "float":
        return -math.inf
    return -(_MASK_SHARE_HALF if dtype == "float16" else _MASK_SHARE) * float(
        np.finfo(dtype_facts.storage).max
    )


def mask_values_to_inf(side: Operand) -> Operand:
    """The lowest number of the type as minus infinity: both are how masks are written."""
    least = mask_threshold(side.dtype)
    if least == -math.inf or not any(_has_finite_mask_values(part, least) for part in _number_blocks(side)):
        return side
    wide = np.array(decode_block(side.bits, side.dtype), copy=True)
    wide[wide <= least] = -np.inf
    return Operand(wide, str(wide.dtype))


def _number_blocks(side: Operand) -> Iterator[Array]:
    return (decode_block(part, side.dtype) for (part,) in iterate_blocks([side.bits], block_size(side.dtype)))


def _has_finite_mask_values(part: Array, least: float) -> bool:
    """Whether a number, and no infinity, stands for one."""
    return bool(((part <= least) & (part > -math.inf)).any())


def bool_mask_to_additive(side: Operand, additive: Operand) -> Operand:
    """Truth values beside a mask of numbers, zero and minus infinity alone: what is seen is zero there."""
    if side.dtype != "bool" or additive.dtype == "bool" or not np.isin(additive.bits, (0, -np.inf)).all():
        return side
    return Operand(np.where(side.bits, 0.0, -np.inf), "float64")


def count_one_sided_masked(a: Operand, b: Operand) -> int:
    """How many positions are minus infinity on one side and a number on the other."""
    return sum(
        int(np.count_nonzero((np.isneginf(x) & np.isfinite(y)) | (np.isneginf(y) & np.isfinite(x))))
        for x, y in _real_block_pairs(a, b)
    )


def _real_block_pairs(a: Operand, b: Operand) -> Iterator[tuple[Array, Array]]:
    if "complex" in (dtype_info(a.dtype).family, dtype_info(b.dtype).family):
        return
    for x, y in iterate_blocks([a.bits, b.bits], block_size(a.dtype, b.dtype)):
        yield decode_block(x, a.dtype), decode_block(y, b.dtype)
