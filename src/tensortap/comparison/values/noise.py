"""The noise of one value: what it may differ by, and what is usual for its number type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

DEFAULT_LIMIT = 4.0
INTRINSIC_ROUNDING = "own rounding"  # the twin that gets what came into each module from the run itself
# Half the distance between two numbers of the type, next to one.
UNIT_ROUNDOFF = {
    # Longer ones are measured in double precision.
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
SCALE_DTYPES = frozenset(["float8_e8m0fnu"])  # powers of two beside the numbers that they scale
# What a run may differ by when nobody has measured it: grows with the root of the depth.
_TYPICAL_ERROR = {
    2.0**-53: 1e-12,
    2.0**-24: 1e-5,
    2.0**-11: 5e-3,
    2.0**-8: 2e-2,
    2.0**-4: 1.5e-1,
    2.0**-3: 1.5e-1,
    2.0**-1: 5e-1,
}
_WORST_ROW_FACTOR = 4.0  # how much worse the worst row is than all of it
NoiseLevels = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one value. A difference is beyond it from `limit` times these numbers on."""

    relative_l2: float
    row: float
    column: float
    source: str
    limit: float = DEFAULT_LIMIT
    flips: int = 0  # discrete decisions that fell otherwise in a twin
    # Of the whole, the worst row and the worst column, where all that it was made of is identical.
    intrinsic: NoiseLevels | None = None

    @property
    def is_measured(self) -> bool:
        return self.source != "analytic"

    def intrinsic_only(self) -> Noise | None:
        """What its own computation adds, without what came in; None where that was not measured."""
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
    """What values of this precision usually differ by, that many layers deep; nobody has measured it."""
    rounding = UNIT_ROUNDOFF.get(dtype, 2.0**-24)
    typical_error = _TYPICAL_ERROR[rounding] * math.sqrt(max(depth, 1))
    return Noise(
        typical_error,
        _WORST_ROW_FACTOR * typical_error,
        _WORST_ROW_FACTOR * typical_error,
        "analytic",
        limit=1.0,
    )


def max_noise(a: Noise | None, b: Noise) -> Noise:
    """The larger noise of both."""
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
