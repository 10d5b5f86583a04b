"""The noise of one value: by how much it may differ, measured or typical for its dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

DEFAULT_LIMIT = 4.0
INTRINSIC_ROUNDING = "own rounding"  # the rerun in which every module gets the base run's values
# Half the spacing of numbers next to 1.
UNIT_ROUNDOFF = {
    # Extended precision is measured in double precision.
    "float128": 2.0**-53,
    "complex256": 2.0**-53,
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "complex32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "float8_e8m0fnu": 2.0**-1,
}
SCALE_DTYPES = frozenset(["float8_e8m0fnu"])  # block scales, stored beside the numbers
# Typical relative L2 error per unit roundoff, if not measured; grows with the square root of the depth.
_TYPICAL_ERROR = {
    2.0**-53: 1e-12,
    2.0**-24: 1e-5,
    2.0**-11: 5e-3,
    2.0**-8: 2e-2,
    2.0**-4: 1.5e-1,
    2.0**-3: 1.5e-1,
    2.0**-1: 5e-1,
}
_WORST_ROW_FACTOR = 4.0  # error of the worst row, relative to that of the array
NoiseLevels = tuple[float, float, float]  # relative L2 of the array, its worst row, its worst column


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one value; a difference is significant above `limit` times these levels."""

    relative_l2: float
    row: float
    column: float
    source: str
    limit: float = DEFAULT_LIMIT
    flips: int = 0  # discrete values that differ in a rerun
    intrinsic: NoiseLevels | None = None  # with identical inputs

    @property
    def is_measured(self) -> bool:
        return self.source != "analytic"

    def intrinsic_only(self) -> Noise | None:
        """The noise of the value's own computation, without that of its inputs; None if not measured."""
        if self.intrinsic is None:
            return None
        return replace(
            self,
            relative_l2=self.intrinsic[0],
            row=self.intrinsic[1],
            column=self.intrinsic[2],
            source=INTRINSIC_ROUNDING,
        )


@lru_cache(maxsize=4096)
def analytic_noise(dtype: str, depth: int = 1) -> Noise:
    """The typical (not measured) noise of a dtype after `depth` layers."""
    roundoff = UNIT_ROUNDOFF.get(dtype, 2.0**-24)
    typical_error = _TYPICAL_ERROR[roundoff] * math.sqrt(max(depth, 1))
    return Noise(
        typical_error,
        _WORST_ROW_FACTOR * typical_error,
        _WORST_ROW_FACTOR * typical_error,
        "analytic",
        limit=1.0,
    )


def max_noise(a: Noise | None, b: Noise) -> Noise:
    """The elementwise maximum of two noises."""
    if a is None:
        return b
    source = a.source if a.relative_l2 >= b.relative_l2 else b.source
    return Noise(
        max(a.relative_l2, b.relative_l2),
        max(a.row, b.row),
        max(a.column, b.column),
        source,
        max(a.limit, b.limit),
        max(a.flips, b.flips),
        a.intrinsic
        if b.intrinsic is None
        else b.intrinsic
        if a.intrinsic is None
        else map_levels(max, a.intrinsic, b.intrinsic),
    )


def map_levels(function: Callable[[float, float], float], a: NoiseLevels, b: NoiseLevels) -> NoiseLevels:
    return function(a[0], b[0]), function(a[1], b[1]), function(a[2], b[2])
