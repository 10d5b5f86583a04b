"""Where in an array a difference lies: the tail, one of several equal parts, a row, a block, a diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensortap.kernels.numbers import Array

# Of the worst slice: what is less is untouched, what is more is touched, and in between nothing is said.
_UNTOUCHED, _TOUCHED = 0.02, 0.1
_MIN_PER_ROW, _UNTOUCHED_FEW = 8, 1e-3  # in a row: of fewer, one may differ little by chance
_CHANCE = 1e-6
_CHUNK_COUNTS = (2, 3, 4, 6, 8, 16)
_MAX_SHOWN = 8
_MASK_VALUE = -1e30
_MIN_MASKED, _MAX_MASKED_SHARE = 2, 0.6


def describe_region(apart: Array, values: Array) -> str:
    """The part of each axis outside of which nothing differs."""
    told = [_describe_axis(apart, values, axis) for axis in range(apart.ndim)]
    return "; ".join(filter(None, told))


def describe_mask(a: Array, b: Array) -> str:
    """What is hidden on one side alone (minus infinity, the lowest number, or zero), where it is a block or
    whole diagonals of the last two axes, everywhere the same. Zeros are a mask only where the rest of each
    row is the same, or the same times a number, as a softmax makes it."""
    if a.ndim < 2 or min(a.shape[-2:]) < 2:
        return ""
    told = _describe_one_sided_mask(a <= _MASK_VALUE, b <= _MASK_VALUE)
    if told:
        return told
    told = _describe_one_sided_mask(a == 0, b == 0)
    return told if told and _are_rows_proportional(a, b) else ""


def _are_rows_proportional(a: Array, b: Array) -> bool:
    """Whether what is hidden on neither side is the same in each row, but for a factor."""
    is_seen = (a != 0) & (b != 0) & (np.abs(a) < -_MASK_VALUE) & (np.abs(b) < -_MASK_VALUE)
    x, y = (np.where(is_seen, one, 0.0) for one in (a, b))
    square = (x * x).sum(axis=-1, keepdims=True)
    factor = (x * y).sum(axis=-1, keepdims=True) / np.where(square, square, 1)
    # A row of one number fits any factor.
    free = is_seen.sum() - np.count_nonzero(is_seen.any(axis=-1))
    return bool(free >= _MIN_PER_ROW and np.linalg.norm(y - factor * x) <= _UNTOUCHED_FEW * np.linalg.norm(y))


def _describe_axis(apart: Array, values: Array, axis: int) -> str:
    others = tuple(other for other in range(apart.ndim) if other != axis)
    sizes, scale = (np.sqrt((one**2).sum(axis=others)) for one in (apart, values))
    # Both as they are and relative to their rows: noise of large rows is no difference of them alone.
    untouched = _UNTOUCHED if apart.size >= _MIN_PER_ROW * len(sizes) else _UNTOUCHED_FEW
    relative = sizes / np.where(scale, scale, scale.max() or 1)
    touched = [_touched_rows(sizes, untouched), _touched_rows(relative, untouched)]
    if touched[0] is None or touched[1] is None or (touched[0] != touched[1]).any():
        return ""
    rows = np.flatnonzero(touched[0])
    if len(rows) == len(sizes) or _may_be_chance(np.moveaxis(apart, axis, 0), touched[0], untouched):
        return ""
    return _describe_rows(rows, len(sizes), axis)


def _may_be_chance(apart: Array, is_touched: Array, untouched: float) -> bool:
    """Whether so many equal numbers may lie outside, as many as there are among those that differ."""
    size = np.abs(apart)
    touched = size[is_touched]
    # One more of each, as nothing is known of a share from one number.
    equal = (np.count_nonzero(touched <= untouched * size.max()) + 1) / (touched.size + 2)
    return bool(equal ** (size.size - touched.size) > _CHANCE)


def _touched_rows(sizes: Array, untouched: float) -> Array | None:
    """Which rows differ; None where some are neither touched nor untouched."""
    worst = float(sizes.max())
    is_touched = sizes >= _TOUCHED * worst
    return is_touched if (is_touched | (sizes <= untouched * worst)).all() else None


def _describe_rows(rows: Array, length: int, axis: int) -> str:
    first, last = int(rows[0]), int(rows[-1])
    if len(rows) == 1:
        return f"only row {first} of {length} along axis {axis}"
    if last - first + 1 > len(rows):
        if len(rows) > min(_MAX_SHOWN, length // 4):
            return ""
        return f"only rows {', '.join(map(str, rows))} of {length} along axis {axis}"
    where = f"{first} to {last} of {length} along axis {axis}{_describe_chunk(first, last, length)}"
    if last == length - 1:
        return f"only the tail: {where}"
    return f"only the head: {where}" if first == 0 else f"only {where}"


def _describe_chunk(first: int, last: int, length: int) -> str:
    """Whether it is one of several equal parts, as a shard is."""
    width = last - first + 1
    count = length // width
    is_part = count in _CHUNK_COUNTS and count * width == length and first % width == 0
    return f", part {first // width + 1} of {count}" if is_part else ""


def _describe_one_sided_mask(in_a: Array, in_b: Array) -> str:
    for name, alone in (("A", in_a & ~in_b), ("B", in_b & ~in_a)):
        other = (in_b & ~in_a) if name == "A" else (in_a & ~in_b)
        if other.any() or np.count_nonzero(alone) < _MIN_MASKED or alone.mean() > _MAX_MASKED_SHARE:
            continue
        planes = alone.reshape(-1, *alone.shape[-2:])
        plane = planes[0]
        if (planes == plane).all():
            told = _describe_plane(plane)
            if told:
                return f"{told} of the last two axes is masked in {name} only"
    return ""


def _describe_plane(plane: Array) -> str:
    rows, columns = np.flatnonzero(plane.any(axis=1)), np.flatnonzero(plane.any(axis=0))
    is_full = np.count_nonzero(plane) == len(rows) * len(columns)
    if is_full and _are_consecutive(rows) and _are_consecutive(columns):
        return f"the block [{rows[0]}:{rows[-1] + 1}, {columns[0]}:{columns[-1] + 1}]"
    return _describe_diagonals(plane)


def _describe_diagonals(plane: Array) -> str:
    height, width = plane.shape
    distance = np.arange(width)[None] - np.arange(height)[:, None]
    touched = np.unique(distance[plane])
    if not _are_consecutive(touched) or not plane[np.isin(distance, touched)].all():
        return ""
    first, last = int(touched[0]), int(touched[-1])
    return f"the diagonal {first:+d}" if first == last else f"the band of diagonals {first:+d} to {last:+d}"


def _are_consecutive(numbers: Array | Sequence[int]) -> bool:
    return bool((np.diff(numbers) == 1).all())
