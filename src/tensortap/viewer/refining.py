"""Tiles that were sampled, made exact in the background: one pass over the view, kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np

from tensortap.viewer.numbers import Grid
from tensortap.viewer.tiles import Tile, coarsen, count_levels, pool_blocks, tile_span

_FINEST = 3  # the level that is kept, if there are not too many pixels; below it a tile is small enough
_PIXELS = 1 << 22
_MOST = 128 << 20  # bytes of all that is kept
_STRIPS = 64  # rows of pixels between two looks at whether anyone still wants it


class TileRefinement:
    """The levels of views, by what they show, from the finest that is kept to the one that fits a tile."""

    def __init__(self, work: Callable[[Callable[[], None]], bool], is_over: threading.Event) -> None:
        self._work, self._is_over = work, is_over
        self._kept: OrderedDict[Hashable, tuple[tuple[int, int], list[Tile]]] = OrderedDict()
        self._wanted: set[Hashable] = set()
        self._lock = threading.Lock()

    def tile(self, key: Hashable, level: int, y: int, x: int) -> Tile | None:
        """An exact tile, if the view has been gone through."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or level < finest_level(found[0]):
                return None
            self._kept.move_to_end(key)
        shape, made = found
        nearest = min(level, finest_level(shape) + len(made) - 1)
        place = [_scaled(one, nearest) for one in tile_span(shape, level, y, x)]
        return _coarser(made[nearest - finest_level(shape)], shape, nearest, level, place)

    def want(self, key: Hashable, grid: Grid, tell: Callable[[], None]) -> None:
        """Go through the view when there is time, and tell when it is done."""
        with self._lock:
            if key in self._wanted or key in self._kept:
                return
            self._wanted.add(key)
        if not self._work(lambda: self._make(key, grid, tell)):
            self._wanted.discard(key)

    def _make(self, key: Hashable, grid: Grid, tell: Callable[[], None]) -> None:
        try:
            made = self._gone_through(grid)
        finally:
            self._wanted.discard(key)
        if made is not None:
            self._keep(key, grid.shape, _levels(made, grid.shape))
            tell()

    def _gone_through(self, grid: Grid) -> Tile | None:
        seen = grid.turned if grid.is_turned else grid  # type: ignore[attr-defined]
        size, columns = 1 << finest_level(grid.shape), slice(0, seen.shape[1])
        parts = []
        for start in range(0, seen.shape[0], size * _STRIPS):
            if self._is_over.is_set():
                return None
            parts.append(
                pool_blocks(seen, slice(start, min(start + size * _STRIPS, seen.shape[0])), columns, size)
            )
        joined = Tile(
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.high for part in parts]),
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.flags for part in parts]),
        )
        return joined.turned if grid.is_turned else joined

    def _keep(self, key: Hashable, shape: tuple[int, int], made: list[Tile]) -> None:
        with self._lock:
            self._kept[key] = shape, made
            while len(self._kept) > 1 and sum(_nbytes(each) for _, each in self._kept.values()) > _MOST:
                self._kept.popitem(last=False)


def finest_level(shape: tuple[int, int]) -> int:
    """The level that is kept of a view, and from which on its tiles can become exact."""
    level = _FINEST
    while (shape[0] >> level) * (shape[1] >> level) > _PIXELS:
        level += 1
    return level


def _levels(finest: Tile, shape: tuple[int, int]) -> list[Tile]:
    """Each half as fine as the one before."""
    made, level = [finest], finest_level(shape)
    while level + 1 < count_levels(shape):
        whole = [slice(0, size) for size in made[-1].shape]
        made.append(_coarser(made[-1], shape, level, level + 1, whole))
        level += 1
    return made


def _coarser(fine: Tile, shape: tuple[int, int], level: int, wanted: int, place: list[slice]) -> Tile:
    """Part of a level, as it is or made coarser."""
    rows, columns = place
    if level == wanted:
        parts = (part[rows, columns] for part in (fine.low, fine.high, fine.mean, fine.flags))
        return Tile(*parts)  # type: ignore[arg-type]
    weights = _weights(shape[0], level), _weights(shape[1], level)
    return coarsen(fine, rows, columns, 1 << (wanted - level), weights)


def _scaled(elements: slice, level: int) -> slice:
    return slice(elements.start >> level, -(-elements.stop >> level))


def _weights(length: int, level: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many elements each pixel of the finest level stands for."""
    size = 1 << level
    starts = np.arange(0, length, size)
    return np.minimum(length - starts, size).astype(np.float64)


def _nbytes(each: list[Tile]) -> int:
    return sum(one.low.nbytes + one.high.nbytes + one.mean.nbytes + one.flags.nbytes for one in each)
