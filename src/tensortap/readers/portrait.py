"""What the numbers of one array are like: statistics, percentiles, a histogram; and which part to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.formats.rows import histogram_of
from tensortap.kernels.blocks import numbers
from tensortap.kernels.statistics import Statistics, statistics

Array = np.ndarray[Any, Any]
Index = tuple[Any, ...]
PERCENTS = (1, 5, 25, 50, 75, 95, 99)
_MOST_SORTED = 1 << 22


@dataclass(frozen=True, slots=True)
class Portrait:
    """`percentiles` of the finite numbers, by percent, taken from every n-th number where `every` is n;
    `histogram` counts them in equal parts from the lowest to the highest."""

    shape: tuple[int, ...]
    dtype: str
    statistics: Statistics
    percentiles: dict[int, float]
    histogram: tuple[int, ...]
    every: int = 1


def portrait(bits: Array, dtype: str, *, bars: int = 12, known: Statistics | None = None) -> Portrait:
    """Look at an array of the storage type of `dtype`; statistics that are known are not computed again."""
    found = known if known is not None else statistics(bits, dtype)
    if found.min is None or found.max is None:
        return Portrait(bits.shape, dtype, found, {}, ())
    parts = _parts(dtype, found, bars)
    every = -(-bits.size // _MOST_SORTED)
    histogram = histogram_of(bits, dtype, found.min, found.max, parts)
    return Portrait(bits.shape, dtype, found, _percentiles(bits, dtype, every), histogram, every)


def default_index(shape: tuple[int, ...]) -> Index:
    """The last two axes, at the start of all others."""
    return (0,) * max(0, len(shape) - 2) + (slice(None),) * min(2, len(shape))


def indexed(bits: Array, index: Index) -> Array:
    """The part that is asked for; a sentence where the array has no such part."""
    try:
        found: Array = np.asarray(bits[index])
    except IndexError:
        raise ValueError(f"[{words_of(index)}] is no part of an array of shape {list(bits.shape)}") from None
    return found


def words_of(index: Index) -> str:
    """`0,3,:,1:5`, as it is typed."""
    return ",".join(map(_word, index))


def _word(part: Any) -> str:
    if not isinstance(part, slice):
        return "..." if part is ... else str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends) + ("" if part.step is None else f":{part.step}")


def _parts(dtype: str, found: Statistics, bars: int) -> int:
    """Whole numbers of a narrow range get a bar each: more would leave gaps that mean nothing."""
    if isinstance(found.min, int) and isinstance(found.max, int):
        return max(1, min(bars, found.max - found.min + 1))
    return 1 if found.min == found.max else bars


def _percentiles(bits: Array, dtype: str, every: int) -> dict[int, float]:
    some = np.ascontiguousarray(bits).reshape(-1)[::every]
    values = numbers(some, dtype)
    real = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)
    finite = real[np.isfinite(real)]
    if not finite.size:
        return {}
    # Halved meanwhile: the way from one number to the next may overflow.
    found = np.percentile(finite / 2, PERCENTS) * 2
    return dict(zip(PERCENTS, found.tolist(), strict=True))
