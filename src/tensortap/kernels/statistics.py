"""Statistics of an array in one pass over its bytes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from tensortap.kernels import native
from tensortap.kernels.decode import Array, block_size, decode_block, dtype_info, iterate_blocks
from tensortap.kernels.norms import RunningNorm, norm, scale_down, sum_float64

# Below this share of the squares the variance is mostly rounding, and is computed from the deviations.
_MIN_SPREAD_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of an array. All but the counts are over the finite elements; without any, `min`, `max`,
    `mean` and `std` are None. Complex numbers count by their absolute value, bools as 0 and 1; integers
    keep their exact `min` and `max`."""

    count: int
    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None  # of the population: divided by the count
    norm: float
    nan: int = 0
    inf: int = 0

    @property
    def finite(self) -> int:
        return self.count - self.nan - self.inf

    @property
    def absmax(self) -> int | float | None:
        """The largest absolute value of the finite numbers."""
        return None if self.min is None or self.max is None else max(abs(self.min), abs(self.max))

    def to_dict(self) -> dict[str, Any]:
        """By name, as they are stored and sent."""
        return {name: getattr(self, name) for name in _STORED}

    @classmethod
    def from_stored(cls, stored: Any) -> "Statistics | None":
        """From what `to_dict` gave, or from a list in the order of the fields, as version 0.1 stored them.

        Names that this version does not know are skipped; None for what are not statistics."""
        if isinstance(stored, list):
            stored = dict(zip(_STORED, stored, strict=False))
        if not isinstance(stored, dict) or not stored.keys() >= _REQUIRED:
            return None
        known = {name: stored[name] for name in _STORED if name in stored}
        counts = [known.get(name, 0) for name in _COUNTS]
        if not all(isinstance(number, int) and number >= 0 for number in counts):
            return None
        return cls(**known) if all(isinstance(known[name], _NUMBER) for name in _REQUIRED) else None


_NUMBER = (int, float, type(None))
_STORED = tuple(field.name for field in fields(Statistics))
_COUNTS = ("count", "nan", "inf")
_REQUIRED = frozenset(_STORED) - {"nan", "inf"}


class StatisticField(NamedTuple):
    """A statistic wherever statistics are shown, queried, sorted by or watched for."""

    name: str
    read: Callable[[Statistics], int | float | None]
    what: str  # of a value's numbers, for the guide and completion
    example: str = ""  # as a query; empty for what is not a column
    is_count: bool = False


# One row a statistic: queries, the viewer's columns and the functions of live conditions are made of it.
STATISTIC_FIELDS = (
    StatisticField("nan", attrgetter("nan"), "how many NaN, where that was counted", "nan>0", is_count=True),
    StatisticField("inf", attrgetter("inf"), "how many infinities", "inf>0", is_count=True),
    StatisticField("absmax", attrgetter("absmax"), "the largest absolute value", "absmax>1e3"),
    StatisticField("mean", attrgetter("mean"), "the mean of the finite numbers", "mean<0"),
    StatisticField("std", attrgetter("std"), "their spread", "std>1"),
    StatisticField("min", attrgetter("min"), "the lowest", "min<-10"),
    StatisticField("max", attrgetter("max"), "the highest", "max>10"),
    StatisticField("norm", attrgetter("norm"), "the root of the sum of squares"),
    StatisticField("count", attrgetter("count"), "how many there are", is_count=True),
)
STATISTIC_COLUMNS = tuple(field for field in STATISTIC_FIELDS if field.example)


def statistics(bits: Array, dtype: str, *, block: int | None = None) -> Statistics:
    """Statistics of an array of the storage type of `dtype`; scratch memory does not grow with it."""
    if block is None and native.supports(dtype) and native.accepts(bits):
        report = native.library.statistics(*native.as_native(bits, dtype), 0, bits.size)
        if report[0] == bits.size:
            return _from_native_report(report, dtype)
    size = block or block_size(dtype)
    moments = _RunningMoments(min(size, bits.size))
    with np.errstate(all="ignore"):
        for (part,) in iterate_blocks([bits], size):
            _accumulate_block(moments, part, dtype)
        return moments.finish()


def _from_native_report(report: tuple[Any, ...], dtype: str) -> Statistics:
    """The library's report of a whole array; a fast path, since it runs for every captured value."""
    _, finite, nan, inf, low, high, total, squares, _, spread = report
    if not finite:
        return Statistics(nan + inf, None, None, None, None, 0.0, nan, inf)
    if _is_integer_dtype(dtype):
        low, high = int(low), int(high)
    mean, std, norm = total / finite, math.sqrt(spread / finite), math.sqrt(squares)
    return Statistics(finite + nan + inf, low, high, mean, std, norm, nan, inf)


