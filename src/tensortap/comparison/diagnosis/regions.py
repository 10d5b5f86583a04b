"""Where in an array a difference lies: the tail, one of several equal chunks, a row, a block, a diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensortap.kernels.decode import Array

# Shares of the worst slice: below the first a slice is untouched, above the second touched.
_UNTOUCHED, _TOUCHED = 0.02, 0.1
_MIN_PER_ROW, _UNTOUCHED_FEW = 8, 1e-3  # stricter for short rows, which may differ little by chance
_CHANCE = 1e-6
_CHUNK_COUNTS = (2, 3, 4, 6, 8, 16)
_MAX_SHOWN = 8
_MASK_VALUE = -1e30
_MIN_MASKED, _MAX_MASKED_SHARE = 2, 0.6


def describe_region(difference: Array, values: Array) -> str:
    """For each axis, the range outside of which nothing differs."""
    descriptions = [_describe_axis(difference, values, axis) for axis in range(difference.ndim)]
    return "; ".join(filter(None, descriptions))


def describe_mask(a: Array, b: Array) -> str:
    """A mask (-inf, the lowest number, or zero) on one side only: a block or diagonals of the last two axes.

    Zeros are a mask only if the other numbers of each row are equal up to a factor, as after a softmax."""
    if a.ndim < 2 or min(a.shape[-2:]) < 2:
        return ""
    description = _describe_one_sided_mask(a <= _MASK_VALUE, b <= _MASK_VALUE)
    if description:
        return description
    description = _describe_one_sided_mask(a == 0, b == 0)
    return description if description and _are_rows_proportional(a, b) else ""


def _are_rows_proportional(a: Array, b: Array) -> bool:
    """Whether the numbers that neither side masks are equal in each row, up to a factor."""
    is_unmasked = (a != 0) & (b != 0) & (np.abs(a) < -_MASK_VALUE) & (np.abs(b) < -_MASK_VALUE)
    x, y = (np.where(is_unmasked, array, 0.0) for array in (a, b))
    square = (x * x).sum(axis=-1, keepdims=True)
    factor = (x * y).sum(axis=-1, keepdims=True) / np.where(square, square, 1)
    # A row of one number fits any factor.
    freedom = is_unmasked.sum() - np.count_nonzero(is_unmasked.any(axis=-1))
    error = np.linalg.norm(y - factor * x)
    return bool(freedom >= _MIN_PER_ROW and error <= _UNTOUCHED_FEW * np.linalg.norm(y))


def _describe_axis(difference: Array, values: Array, axis: int) -> str:
    other_axes = tuple(other for other in range(difference.ndim) if other != axis)
    norms, value_norms = (np.sqrt((array**2).sum(axis=other_axes)) for array in (difference, values))
    # Both absolute and relative norms must agree: the noise of large rows is no local difference.
    untouched = _UNTOUCHED if difference.size >= _MIN_PER_ROW * len(norms) else _UNTOUCHED_FEW
    relative = norms / np.where(value_norms, value_norms, value_norms.max() or 1)
    is_touched = [_touched_rows(norms, untouched), _touched_rows(relative, untouched)]
    if is_touched[0] is None or is_touched[1] is None or (is_touched[0] != is_touched[1]).any():
        return ""
    rows = np.flatnonzero(is_touched[0])
    if len(rows) == len(norms) or _may_be_chance(np.moveaxis(difference, axis, 0), is_touched[0], untouched):
        return ""
    return _describe_rows(rows, len(norms), axis)


def _may_be_chance(difference: Array, is_touched: Array, untouched: float) -> bool:
    """Whether the untouched numbers may be equal by chance, from the share of equal among the touched."""
    sizes = np.abs(difference)
    touched = sizes[is_touched]
    # Laplace's rule of succession, as a share of few numbers is uncertain.
    equal_share = (np.count_nonzero(touched <= untouched * sizes.max()) + 1) / (touched.size + 2)
    return bool(equal_share ** (sizes.size - touched.size) > _CHANCE)


def _touched_rows(norms: Array, untouched: float) -> Array | None:
    """Mask of the rows that differ; None if some are neither touched nor untouched."""
    worst = float(norms.max())
    is_touched = norms >= _TOUCHED * worst
    return is_touched if (is_touched | (norms <= untouched * worst)).all() else None


def _describe_rows(rows: Array, length: int, axis: int) -> str:
    first, last = int(rows[0]), int(rows[-1])
    if len(rows) == 1:
        return f"only row {first} of {length} along axis {axis}"
    if last - first + 1 > len(rows):
        if len(rows) > min(_MAX_SHOWN, length // 4):
            return ""
        return f"only rows {', '.join(map(str, rows))} of {length} along axis {axis}"
    span = f"{first} to {last} of {length} along axis {axis}{_describe_chunk(first, last, length)}"
    if last == length - 1:
        return f"only the tail: {span}"
    return f"only the head: {span}" if first == 0 else f"only {span}"


def _describe_chunk(first: int, last: int, length: int) -> str:
    """Which of several equal chunks it is, such as a shard; "" if it is none."""
    width = last - first + 1
    count = length // width
    is_chunk = count in _CHUNK_COUNTS and count * width == length and first % width == 0
    return f", part {first // width + 1} of {count}" if is_chunk else ""


def _describe_one_sided_mask(in_a: Array, in_b: Array) -> str:
    for name, is_masked in (("A", in_a & ~in_b), ("B", in_b & ~in_a)):
        masked_by_other = (in_b & ~in_a) if name == "A" else (in_a & ~in_b)
        if (
            masked_by_other.any()
            or np.count_nonzero(is_masked) < _MIN_MASKED
            or is_masked.mean() > _MAX_MASKED_SHARE
        ):
            continue
        planes = is_masked.reshape(-1, *is_masked.shape[-2:])
        plane = planes[0]
        if (planes == plane).all():
            description = _describe_plane(plane)
            if description:
                return f"{description} of the last two axes is masked in {name} only"
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
