"""What is left over when a value is cut to what both sides have: padding, or values that one side lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensortap.comparison.glimpse import ArrayOp
from tensortap.kernels.decode import Array

_HUGE = 1e30  # beyond it, a number stands for infinity


def is_padding(ops: Sequence[ArrayOp], array: Array, error: float = 0.0) -> bool:
    """Whether all that these cuts leave out holds nothing: zeros, infinities, or the same again and again
    that the rest does not have. `error` is what the rest differs by: so little is zero, too."""
    return all(_is_empty(cropped, kept, error) for cropped, kept in _cropped_parts(ops, array))


def _cropped_parts(ops: Sequence[ArrayOp], array: Array) -> Iterator[tuple[Array, Array]]:
    """What each cut leaves out, and what it keeps."""
    for _, axis, start, stop in ops:
        before = (slice(None),) * axis
        kept = array[(*before, slice(start, stop))]
        yield from (
            (cropped, kept)
            for cropped in (array[(*before, slice(0, start))], array[(*before, slice(stop, None))])
        )
        array = kept


def _is_empty(cropped: Array, kept: Array, error: float) -> bool:
    if not cropped.size or not cropped.any() or _are_infinite(cropped):
        return True
    if error and _rms(cropped) <= 2 * error * _rms(kept):
        return True
    first = cropped.flat[0]
    if (cropped == first).all():
        return cropped.size > 1 and not (kept == first).any()
    return _is_repeated_row(cropped, kept)


def _is_repeated_row(cropped: Array, kept: Array) -> bool:
    """What a layer makes of zeros: its bias, in every row."""
    if cropped.ndim < 2 or cropped.shape[-1] != kept.shape[-1]:
        return False
    rows, kept_rows = (array.reshape(-1, array.shape[-1]) for array in (cropped, kept))
    is_same = len(rows) > 1 and bool((rows == rows[0]).all())
    return is_same and not (kept_rows == rows[0]).all(axis=1).any()


def _are_infinite(numbers: Array) -> bool:
    return bool((~(np.abs(numbers) < _HUGE)).all()) if numbers.dtype.kind == "f" else False


def _rms(numbers: Array) -> float:
    """Of a usual number among them; an infinity is none."""
    wide = numbers.astype(np.float64)
    usual = wide[np.abs(wide) < _HUGE]
    return float(np.sqrt(np.mean(usual**2))) if usual.size == wide.size and usual.size else 0.0
