"""What numbers become when they are rounded to a shorter type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensortap.kernels.decode import Array


def _round_mantissa(bits: int) -> Callable[[Array], Array]:
    """Rounds a float32 to the nearest, with that many bits less; ties go to even."""

    def round_mantissa(numbers: Array) -> Array:
        with np.errstate(over="ignore"):
            words = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
        half = (1 << (bits - 1)) - 1 + ((words >> np.uint64(bits)) & np.uint64(1))
        rounded = ((words + half) >> np.uint64(bits)) << np.uint64(bits)
        return rounded.astype(np.uint32).view(np.float32).astype(np.float64)

    return round_mantissa


def _to_half(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16).astype(np.float64)


def _to_single(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(np.float64)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "float32": _to_single,
    "float16": _to_half,
    "tf32": _round_mantissa(13),
    "bfloat16": _round_mantissa(16),
}
