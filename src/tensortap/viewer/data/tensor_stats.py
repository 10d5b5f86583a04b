"""Statistics of one tensor: value range, histogram, profile along an axis, largest elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensortap.kernels.decode import BLOCK_SIZE, decode, iterate_blocks
from tensortap.render.histogram import SCALES, bins_of_values
from tensortap.viewer.data.tensor import (
    Array,
    Grid,
    MappedTensor,
    ReadableTensor,
    TensorDifference,
    difference,
    to_real,
)
from tensortap.viewer.web.responses import TooLargeError

_MAX_EXACT = 1 << 24  # up to so many elements, all are read
_SAMPLE_SIZE = 1 << 21  # else so many are sampled
_SAMPLE_CHUNKS = 512  # in evenly spaced chunks
_BLOCK = 1 << 20
_PROFILE_POINTS = 1024
_MAX_ELEMENTS = 4096
_PROFILE_BYTES = 512 << 20


def sample_values(
    numbers: ReadableTensor | Grid, max_exact: int = _MAX_EXACT, sample: int = _SAMPLE_SIZE
) -> tuple[Array, bool]:
    """The values flattened, and whether they are all; of a large tensor, evenly spaced chunks."""
    read, size = _flat_reader(numbers)
    if size <= max_exact:
        return read(0, size), True
    length = max(1, sample // _SAMPLE_CHUNKS)
    starts = np.linspace(0, size - length, _SAMPLE_CHUNKS).astype(np.int64)
    return np.concatenate([read(int(start), int(start) + length) for start in starts]), False


def value_range(numbers: ReadableTensor | Grid) -> dict[str, Any]:
    """Extremes and quantiles of the finite values, for the colour scale."""
    sampled, is_exact = sample_values(numbers, _SAMPLE_SIZE // 2, _SAMPLE_SIZE // 4)
    finite = sampled[np.isfinite(sampled)]
    if not finite.size:
        return {
            **dict.fromkeys(("low", "high", "p01", "p1", "p50", "p99", "p999", "absmax")),
            "exact": is_exact,
        }
    shares = np.quantile(finite, [0.001, 0.01, 0.5, 0.99, 0.999])
    quantiles = dict(zip(("p01", "p1", "p50", "p99", "p999"), map(float, shares), strict=True))
    low, high = float(finite.min()), float(finite.max())
    return {"low": low, "high": high, **quantiles, "absmax": max(-low, high, 0.0), "exact": is_exact}


def histogram(numbers: ReadableTensor | Grid, bins: int, scale: str) -> dict[str, Any]:
    if scale not in SCALES or not 1 <= bins <= 1024:
        raise ValueError(
            f"a histogram has 1 to 1024 bins, and is {', '.join(SCALES)}; not {bins} and {scale!r}"
        )
    sampled, is_exact = sample_values(numbers)
    finite = sampled[np.isfinite(sampled)].astype(np.float64)
    fitted = bins_of_values(finite, bins, scale)
    return {
        "edges": np.zeros(0) if fitted is None else fitted.edges(),
        "counts": np.zeros(0, np.int64) if fitted is None else fitted.count_values(_split(finite)),
        "nan": int(np.isnan(sampled).sum()),
        "pos_inf": int(np.isposinf(sampled).sum()),
        "neg_inf": int(np.isneginf(sampled).sum()),
        "zero": int((finite == 0).sum()),
        "count": _flat_reader(numbers)[1],
        "looked": sampled.size,
        "exact": is_exact,
        "low": finite.min() if finite.size else None,
        "high": finite.max() if finite.size else None,
    }


def profile(numbers: MappedTensor | TensorDifference, axis: int) -> dict[str, Any]:
    """Mean, std, min and max per index along an axis; a long axis is grouped."""
    shape = numbers.shape
    if not 0 <= axis < len(shape):
        raise ValueError(f"there is no axis {axis}; the shape is {list(shape)}")
    if isinstance(numbers, TensorDifference):
        nbytes, operand_count = numbers.a.bits.nbytes + numbers.b.bits.nbytes, 2
    else:
        nbytes, operand_count = numbers.bits.nbytes, 1
    width = max(1, -(-shape[axis] // _PROFILE_POINTS))
    # The longest other axis is strided if the tensor is too large to read.
    stride = max(1, nbytes // (_PROFILE_BYTES * operand_count))
    rows = [_group_statistics(numbers, axis, first, width, stride) for first in range(0, shape[axis], width)]
    names = ("mean", "min", "max", "std", "nan")
    columns = {name: [row[column] for row in rows] for column, name in enumerate(names)}
    return {
        "axis": axis,
        "length": shape[axis],
        "at": list(range(0, shape[axis], width)),
        "width": width,
        **columns,
        "exact": stride == 1,
    }


def top_elements(numbers: ReadableTensor, count: int, by: str) -> list[tuple[int, float]]:
    """Flat index and value of the top elements; read in blocks to bound memory."""
    best: list[tuple[float, int, float]] = []
    for start, part in _iter_blocks(numbers):
        keys = _ranking_keys(part, by)
        candidates = np.flatnonzero(np.isfinite(keys) | (keys == np.inf))
        if len(candidates) > count:
            candidates = candidates[np.argpartition(-keys[candidates], count - 1)[:count]]
        best += [(float(keys[at]), start + int(at), float(part[at])) for at in candidates]
        best = sorted(best, key=lambda candidate: (-candidate[0], candidate[1]))[:count]
    return [(at, value) for _, at, value in best]


def parse_elements(tensor: MappedTensor, places: str) -> list[tuple[tuple[int, ...], int]]:
    """Parse `0,3,17;1,0,0` into indices and flat indices."""
    entries = [text for text in places.split(";") if text]
    if len(entries) > _MAX_ELEMENTS:
        raise TooLargeError(f"{len(entries)} elements are too many; {_MAX_ELEMENTS} are allowed")
    return [_parse_element(tensor.shape, entry) for entry in entries]


def format_number(value: float) -> str:
    """The shortest string that keeps single precision."""
    if not math.isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.9g}"


def _parse_element(shape: tuple[int, ...], text: str) -> tuple[tuple[int, ...], int]:
    coordinates = [coordinate.strip() for coordinate in text.split(",") if coordinate.strip()]
    if len(coordinates) != len(shape) or not all(coordinate.isdecimal() for coordinate in coordinates):
        raise ValueError(f"{text!r} is no place in the shape {list(shape)}")
    index = tuple(map(int, coordinates))
    if any(coordinate >= size for coordinate, size in zip(index, shape, strict=True)):
        raise ValueError(f"{list(index)} lies outside the shape {list(shape)}")
    return index, int(np.ravel_multi_index(index, shape)) if shape else 0


def _flat_reader(numbers: ReadableTensor | Grid) -> tuple[Any, int]:
    flat = getattr(numbers, "flat", None)
    if flat is not None:
        return flat, math.prod(numbers.shape)
    grid: Any = numbers
    width = max(grid.shape[1], 1)

    def read(start: int, stop: int) -> Array:
        rows = slice(start // width, -(-stop // width))
        part = grid.read(rows, slice(0, width)).reshape(-1)
        return np.asarray(part[start - rows.start * width :][: stop - start])

    return read, grid.shape[0] * grid.shape[1]


def _split(values: Array) -> Iterator[Array]:
    return (block for (block,) in iterate_blocks([values], BLOCK_SIZE))


def _iter_blocks(numbers: ReadableTensor) -> Iterator[tuple[int, Array]]:
    read, size = _flat_reader(numbers)
    for start in range(0, size, _BLOCK):
        yield start, read(start, min(start + _BLOCK, size))


def _ranking_keys(part: Array, by: str) -> Array:
    with np.errstate(all="ignore"):
        if by == "abs":
            # Non-finite values come first.
            return np.where(np.isnan(part), np.inf, np.abs(part))
        if by in ("max", "min"):
            return part if by == "max" else -part
        if by == "odd":
            return np.where(np.isfinite(part), -np.inf, 1.0)
    raise ValueError(f"by={by!r} is not one of abs, max, min, odd")


def _group_statistics(
    numbers: MappedTensor | TensorDifference, axis: int, start: int, width: int, stride: int
) -> tuple[Any, ...]:
    part = _read_group(numbers, axis, start, width, stride)
    finite = part[np.isfinite(part)].astype(np.float64)
    if not finite.size:
        return None, None, None, None, int(np.isnan(part).sum())
    ends = finite.min(), finite.max()
    return finite.mean(), *ends, finite.std(), int(np.isnan(part).sum())


def _read_group(
    numbers: MappedTensor | TensorDifference, axis: int, start: int, width: int, stride: int
) -> Array:
    index: list[slice] = [slice(None)] * len(numbers.shape)
    index[axis] = slice(start, start + width)
    other_axes = [(size, at) for at, size in enumerate(numbers.shape) if at != axis]
    if other_axes:
        index[max(other_axes)[1]] = slice(None, None, stride)
    tensors = [numbers.a, numbers.b] if isinstance(numbers, TensorDifference) else [numbers]
    parts = [(np.ascontiguousarray(tensor.bits[tuple(index)]), tensor.dtype) for tensor in tensors]
    return difference(parts[0], parts[1], "abs") if len(parts) == 2 else to_real(decode(*parts[0]))
