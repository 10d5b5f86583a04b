"""Tiles that were sampled, made exact in the background: one pass over the view, kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np

from tensortap.viewer.numbers import Grid
from tensortap.viewer.tiles import Tile, coarsen, count_levels, pool_blocks, tile_span

_FINEST_LEVEL = 3  # the level that is kept, if there are not too many pixels; below it a tile is small enough
_MAX_PIXELS = 1 << 22
_MAX_BYTES = 128 << 20  # bytes of all that is kept
_STRIPS_PER_CHECK = 64  # rows of pixels between two looks at whether anyone still wants it


class TileRefinement:
    """The levels of views, by what they show, from the finest that is kept to the one that fits a tile."""

    def __init__(self, work: Callable[[Callable[[], None]], bool], is_over: threading.Event) -> None:
        self._submit, self._is_over = work, is_over
        self._cached: OrderedDict[Hashable, tuple[tuple[int, int], list[Tile]]] = OrderedDict()
        self._pending: set[Hashable] = set()
        self._lock = threading.Lock()

    def exact_tile(self, key: Hashable, level: int, y: int, x: int) -> Tile | None:
        """An exact tile, if the view has been gone through."""
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
        """Go through the view when there is time, and tell when it is done."""
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
    """The level that is kept of a view, and from which on its tiles can become exact."""
    level = _FINEST_LEVEL
    while (shape[0] >> level) * (shape[1] >> level) > _MAX_PIXELS:
        level += 1
    return level


def _build_levels(finest: Tile, shape: tuple[int, int]) -> list[Tile]:
    """Each half as fine as the one before."""
    tiles, level = [finest], finest_level(shape)
    while level + 1 < count_levels(shape):
        region = [slice(0, size) for size in tiles[-1].shape]
        tiles.append(_crop_or_coarsen(tiles[-1], shape, level, level + 1, region))
        level += 1
    return tiles


def _crop_or_coarsen(
    fine: Tile, shape: tuple[int, int], level: int, target: int, region: list[slice]
) -> Tile:
    """Part of a level, as it is or made coarser."""
    rows, columns = region
    if level == target:
        parts = (part[rows, columns] for part in (fine.low, fine.high, fine.mean, fine.flags))
        return Tile(*parts)  # type: ignore[arg-type]
    weights = _pixel_weights(shape[0], level), _pixel_weights(shape[1], level)
    return coarsen(fine, rows, columns, 1 << (target - level), weights)


def _scale_slice(elements: slice, level: int) -> slice:
    return slice(elements.start >> level, -(-elements.stop >> level))


def _pixel_weights(length: int, level: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many elements each pixel of the finest level stands for."""
    size = 1 << level
    starts = np.arange(0, length, size)
    return np.minimum(length - starts, size).astype(np.float64)


def _nbytes(tiles: list[Tile]) -> int:
    return sum(tile.low.nbytes + tile.high.nbytes + tile.mean.nbytes + tile.flags.nbytes for tile in tiles)
