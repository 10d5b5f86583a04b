"""What is said of the numbers of one tensor: range, histogram, profile along an axis, the largest, some."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensortap.kernels.numbers import decode
from tensortap.viewer.numbers import TensorDifference, Array, Grid, ReadableTensor, MappedTensor, difference, to_real
from tensortap.viewer.problems import TooLargeError

_EXACT = 1 << 24  # elements that are all looked at
_SAMPLE = 1 << 21  # of more, so many
_PIECES = 512  # that lie evenly
_BLOCK = 1 << 20
_POINTS = 1024
_MOST_ELEMENTS = 4096
_PROFILE_BYTES = 512 << 20
SCALES = ("linear", "log", "symlog")


def sample_values(numbers: ReadableTensor | Grid, most: int = _EXACT, sample: int = _SAMPLE) -> tuple[Array, bool]:
    """The numbers in one row, all or a sample that lies evenly, and whether they are all."""
    read, size = _reader(numbers)
    if size <= most:
        return read(0, size), True
    length = max(1, sample // _PIECES)
    starts = np.linspace(0, size - length, _PIECES).astype(np.int64)
    return np.concatenate([read(int(start), int(start) + length) for start in starts]), False


def value_range(numbers: ReadableTensor | Grid) -> dict[str, Any]:
    """Of the finite numbers, for a scale of colours."""
    found, is_exact = sample_values(numbers, _SAMPLE // 2, _SAMPLE // 4)
    finite = found[np.isfinite(found)]
    if not finite.size:
        return {
            **dict.fromkeys(("low", "high", "p01", "p1", "p50", "p99", "p999", "absmax")),
            "exact": is_exact,
        }
    shares = np.quantile(finite, [0.001, 0.01, 0.5, 0.99, 0.999])
    named = dict(zip(("p01", "p1", "p50", "p99", "p999"), map(float, shares), strict=True))
    low, high = float(finite.min()), float(finite.max())
    return {"low": low, "high": high, **named, "absmax": max(-low, high, 0.0), "exact": is_exact}


def histogram(numbers: ReadableTensor | Grid, bins: int, scale: str) -> dict[str, Any]:
    if scale not in SCALES or not 1 <= bins <= 1024:
        raise ValueError(
            f"a histogram has 1 to 1024 bins, and is {', '.join(SCALES)}; not {bins} and {scale!r}"
        )
    found, is_exact = sample_values(numbers)
    finite = found[np.isfinite(found)].astype(np.float64)
    edges, shown = _edges(finite, bins, scale)
    counts = np.histogram(shown, edges)[0] if len(edges) > 1 else np.zeros(0, np.int64)
    return {
        "edges": edges,
        "counts": counts,
        "nan": int(np.isnan(found).sum()),
        "pos_inf": int(np.isposinf(found).sum()),
        "neg_inf": int(np.isneginf(found).sum()),
        "zero": int((finite == 0).sum()),
        "count": _reader(numbers)[1],
        "looked": found.size,
        "exact": is_exact,
        "low": finite.min() if finite.size else None,
        "high": finite.max() if finite.size else None,
    }


def profile(numbers: MappedTensor | TensorDifference, axis: int) -> dict[str, Any]:
    """Mean, spread and ends for each place along an axis, or for groups of places of a long one."""
    shape = numbers.shape
    if not 0 <= axis < len(shape):
        raise ValueError(f"there is no axis {axis}; the shape is {list(shape)}")
    if isinstance(numbers, TensorDifference):
        both, wide = numbers.a.bits.nbytes + numbers.b.bits.nbytes, 2
    else:
        both, wide = numbers.bits.nbytes, 1
    width = max(1, -(-shape[axis] // _POINTS))
    # Other axes are thinned where the whole would be too much to read.
    thin = max(1, both // (_PROFILE_BYTES * wide))
    rows = [_of_group(numbers, axis, start, width, thin) for start in range(0, shape[axis], width)]
    names = ("mean", "min", "max", "std", "nan")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return {
        "axis": axis,
        "length": shape[axis],
        "at": list(range(0, shape[axis], width)),
        "width": width,
        **columns,
        "exact": thin == 1,
    }


def top_elements(numbers: ReadableTensor, count: int, by: str) -> list[tuple[int, float]]:
    """Places in the order of memory, and their values; block by block, so that nothing large is held."""
    best: list[tuple[float, int, float]] = []
    for start, part in _walk(numbers):
        keys = _keys(part, by)
        places = np.flatnonzero(np.isfinite(keys) | (keys == np.inf))
        if len(places) > count:
            places = places[np.argpartition(-keys[places], count - 1)[:count]]
        best += [(float(keys[at]), start + int(at), float(part[at])) for at in places]
        best = sorted(best, key=lambda one: (-one[0], one[1]))[:count]
    return [(at, value) for _, at, value in best]


def parse_elements(held: MappedTensor, places: str) -> list[tuple[tuple[int, ...], int]]:
    """Read `0,3,17;1,0,0`: each place, and its number in the order of memory."""
    texts = [text for text in places.split(";") if text]
    if len(texts) > _MOST_ELEMENTS:
        raise TooLargeError(f"{len(texts)} elements are too many; {_MOST_ELEMENTS} are allowed")
    return [_element(held.shape, text) for text in texts]


def format_number(value: float) -> str:
    """A number for eyes, as short as it can be without loss in single precision."""
    if not math.isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.9g}"


def _element(shape: tuple[int, ...], text: str) -> tuple[tuple[int, ...], int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) != len(shape) or not all(word.isdecimal() for word in words):
        raise ValueError(f"{text!r} is no place in the shape {list(shape)}")
    place = tuple(map(int, words))
    if any(at >= size for at, size in zip(place, shape, strict=True)):
        raise ValueError(f"{list(place)} lies outside the shape {list(shape)}")
    return place, int(np.ravel_multi_index(place, shape)) if shape else 0


def _reader(numbers: ReadableTensor | Grid) -> tuple[Any, int]:
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


def _walk(numbers: ReadableTensor) -> Iterator[tuple[int, Array]]:
    read, size = _reader(numbers)
    for start in range(0, size, _BLOCK):
        yield start, read(start, min(start + _BLOCK, size))


def _keys(part: Array, by: str) -> Array:
    with np.errstate(all="ignore"):
        if by == "abs":
            # A number that is not finite is what one looks for first.
            return np.where(np.isnan(part), np.inf, np.abs(part))
        if by in ("max", "min"):
            return part if by == "max" else -part
        if by == "odd":
            return np.where(np.isfinite(part), -np.inf, 1.0)
    raise ValueError(f"by={by!r} is not one of abs, max, min, odd")


def _of_group(numbers: MappedTensor | TensorDifference, axis: int, start: int, width: int, thin: int) -> tuple[Any, ...]:
    part = _group(numbers, axis, start, width, thin)
    finite = part[np.isfinite(part)].astype(np.float64)
    if not finite.size:
        return None, None, None, None, int(np.isnan(part).sum())
    ends = finite.min(), finite.max()
    return finite.mean(), *ends, finite.std(), int(np.isnan(part).sum())


def _group(numbers: MappedTensor | TensorDifference, axis: int, start: int, width: int, thin: int) -> Array:
    index: list[slice] = [slice(None)] * len(numbers.shape)
    index[axis] = slice(start, start + width)
    others = [(size, at) for at, size in enumerate(numbers.shape) if at != axis]
    if others:
        index[max(others)[1]] = slice(None, None, thin)
    both = [numbers.a, numbers.b] if isinstance(numbers, TensorDifference) else [numbers]
    parts = [(np.ascontiguousarray(one.bits[tuple(index)]), one.dtype) for one in both]
    return difference(parts[0], parts[1], "abs") if len(parts) == 2 else to_real(decode(*parts[0]))


def _edges(finite: Array, bins: int, scale: str) -> tuple[Array, Array]:
    """Ends of the bins, and the numbers as they fall into them."""
    if not finite.size:
        return np.zeros(0), finite
    if scale == "linear":
        low, high = float(finite.min()), float(finite.max())
        return _linear(low, high, bins), finite
    sizes = np.abs(finite[finite != 0])
    if not sizes.size:
        return _linear(0.0, 0.0, bins), finite
    low, high = float(sizes.min()), float(sizes.max())
    if scale == "log":
        return _powers(low, high, bins), sizes
    half = _powers(max(low, high * 1e-12), high, max(1, bins // 2))
    return np.concatenate([-half[::-1], half]), finite


def _linear(low: float, high: float, bins: int) -> Array:
    if low == high:
        gap = abs(low) * 1e-3 or 1e-3
        low, high = low - gap, high + gap
    shares = np.linspace(0, 1, bins + 1)
    edges: Array = low * (1 - shares) + high * shares  # whose width may be more than a number can hold
    return edges


def _powers(low: float, high: float, bins: int) -> Array:
    if low == high:
        low, high = low * 0.999, high * 1.001
    edges: Array = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high
    return edges
