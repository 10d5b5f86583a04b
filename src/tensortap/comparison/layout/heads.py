"""Attention heads in another order: permuted blocks along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.layout.layouts import Layout, apply_ops
from tensortap.comparison.layout.sampling import relative_distance
from tensortap.kernels.decode import Array

_SAMPLES_PER_ROW = 64  # numbers sampled per row
_MAX_ROWS, _MIN_HEAD_WIDTH = 8192, 4  # rows along an axis; numbers per head
_MAX_ERROR = 0.1


def find_head_order(a: Array, b: Array) -> Layout | None:
    """The order in which b has the heads of a; None if no axis consists of permuted blocks.

    The two values alone do not tell whether that is a layout or a bug.
    """
    if a.shape != b.shape or not a.size:
        return None
    for axis, least in _head_axes(a.ndim):
        rows = _match_rows(a, b, axis) if 2 <= a.shape[axis] <= _MAX_ROWS else None
        width = _block_width(rows) if rows is not None else 0
        if rows is None or width < least:
            continue
        layout = Layout(_describe_order(width, axis, least), b=(("take", axis, rows),))
        if relative_distance(a, apply_ops(layout.b, b)) <= _MAX_ERROR:
            return layout
    return None


def _head_axes(count: int) -> list[tuple[int, int]]:
    """Axes that may hold heads, each with the minimal block width."""
    wide = [(axis, _MIN_HEAD_WIDTH) for axis in dict.fromkeys((count - 1, 0))]
    return [*wide, (1, 1), (2, 1)] if count == 4 else wide


def _describe_order(width: int, axis: int, least: int) -> str:
    label = "heads" if least == 1 else f"heads of {width}"
    return f"{label} in another order, along axis {axis}"


def _match_rows(a: Array, b: Array, axis: int) -> Array | None:
    """The rows of b in the order of a, by a sample of each; None unless it is a non-trivial permutation."""
    x, y = (sample_rows(array, axis) for array in (a, b))
    if (
        not (np.isfinite(x).all() and np.isfinite(y).all())
        or _nearest_rows(x[:: len(x) // _MIN_HEAD_WIDTH or 1], y) is None
    ):
        return None
    rows = _nearest_rows(x, y)
    if rows is None or len(np.unique(rows)) < len(rows) or np.array_equal(rows, np.arange(len(x))):
        return None
    return rows


def _nearest_rows(x: Array, y: Array) -> Array | None:
    """The nearest row of y for each row of x; None if one is not near."""
    # Squared distances without the x**2 term, which is the same for all rows of y.
    rows = ((y**2).sum(1)[None] - 2 * (x @ y.T)).argmin(axis=1)
    errors = np.linalg.norm(x - y[rows], axis=1)
    return rows if bool((errors <= 2 * _MAX_ERROR * np.linalg.norm(x, axis=1)).all()) else None


def sample_rows(array: Array, axis: int) -> Array:
    """The same sample of numbers from each row along an axis."""
    rows = np.moveaxis(array, axis, 0)
    if rows.ndim == 1:
        return rows[:, None].astype(np.float64)
    size = rows[0].size
    at = (
        np.random.default_rng(0).integers(0, size, _SAMPLES_PER_ROW)
        if size > _SAMPLES_PER_ROW
        else np.arange(size)
    )
    where: tuple[Any, ...] = (slice(None), *np.unravel_index(at, rows.shape[1:]))
    return np.asarray(rows[where], np.float64)


def _block_width(rows: Array) -> int:
    """The width of the widest blocks that stay contiguous."""
    for width in (size for size in range(len(rows) // 2, 0, -1) if len(rows) % size == 0):
        blocks = rows.reshape(-1, width)
        if (blocks[:, 0] % width == 0).all() and (np.diff(blocks, axis=1) == 1).all():
            return width
    return 1
