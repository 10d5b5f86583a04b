"""Heat map tiles: 256 x 256 pixels of min, max and mean; sampled at first, refined in the background."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.viewer.data.tensor import AxisIndex, Grid

Array = np.ndarray[Any, Any]
TILE_SIZE = 256
EXACT_BYTES = 40 << 20  # a tile that covers no more is computed exactly
SAMPLE_BYTES = 16 << 20  # of a larger one, so much is sampled
NAN, POSITIVE, NEGATIVE = 1, 2, 4
_FINEST_LEVEL = 3  # the cached level, unless it has too many pixels; finer tiles are exact anyway
_MAX_PIXELS = 1 << 22
_MAX_BYTES = 128 << 20  # of all cached tiles
_STRIPS_PER_CHECK = 64  # pixel rows between two checks whether the viewer is closing


@dataclass(slots=True)
class Tile:
    """Pooled pixels. A NaN in a block makes its pixel NaN; `flags` mark NaN, +Inf and -Inf."""

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
    """Number of mipmap levels; the last fits in one tile."""
    length, count = max(*shape, 1), 1
    while length > TILE_SIZE:
        length, count = (length + 1) // 2, count + 1
    return count


def tile_span(shape: tuple[int, int], level: int, y: int, x: int) -> tuple[slice, slice]:
    """The rows and columns that a tile covers."""
    reach = TILE_SIZE << max(0, min(level, 40))
    is_there = 0 <= y * reach < max(shape[0], 1) and 0 <= x * reach < max(shape[1], 1)
    if not is_there or not 0 <= level < 40 or (level and 0 in shape):
        raise ValueError(f"there is no tile y={y}, x={x} at level {level}; the view is {list(shape)}")
    ends = min((y + 1) * reach, shape[0]), min((x + 1) * reach, shape[1])
    return slice(y * reach, ends[0]), slice(x * reach, ends[1])


def read_elements(grid: Grid, y: int, x: int) -> Array:
    """The elements of a level 0 tile."""
    rows, columns = tile_span(grid.shape, 0, y, x)
    return grid.read(rows, columns)


def compute_tile(
    grid: Grid, level: int, y: int, x: int, sample_bytes: int = SAMPLE_BYTES, exact_bytes: int = EXACT_BYTES
) -> Tile:
    """A pooled tile; if it covers more than `exact_bytes`, from evenly sampled rows."""
    rows, columns = tile_span(grid.shape, level, y, x)
    if (rows.stop - rows.start) * (columns.stop - columns.start) * grid.cost <= exact_bytes:
        sample_bytes = 0
    if grid.is_column_major:
        return pool_blocks(grid.transposed, columns, rows, 1 << level, sample_bytes).transposed  # type: ignore[attr-defined]
    return pool_blocks(grid, rows, columns, 1 << level, sample_bytes)


def pool_blocks(grid: Grid, rows: slice, columns: slice, size: int, budget: int = 0) -> Tile:
    """Pool blocks of size x size elements, one strip at a time; `budget` 0 reads every element."""
    chosen = _sampled_columns(grid, rows, columns, size, budget)
    count = columns.stop - columns.start if chosen is None else len(chosen)
    strip_bytes = count * grid.cost * -(-(rows.stop - rows.start) // size)
    rows_per_strip = size if not budget else max(1, min(size, budget // max(strip_bytes, 1)))
    edges = _block_starts(columns, size, chosen)
    across = columns if chosen is None else chosen
    strips = [
        _pool_strip(grid.read(strip_rows, across), edges)
        for strip_rows in _row_strips(rows, size, rows_per_strip)
    ]
    low, high, mean, flags = (np.stack(part) for part in zip(*strips, strict=True))
    is_exact = chosen is None and rows_per_strip >= min(size, rows.stop - rows.start)
    return Tile(low, high, mean, flags, is_exact)


def nonfinite_flags(values: Array) -> Array:
    return (
        np.isnan(values) * np.uint8(NAN)
        | np.isposinf(values) * np.uint8(POSITIVE)
        | np.isneginf(values) * np.uint8(NEGATIVE)
    ).astype(np.uint8)


def coarsen(fine: Tile, rows: slice, columns: slice, size: int, weights: tuple[Array, Array]) -> Tile:
    """Pool a finer tile by `size`; means are weighted by element counts."""
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
    """A few columns of each block, if one row per strip already exceeds the budget (strided rows); None for
    all columns."""
    count, strips = columns.stop - columns.start, -(-(rows.stop - rows.start) // size)
    nbytes = count * grid.cost * strips
    kept = max(1, int(size * budget / max(nbytes, 1)))
    if not budget or grid.cost < 64 or kept >= size:
        return None
    offsets = (2 * np.arange(kept) + 1) * size // (2 * kept)
    chosen = (np.arange(columns.start, columns.stop, size)[:, None] + offsets).reshape(-1)
    # A last, shorter block keeps at least its last column.
    return np.unique(np.minimum(chosen, columns.stop - 1))


def _block_starts(columns: slice, size: int, chosen: Array | None) -> Array:
    """The first column of each block, among the columns that are read."""
    if chosen is None:
        return np.arange(0, columns.stop - columns.start, size)
    numbers = (chosen - columns.start) // size
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _row_strips(rows: slice, size: int, rows_per_strip: int) -> Iterator[AxisIndex]:
    for start in range(rows.start, rows.stop, size):
        end = min(start + size, rows.stop)
        if rows_per_strip >= end - start:
            yield slice(start, end)
        else:
            yield start + (2 * np.arange(rows_per_strip) + 1) * (end - start) // (2 * rows_per_strip)


def _pool_strip(part: Array, edges: Array) -> tuple[Array, Array, Array, Array]:
    """min, max, mean and flags per block; reduces along rows first, which is fastest in memory order."""
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


class TileRefinement:
    """LRU cache of exact mipmap levels per view, from the finest cached one to one that fits in a tile."""

    def __init__(self, work: Callable[[Callable[[], None]], bool], is_over: threading.Event) -> None:
        self._submit, self._is_over = work, is_over
        self._cached: OrderedDict[Hashable, tuple[tuple[int, int], list[Tile]]] = OrderedDict()
        self._pending: set[Hashable] = set()
        self._lock = threading.Lock()

    def exact_tile(self, key: Hashable, level: int, y: int, x: int) -> Tile | None:
        """An exact tile; None if the view has not been refined yet."""
        with self._lock:
            cached = self._cached.get(key)
            if cached is None or level < finest_level(cached[0]):
                return None
            self._cached.move_to_end(key)
        shape, tiles = cached
        stored_level = min(level, finest_level(shape) + len(tiles) - 1)
        region = [_scale_slice(elements, stored_level) for elements in tile_span(shape, level, y, x)]
        return _crop_or_coarsen(tiles[stored_level - finest_level(shape)], shape, stored_level, level, region)

    def request(self, key: Hashable, grid: Grid, on_exact: Callable[[], None]) -> None:
        """Refine the view in the background, then call `on_exact`."""
        with self._lock:
            if key in self._pending or key in self._cached:
                return
            self._pending.add(key)
        if not self._submit(lambda: self._refine(key, grid, on_exact)):
            self._pending.discard(key)

    def _refine(self, key: Hashable, grid: Grid, on_exact: Callable[[], None]) -> None:
        try:
            finest = self._pool_view(grid)
        finally:
            self._pending.discard(key)
        if finest is not None:
            self._store(key, grid.shape, _build_levels(finest, grid.shape))
            on_exact()

    def _pool_view(self, grid: Grid) -> Tile | None:
        by_rows = grid.transposed if grid.is_column_major else grid  # type: ignore[attr-defined]
        size, columns = 1 << finest_level(grid.shape), slice(0, by_rows.shape[1])
        parts = []
        for start in range(0, by_rows.shape[0], size * _STRIPS_PER_CHECK):
            if self._is_over.is_set():
                return None
            parts.append(
                pool_blocks(
                    by_rows,
                    slice(start, min(start + size * _STRIPS_PER_CHECK, by_rows.shape[0])),
                    columns,
                    size,
                )
            )
        joined = Tile(
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.high for part in parts]),
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.flags for part in parts]),
        )
        return joined.transposed if grid.is_column_major else joined

    def _store(self, key: Hashable, shape: tuple[int, int], tiles: list[Tile]) -> None:
        with self._lock:
            self._cached[key] = shape, tiles
            while (
                len(self._cached) > 1
                and sum(_nbytes(tiles_of_view) for _, tiles_of_view in self._cached.values()) > _MAX_BYTES
            ):
                self._cached.popitem(last=False)


def finest_level(shape: tuple[int, int]) -> int:
    """The finest cached level of a view; coarser tiles can be made exact."""
    level = _FINEST_LEVEL
    while (shape[0] >> level) * (shape[1] >> level) > _MAX_PIXELS:
        level += 1
    return level


def _build_levels(finest: Tile, shape: tuple[int, int]) -> list[Tile]:
    """All coarser levels, each half the resolution of the one before."""
    tiles, level = [finest], finest_level(shape)
    while level + 1 < count_levels(shape):
        region = [slice(0, size) for size in tiles[-1].shape]
        tiles.append(_crop_or_coarsen(tiles[-1], shape, level, level + 1, region))
        level += 1
    return tiles


def _crop_or_coarsen(
    fine: Tile, shape: tuple[int, int], level: int, target: int, region: list[slice]
) -> Tile:
    """A region of a level, pooled down to the target level."""
    rows, columns = region
    if level == target:
        parts = (part[rows, columns] for part in (fine.low, fine.high, fine.mean, fine.flags))
        return Tile(*parts)  # type: ignore[arg-type]
    weights = _pixel_weights(shape[0], level), _pixel_weights(shape[1], level)
    return coarsen(fine, rows, columns, 1 << (target - level), weights)


def _scale_slice(elements: slice, level: int) -> slice:
    return slice(elements.start >> level, -(-elements.stop >> level))


def _pixel_weights(length: int, level: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Number of elements per pixel; fewer at the edge."""
    size = 1 << level
    starts = np.arange(0, length, size)
    return np.minimum(length - starts, size).astype(np.float64)


def _nbytes(tiles: list[Tile]) -> int:
    return sum(tile.low.nbytes + tile.high.nbytes + tile.mean.nbytes + tile.flags.nbytes for tile in tiles)
