"""Histograms: bins on a linear or logarithmic scale, how many values lie in each, and their bars as text."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tensortap.kernels.decode import Array, block_size, decode_block, iterate_blocks

Number = int | float
Scale = Literal["linear", "log", "symlog"]
SCALES: tuple[Scale, ...] = get_args(Scale)
_MAX_DYNAMIC_RANGE = 1e12  # of symlog; what is smaller than the largest by more counts as zero
_LARGEST = sys.float_info.max
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of equal width on their scale: `log` bins absolute values; `symlog` has `count` bins per sign, and
    one for zero between them."""

    low: Number
    high: Number
    count: int
    scale: Scale = "linear"

    def edges(self) -> Array:
        """Where the bins meet; a single value lies in the middle of bins of some width."""
        if self.scale == "linear":
            return _linear_edges(float(self.low), float(self.high), self.count)
        edges = _log_edges(float(self.low), float(self.high), self.count)
        return np.concatenate([-edges[::-1], edges]) if self.scale == "symlog" else edges

    def starts(self) -> list[Number]:
        """Where each bin begins; a bin for each integer begins at it."""
        if isinstance(self.low, int) and self.high - self.low + 1 == self.count:
            return [self.low + at for at in range(self.count)]
        starts: list[Number] = self.edges()[:-1].tolist()
        return starts

    def count_values(self, blocks: Iterable[Array]) -> Array:
        """How many finite values of real arrays lie in each bin; those outside count in the outermost."""
        counts = np.zeros(2 * self.count + 1 if self.scale == "symlog" else self.count, np.int64)
        with np.errstate(all="ignore"):
            for block in blocks:
                positions = self.positions(block)
                counts += np.bincount(positions, minlength=len(counts))
        return counts

    def positions(self, values: Array) -> Array:
        """The bin of each finite value."""
        if self.scale == "linear":
            # Halved: the whole width may overflow.
            return self._equal_parts(values.astype(np.float64) / 2, float(self.low) / 2, float(self.high) / 2)
        low, high = math.log(self.low), math.log(self.high)
        if self.scale == "log":
            return self._equal_parts(np.log(np.abs(values.astype(np.float64))), low, high)
        finite = values[np.isfinite(values)].astype(np.float64)
        sizes = np.abs(finite)
        distances = self._equal_parts(np.log(np.maximum(sizes, self.low)), low, high) + 1
        return np.where(sizes < self.low, 0, np.where(finite < 0, -distances, distances)) + self.count

    def _equal_parts(self, values: Array, low: float, high: float) -> Array:
        finite = values[np.isfinite(values)]
        if low == high:
            return np.full(finite.shape, self.count // 2, np.intp)
        parts = (finite - low) / (high - low) * self.count
        return np.clip(parts, 0, self.count - 1).astype(np.intp)


def bins_of_range(low: Number, high: Number, count: int) -> Bins:
    """At most `count` bins from the minimum to the maximum: one for a single value, and one per integer of a
    narrow range, since more would leave meaningless gaps."""
    if isinstance(low, int) and isinstance(high, int):
        return Bins(low, high, max(1, min(count, high - low + 1)))
    return Bins(low, high, 1 if low == high else count)


def bins_of_values(finite: Array, count: int, scale: Scale) -> Bins | None:
    """Bins of that scale that hold all these values; None if there are none. Zeros alone have no logarithmic
    scale, so their bins are linear."""
    if not finite.size:
        return None
    if scale == "linear":
        return Bins(float(finite.min()), float(finite.max()), count)
    sizes = np.abs(finite[finite != 0])
    if not sizes.size:
        return Bins(0.0, 0.0, count)
    low, high = float(sizes.min()), float(sizes.max())
    if scale == "log":
        return Bins(low, high, count, scale)
    return Bins(max(low, high / _MAX_DYNAMIC_RANGE), high, max(1, count // 2), scale)


def compute_histogram(bits: Array, dtype: str, bins: Bins) -> tuple[int, ...]:
    """The counts of an array in the storage type of `dtype`; complex elements by their absolute value."""
    decoded = (decode_block(block, dtype) for (block,) in iterate_blocks([bits], block_size(dtype)))
    real = (np.abs(block) if block.dtype.kind == "c" else block for block in decoded)
    return tuple(bins.count_values(real).tolist())


def merge_histograms(histograms: Sequence[tuple[Bins, Sequence[int]]], count: int) -> list[int]:
    """Several histograms as one over the range of all; the count of a bin goes where its middle lies."""
    counts = np.zeros(count, np.int64)
    if histograms:
        merged = Bins(
            min(float(bins.low) for bins, _ in histograms),
            max(float(bins.high) for bins, _ in histograms),
            count,
        )
        for bins, part in histograms:
            edges = bins.edges()
            middles = edges[:-1] / 2 + edges[1:] / 2
            np.add.at(counts, merged.positions(middles), part)
    result: list[int] = counts.tolist()
    return result


def histogram_lines(
    bins: Bins, counts: Sequence[int], format_number: Callable[[Number], str], *, ascii: bool = False
) -> Iterator[str]:
    """A line for each bin: where it begins, a bar, and how many values it holds."""
    starts = [format_number(start) for start in bins.starts()]
    width = max(map(len, starts))
    for start, bar, count in zip(starts, render_bars(counts, ascii=ascii), counts, strict=True):
        yield f"{start:>{width}}  {bar} {count:,}" if count else f"{start:>{width}}"


def render_bars(counts: Sequence[int], width: int = 40, *, ascii: bool = False) -> list[str]:
    """A bar per count, the longest `width` wide; a nonzero count is always visible."""
    largest = max(counts, default=0) or 1
    return [_bar_text(count / largest * width, bool(count), ascii) for count in counts]


def _linear_edges(low: float, high: float, bins: int) -> Array:
    if low == high:
        gap = abs(low) * 1e-3 or 1e-3
        low, high = max(low - gap, -_LARGEST), min(high + gap, _LARGEST)
    shares = np.arange(bins + 1) / bins
    edges: Array = low * (1 - shares) + high * shares  # high - low may overflow
    return edges


def _log_edges(low: float, high: float, bins: int) -> Array:
    if low == high:
        low, high = low * 0.999, min(high * 1.001, _LARGEST)
    edges: Array = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high
    return edges


def _bar_text(length: float, is_nonzero: bool, ascii: bool) -> str:
    if ascii:
        return "#" * max(round(length), int(is_nonzero))
    eighths = max(round(length * 8), int(is_nonzero))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