def _accumulate_block(moments: "_RunningMoments", part: Array, dtype: str) -> None:
    """The library as far as it goes, numpy for the rest."""
    start = 0
    if native.supports(dtype):
        report = native.library.statistics(*native.as_native(part, dtype), 0, part.size)
        moments.add_report(report, is_integer=_is_integer_dtype(dtype))
        start = report[0]
    if start < part.size:
        moments.add(_to_real(decode_block(part[start:], dtype)))


def _is_integer_dtype(dtype: str) -> bool:
    return dtype_info(dtype).family in ("bool", "int")


def _to_real(values: Array) -> Array:
    return np.abs(values.astype(np.complex128)) if values.dtype.kind == "c" else values


class _RunningMoments:
    """Running count, mean and deviations; blocks are merged pairwise, which avoids cancellation."""

    def __init__(self, size: int) -> None:
        self._scratch = np.empty(size)
        self._count = self._finite = self._nan = self._inf = 0
        self._min: int | float | None = None
        self._max: int | float | None = None
        self._total = self._mean = 0.0
        self._spread, self._norm = RunningNorm(), RunningNorm()

    def add(self, values: Array) -> None:
        self._count += values.size
        low, high = values.min().item(), values.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            values = self._without_nonfinite(values)
            if not values.size:
                return
            low, high = values.min().item(), values.max().item()
        self._update_bounds(low, high)
        self._merge(self._to_float64(values))

    def add_report(self, report: tuple[Any, ...], *, is_integer: bool) -> None:
        """Add the library's report up to where it stopped."""
        _, finite, nan, inf, low, high, total, squares, mean, spread = report
        self._count += finite + nan + inf
        self._nan += nan
        self._inf += inf
        if finite:
            self._update_bounds(*((int(low), int(high)) if is_integer else (low, high)))
            self._norm.add_squares(squares)
            self._join(finite, mean, total)
            self._spread.add_squares(spread)

    def _update_bounds(self, low: int | float, high: int | float) -> None:
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)

    def finish(self) -> Statistics:
        norm, count = self._norm.value, self._finite
        if not count:
            return Statistics(self._count, None, None, None, None, norm, self._nan, self._inf)
        mean = self._total / count if math.isfinite(self._total) else self._mean
        std = self._spread.value / math.sqrt(count)
        low, high = _bool_to_int(self._min), _bool_to_int(self._max)
        return Statistics(self._count, low, high, mean, std, norm, self._nan, self._inf)

    def _without_nonfinite(self, values: Array) -> Array:
        nan, finite = np.isnan(values), np.isfinite(values)
        nan_count = int(np.count_nonzero(nan))
        self._nan += nan_count
        self._inf += values.size - nan_count - int(np.count_nonzero(finite))
        return values[finite]

    def _to_float64(self, values: Array) -> Array:
        if values.dtype == np.float64:
            return values
        wide = self._scratch[: values.size]
        np.copyto(wide, values)
        return wide

    def _merge(self, values: Array) -> None:
        count, total, length = values.size, sum_float64(values), norm(values)
        mean = total / count if math.isfinite(total) else _scaled_mean(values)
        self._spread.add(_deviation_norm(values, mean, length))
        self._norm.add(length)
        self._join(count, mean, total)

    def _join(self, count: int, mean: float, total: float) -> None:
        joined = self._finite + count
        self._spread.add(abs(mean - self._mean) * math.sqrt(self._finite * (count / joined)))
        self._mean = self._mean * (self._finite / joined) + mean * (count / joined)
        self._total += total
        self._finite = joined


def _deviation_norm(values: Array, mean: float, length: float) -> float:
    """The norm of the elements minus their mean."""
    share = abs(mean) * math.sqrt(values.size) / length if length else 0.0
    squares = (1.0 - share) * (1.0 + share)
    return length * math.sqrt(squares) if squares > _MIN_SPREAD_SHARE else norm(values - mean)


def _scaled_mean(values: Array) -> float:
    small, exponent = scale_down(values)
    return float(np.ldexp(sum_float64(small) / values.size, exponent))


def _bool_to_int(value: int | float | None) -> int | float | None:
    return int(value) if isinstance(value, bool) else value
