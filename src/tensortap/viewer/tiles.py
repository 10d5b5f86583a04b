"""Tiles of a grid: 256 x 256 pixels, each the lowest, highest and mean of the elements below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.viewer.numbers import AxisIndex, Grid

Array = np.ndarray[Any, Any]
TILE_SIZE = 256
EXACT_BYTES = 40 << 20  # bytes: what is below a tile is read if it is no more
SAMPLE_BYTES = 16 << 20  # else so many of them, for a picture at once
NAN, POSITIVE, NEGATIVE = 1, 2, 4


@dataclass(slots=True)
class Tile:
    """Pixels row by row. A NaN below a pixel makes it NaN, and `flags` say which odd numbers are there."""

    low: Array
    high: Array
    mean: Array
    flags: Array
    is_exact: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.low.shape[0], self.low.shape[1]

    @property
    def transposed(self) -> Tile:
        return Tile(self.low.T, self.high.T, self.mean.T, self.flags.T, self.is_exact)


def count_levels(shape: tuple[int, int]) -> int:
    """How many there are; the last fits into one tile."""
    length, count = max(*shape, 1), 1
    while length > TILE_SIZE:
        length, count = (length + 1) // 2, count + 1
    return count


def tile_span(shape: tuple[int, int], level: int, y: int, x: int) -> tuple[slice, slice]:
    """The rows and columns below a tile."""
    reach = TILE_SIZE << max(0, min(level, 40))
    is_there = 0 <= y * reach < max(shape[0], 1) and 0 <= x * reach < max(shape[1], 1)
    if not is_there or not 0 <= level < 40 or (level and 0 in shape):
        raise ValueError(f"there is no tile y={y}, x={x} at level {level}; the view is {list(shape)}")
    ends = min((y + 1) * reach, shape[0]), min((x + 1) * reach, shape[1])
    return slice(y * reach, ends[0]), slice(x * reach, ends[1])


def read_elements(grid: Grid, y: int, x: int) -> Array:
    """The elements themselves, at level 0."""
    rows, columns = tile_span(grid.shape, 0, y, x)
    return grid.read(rows, columns)


def compute_tile(
    grid: Grid, level: int, y: int, x: int, sample_bytes: int = SAMPLE_BYTES, exact_bytes: int = EXACT_BYTES
) -> Tile:
    """A tile; where too much lies below it, from rows that lie evenly among all."""
    rows, columns = tile_span(grid.shape, level, y, x)
    if (rows.stop - rows.start) * (columns.stop - columns.start) * grid.cost <= exact_bytes:
        sample_bytes = 0
    if grid.is_column_major:
        return pool_blocks(grid.transposed, columns, rows, 1 << level, sample_bytes).transposed  # type: ignore[attr-defined]
    return pool_blocks(grid, rows, columns, 1 << level, sample_bytes)


def pool_blocks(grid: Grid, rows: slice, columns: slice, size: int, budget: int = 0) -> Tile:
    """Blocks of size x size elements, a strip of blocks at a time; without a budget all of them are read."""
    chosen = _sampled_columns(grid, rows, columns, size, budget)
    count = columns.stop - columns.start if chosen is None else len(chosen)
    strip_bytes = count * grid.cost * -(-(rows.stop - rows.start) // size)
    most = size if not budget else max(1, min(size, budget // max(strip_bytes, 1)))
    edges = _block_starts(columns, size, chosen)
    across = columns if chosen is None else chosen
    strips = [
        _pool_strip(grid.read(strip_rows, across), edges) for strip_rows in _row_strips(rows, size, most)
    ]
    low, high, mean, flags = (np.stack(part) for part in zip(*strips, strict=True))
    is_exact = chosen is None and most >= min(size, rows.stop - rows.start)
    return Tile(low, high, mean, flags, is_exact)


def nonfinite_flags(values: Array) -> Array:
    return (
        np.isnan(values) * np.uint8(NAN)
        | np.isposinf(values) * np.uint8(POSITIVE)
        | np.isneginf(values) * np.uint8(NEGATIVE)
    ).astype(np.uint8)


def coarsen(fine: Tile, rows: slice, columns: slice, size: int, weights: tuple[Array, Array]) -> Tile:
    """A tile from one that is finer by `size`; at the edges fewer elements weigh less."""
    low, high, flags = (part[rows, columns] for part in (fine.low, fine.high, fine.flags))
    elements = weights[0][rows, None] * weights[1][None, columns]
    starts = [np.arange(0, length, size) for length in low.shape]
    with np.errstate(all="ignore"):
        mean = _reduce_blocks(np.add, fine.mean[rows, columns] * elements, starts) / _reduce_blocks(
            np.add, elements, starts
        )
    return Tile(
        _reduce_blocks(np.minimum, low, starts),
        _reduce_blocks(np.maximum, high, starts),
        mean.astype(np.float32),
        _reduce_blocks(np.bitwise_or, flags, starts),
    )


def _reduce_blocks(operation: Any, part: Array, starts: list[Array]) -> Array:
    reduced: Array = operation.reduceat(operation.reduceat(part, starts[0], axis=0), starts[1], axis=1)
    return reduced


def _sampled_columns(grid: Grid, rows: slice, columns: slice, size: int, budget: int) -> Array | None:
    """A few columns of each block where one row of each strip is too much already, as when the elements of a
    row lie far apart; else None, for all."""
    count, strips = columns.stop - columns.start, -(-(rows.stop - rows.start) // size)
    nbytes = count * grid.cost * strips
    kept = max(1, int(size * budget / max(nbytes, 1)))
    if not budget or grid.cost < 64 or kept >= size:
        return None
    offsets = (2 * np.arange(kept) + 1) * size // (2 * kept)
    chosen = (np.arange(columns.start, columns.stop, size)[:, None] + offsets).reshape(-1)
    # A last block that is cut short keeps at least its first column.
    return np.unique(np.minimum(chosen, columns.stop - 1))


def _block_starts(columns: slice, size: int, chosen: Array | None) -> Array:
    """Where each block begins among the columns that are read."""
    if chosen is None:
        return np.arange(0, columns.stop - columns.start, size)
    numbers = (chosen - columns.start) // size
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _row_strips(rows: slice, size: int, most: int) -> Iterator[AxisIndex]:
    for start in range(rows.start, rows.stop, size):
        end = min(start + size, rows.stop)
        if most >= end - start:
            yield slice(start, end)
        else:
            yield start + (2 * np.arange(most) + 1) * (end - start) // (2 * most)


def _pool_strip(part: Array, edges: Array) -> tuple[Array, Array, Array, Array]:
    """Down the rows first: that is what the processor does quickest."""
    with np.errstate(all="ignore"):
        lows, highs = part.min(axis=0), part.max(axis=0)
        sums = part.sum(axis=0, dtype=np.float64)
        low, high = np.minimum.reduceat(lows, edges), np.maximum.reduceat(highs, edges)
        counts = np.diff(edges, append=part.shape[1]) * part.shape[0]
        mean = np.add.reduceat(sums, edges) / counts
    flags = np.isnan(low) * np.uint8(NAN)
    if flags.any() or np.isinf(low).any() or np.isinf(high).any():
        flags_of_column = np.bitwise_or.reduce(nonfinite_flags(part), axis=0)
        flags = np.bitwise_or.reduceat(flags_of_column, edges)
    return low.astype(np.float32), high.astype(np.float32), mean.astype(np.float32), flags.astype(np.uint8)
