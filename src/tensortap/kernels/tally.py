"""A running account of how two arrays differ, and what it comes to."""

import math
from dataclasses import dataclass, field

import numpy as np

from tensortap.kernels.norms import Norm
from tensortap.kernels.numbers import Array

DEFAULT_ATOL = 1e-8
DEFAULT_RTOL = 1e-5

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What counts as equal: `|a - b| <= atol + rtol * |b|`, and NaN with NaN only when said so."""

    atol: float = DEFAULT_ATOL
    rtol: float = DEFAULT_RTOL
    equal_nan: bool = False

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not value >= 0:
                raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
        if math.isinf(self.rtol):
            raise ValueError("rtol must be finite; atol=inf takes all finite numbers as equal")

    def for_integers(self) -> tuple[float, float]:
        """Integers are exact unless the caller asks for a tolerance: the defaults do not count."""
        atol = 0.0 if self.atol == DEFAULT_ATOL else self.atol
        rtol = 0.0 if self.rtol == DEFAULT_RTOL else self.rtol
        return atol, rtol


@dataclass(frozen=True, slots=True)
class Extreme:
    """Where two arrays differ most: by how much, at which index, and both numbers there."""

    size: int | float
    index: tuple[int, ...]
    a: Number
    b: Number


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """How two arrays of one shape differ.

    `mismatches` counts every position beyond the tolerance. The sizes speak of positions where both sides
    are finite; `absolute` and `relative` are None when no such pair differs. `nan` and `inf` count each side,
    `disagreeing` the positions where a NaN or an infinity of one side is not matched on the other, and
    `both_nan` those where both are NaN."""

    count: int
    mismatches: int
    absolute: Extreme | None
    relative: Extreme | None
    mean: float
    relative_l2: float
    nan: tuple[int, int]
    inf: tuple[int, int]
    disagreeing: int
    both_nan: int


@dataclass(slots=True)
class _Peak:
    size: int | float = 0
    position: int = 0
    a: Number = 0
    b: Number = 0

    def extreme(self, shape: tuple[int, ...]) -> Extreme | None:
        if not self.size:
            return None
        index = tuple(int(i) for i in np.unravel_index(self.position, shape))
        return Extreme(self.size, index, self.a, self.b)


@dataclass(slots=True)
class Tally:
    """What has been seen so far; `start` is the flat position of the block at hand."""

    start: int = 0
    mismatches: int = 0
    finite: int = 0
    total: float = 0.0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0
    both_nan: int = 0
    absolute: _Peak = field(default_factory=_Peak)
    relative: _Peak = field(default_factory=_Peak)
    gap: Norm = field(default_factory=Norm)
    base: Norm = field(default_factory=Norm)

    def finish(self, shape: tuple[int, ...]) -> ArrayDifference:
        return ArrayDifference(
            count=math.prod(shape),
            mismatches=self.mismatches,
            absolute=self.absolute.extreme(shape),
            relative=self.relative.extreme(shape),
            mean=self.total / self.finite if self.finite else 0.0,
            relative_l2=_ratio(self.gap.value, self.base.value),
            nan=self.nan,
            inf=self.inf,
            disagreeing=self.disagreeing,
            both_nan=self.both_nan,
        )


def raise_peak(peak: _Peak, size: int | float, position: int, a: Array, b: Array, at: int) -> None:
    """Keep the larger; of equals the first, which is the one already there."""
    if size > peak.size:
        peak.size, peak.position = size, position
        peak.a, peak.b = a[at].item(), b[at].item()


def _ratio(gap: float, base: float) -> float:
    if not gap:
        return 0.0
    return gap / base if base else math.inf
