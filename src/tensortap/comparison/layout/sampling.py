"""Cheap tests on sampled elements: could two arrays be equal in some layout?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tensortap.kernels.decode import Array, Shape

# ("reshape", shape), ("transpose", axes), ("take", axis, rows), ("cut", axis, from, to)
ArrayOp = tuple[Any, ...]
_SAMPLE_SIZE = 512
HUGE = 1e30  # larger numbers count as infinite
_BLOCK_SIZE = 1 << 17  # numbers converted to float64 at once
_PART_SAMPLE_SIZE = 256


class SampledFit:
    """Two arrays, to test whether a layout could make them equal.

    A random sample estimates the error of a layout; the largest numbers are tested too, since a few
    outliers may make up most of the norm and a sample rarely contains them.
    """

    def __init__(self, a: Array, b: Array, size: float | None = None) -> None:
        self._a, self._b, self._known_norm = a, b, size

    def could_match(self, a_steps: Sequence[ArrayOp], b_steps: Sequence[ArrayOp], most: float) -> bool:
        """False if the relative error certainly exceeds `most`; almost never False if it does not."""
        shape = _shape_after(a_steps, self._a.shape)
        if shape != _shape_after(b_steps, self._b.shape):
            return False
        size = math.prod(shape)
        sample = np.unravel_index(np.random.default_rng(0).integers(0, size, _SAMPLE_SIZE), shape)
        error = self._sampled_error(sample, a_steps, b_steps) * math.sqrt(size / _SAMPLE_SIZE)
        if error > 2 * most * self._norm:
            return False
        large = self._largest_of_b if a_steps else self._largest_of_a
        is_known = not (a_steps and b_steps)
        return not is_known or self._sampled_error(large, a_steps, b_steps) <= most * self._norm

    @cached_property
    def _norm(self) -> float:
        return (
            max(finite_norm(self._a), finite_norm(self._b)) if self._known_norm is None else self._known_norm
        )

    @cached_property
    def _largest_of_a(self) -> tuple[Array, ...]:
        return _largest_indices(self._a)

    @cached_property
    def _largest_of_b(self) -> tuple[Array, ...]:
        return _largest_indices(self._b)

    def _sampled_error(
        self, indices: tuple[Array, ...], a_steps: Sequence[ArrayOp], b_steps: Sequence[ArrayOp]
    ) -> float:
        a = self._a[_indices_before(a_steps, self._a.shape, indices)].astype(np.float64)
        b = self._b[_indices_before(b_steps, self._b.shape, indices)].astype(np.float64)
        return absolute_distance(a, b)


def relative_distance(a: Array, b: Array) -> float:
    """|a - b| relative to the larger norm, blockwise; infinite if non-finite values differ."""
    square, sizes = 0.0, [0.0, 0.0]
    for x, y in _paired_blocks(a, b):
        apart, x_size, y_size = _distance_and_norms(x.astype(np.float64), y.astype(np.float64))
        if math.isinf(apart):
            return math.inf
        square += apart**2
        sizes = [sizes[0] + x_size**2, sizes[1] + y_size**2]
    return math.sqrt(square / max(sizes)) if square else 0.0


def absolute_distance(a: Array, b: Array) -> float:
    """|a - b| of two small arrays."""
    return _distance_and_norms(a, b)[0]


def finite_norm(array: Array) -> float:
    """The norm without what counts as infinite."""
    square = 0.0
    for block, _ in _paired_blocks(array, array):
        wide = block.astype(np.float64)
        square += float(np.square(wide, where=np.abs(wide) < HUGE, out=np.zeros_like(wide)).sum())
    return math.sqrt(square)


def _distance_and_norms(x: Array, y: Array) -> tuple[float, float, float]:
    is_odd = ~((np.abs(x) < HUGE) & (np.abs(y) < HUGE))
    if is_odd.any():
        if not np.array_equal(_to_infinities(x[is_odd]), _to_infinities(y[is_odd]), equal_nan=True):
            return math.inf, 0.0, 0.0
        x, y = np.where(is_odd, 0, x), np.where(is_odd, 0, y)
    return float(np.linalg.norm(x - y)), float(np.linalg.norm(x)), float(np.linalg.norm(y))


def _to_infinities(numbers: Array) -> Array:
    """Replace what counts as infinite by signed infinities."""
    with np.errstate(invalid="ignore"):  # of 0 * inf, which is not selected
        return np.where(np.abs(numbers) < HUGE, numbers, np.sign(numbers) * np.inf)


def _paired_blocks(a: Array, b: Array) -> Any:
    """Cache-sized blocks of both arrays, as views."""
    if a.size <= _BLOCK_SIZE or a.ndim == 0:
        yield a, b
    elif a.shape[0] == 1:
        yield from _paired_blocks(a[0], b[0])
    else:
        rows = max(1, _BLOCK_SIZE * a.shape[0] // a.size)
        for start in range(0, a.shape[0], rows):
            some = slice(start, start + rows)
            yield from _paired_blocks(a[some], b[some])


def _largest_indices(array: Array) -> tuple[Array, ...]:
    """The indices of the largest number in each of many segments."""
    size = np.abs(array.reshape(-1))
    flat = np.where(size < HUGE, size, 0)
    width = max(1, flat.size // _SAMPLE_SIZE)
    parts = flat[: flat.size // width * width].reshape(-1, width)
    positions = parts.argmax(axis=1) + width * np.arange(len(parts))
    return np.unravel_index(positions, array.shape)


def _shape_after(steps: Sequence[ArrayOp], shape: Shape) -> Shape:
    """The shape after these ops."""
    for verb, *arguments in steps:
        if verb == "reshape":
            fixed = [size for size in arguments[0] if size != -1]
            inferred = math.prod(shape) // math.prod(fixed)
            shape = tuple(inferred if size == -1 else size for size in arguments[0])
        elif verb == "transpose":
            shape = tuple(shape[axis] for axis in arguments[0])
        else:
            length = len(arguments[1]) if verb == "take" else arguments[2] - arguments[1]
            shape = (*shape[: arguments[0]], length, *shape[arguments[0] + 1 :])
    return shape


def _indices_before(steps: Sequence[ArrayOp], shape: Shape, indices: tuple[Array, ...]) -> tuple[Array, ...]:
    """Map indices into the result back through the ops."""
    shapes = [_shape_after(steps[:count], shape) for count in range(len(steps) + 1)]
    for (verb, *arguments), old, new in reversed(list(zip(steps, shapes, shapes[1:], strict=False))):
        if verb == "reshape":
            indices = np.unravel_index(np.ravel_multi_index(indices, new), old)
        elif verb == "transpose":
            indices = tuple(indices[arguments[0].index(axis)] for axis in range(len(old)))
        else:
            axis = arguments[0]
            position = (
                np.asarray(arguments[1])[indices[axis]] if verb == "take" else indices[axis] + arguments[1]
            )
            indices = (*indices[:axis], position, *indices[axis + 1 :])
    return indices


class SampledConcatenation:
    """A full array, to test which parts concatenate to it; each part at each offset is sampled once."""

    def __init__(self, full: Array, axis: int) -> None:
        self._full, self._axis = full, axis
        self._norm = finite_norm(full)
        self._squares: dict[tuple[int, int], float] = {}

    def could_match(self, parts: Sequence[Array], most: float) -> bool:
        """False if the parts almost certainly leave a relative error above `most`."""
        start, square = 0, 0.0
        for part in parts:
            square += self._squared_error(part, start)
            start += part.shape[self._axis]
        return math.sqrt(square) <= 2 * most * self._norm

    def _squared_error(self, part: Array, start: int) -> float:
        key = id(part), start
        if key not in self._squares:
            self._squares[key] = self._sample_squared_error(part, start)
        return self._squares[key]

    def _sample_squared_error(self, part: Array, start: int) -> float:
        sample = np.unravel_index(
            np.random.default_rng(0).integers(0, part.size, _PART_SAMPLE_SIZE), part.shape
        )
        positions = tuple(index + start if axis == self._axis else index for axis, index in enumerate(sample))
        gap = absolute_distance(self._full[positions].astype(np.float64), part[sample].astype(np.float64))
        return gap**2 * part.size / _PART_SAMPLE_SIZE
