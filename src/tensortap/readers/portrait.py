"""The summary of one array: statistics, percentiles, a histogram; and which part of it to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.formats.rows import compute_histogram
from tensortap.kernels.decode import decode_block
from tensortap.kernels.statistics import Statistics, statistics

Array = np.ndarray[Any, Any]
Index = tuple[Any, ...]
PERCENTS = (1, 5, 25, 50, 75, 95, 99)
_MAX_SORTED = 1 << 22


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """`percentiles` of the finite elements by percent, from a sample with that `stride`; `histogram` counts
    them in equal bins from the minimum to the maximum."""

    shape: tuple[int, ...]
    dtype: str
    statistics: Statistics
    percentiles: dict[int, float]
    histogram: tuple[int, ...]
    stride: int = 1


def summarize_array(
    bits: Array, dtype: str, *, bins: int = 12, known: Statistics | None = None
) -> ArraySummary:
    """Summarize an array in the storage type of `dtype`; `known` statistics are not computed again."""
    stats = known if known is not None else statistics(bits, dtype)
    if stats.min is None or stats.max is None:
        return ArraySummary(bits.shape, dtype, stats, {}, ())
    bin_count = _bin_count(dtype, stats, bins)
    stride = -(-bits.size // _MAX_SORTED)
    histogram = compute_histogram(bits, dtype, stats.min, stats.max, bin_count)
    return ArraySummary(bits.shape, dtype, stats, _percentiles(bits, dtype, stride), histogram, stride)


def default_index(shape: tuple[int, ...]) -> Index:
    """The last two axes at index 0 of all others."""
    return (0,) * max(0, len(shape) - 2) + (slice(None),) * min(2, len(shape))


def index_array(bits: Array, index: Index) -> Array:
    """`bits[index]`; raises a ValueError that names the shape if out of range."""
    try:
        selected: Array = np.asarray(bits[index])
    except IndexError:
        raise ValueError(
            f"[{format_index(index)}] is no part of an array of shape {list(bits.shape)}"
        ) from None
    return selected


def format_index(index: Index) -> str:
    """The index as it is typed: `0,3,:,1:5`."""
    return ",".join(map(_format_index_part, index))


def _format_index_part(part: Any) -> str:
    if not isinstance(part, slice):
        return "..." if part is ... else str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends) + ("" if part.step is None else f":{part.step}")


def _bin_count(dtype: str, stats: Statistics, bins: int) -> int:
    """Integers of a narrow range get a bin each: more bins would leave meaningless gaps."""
    if isinstance(stats.min, int) and isinstance(stats.max, int):
        return max(1, min(bins, stats.max - stats.min + 1))
    return 1 if stats.min == stats.max else bins


def _percentiles(bits: Array, dtype: str, stride: int) -> dict[int, float]:
    sample = np.ascontiguousarray(bits).reshape(-1)[::stride]
    values = decode_block(sample, dtype)
    real = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)
    finite = real[np.isfinite(real)]
    if not finite.size:
        return {}
    # Halved meanwhile: the interpolation between two numbers may overflow.
    percentiles = np.percentile(finite / 2, PERCENTS) * 2
    return dict(zip(PERCENTS, percentiles.tolist(), strict=True))
