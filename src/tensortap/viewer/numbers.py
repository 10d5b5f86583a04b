"""The numbers of one tensor, or of what two differ by, read piece by piece where they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tensortap.comparison.operands import Operand
from tensortap.kernels.numbers import decode, dtype_info
from tensortap.kernels.ulps import are_counted, distances
from tensortap.viewer.problems import TooLargeError, NotFoundError

Array = np.ndarray[Any, Any]
AxisIndex = slice | Array
DifferenceMode = Literal["value", "abs", "rel", "ulp", "sign"]
_MOST_TO_REDUCE = 256 << 20
_REDUCED: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "std": np.std,
    "absmax": lambda part, axis: np.abs(part).max(axis=axis),
}


class Grid(Protocol):
    """Numbers in rows and columns. `cost` is what reading an element of a row takes, in bytes."""

    shape: tuple[int, int]
    cost: int
    is_turned: bool  # the elements of a column lie closer than those of a row
    is_wide: bool  # single precision would lose digits

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array: ...


class ReadableTensor(Protocol):
    shape: tuple[int, ...]
    is_wide: bool

    def flat(self, start: int, stop: int) -> Array:
        """The numbers from one place on to another, in the order of memory."""

    def grid(self, axes: str, index: str) -> Grid: ...


class SliceSpec(NamedTuple):
    """A way to look at an array: an index for each axis, and the shown axes as they then stand."""

    words: tuple[int | str, ...]
    shown: tuple[int, ...]


class MappedTensor:
    """An array of the storage type of its number type, mapped from its file."""

    def __init__(self, held: Operand) -> None:
        self.bits, self.dtype = held.bits, held.dtype
        self.shape = held.bits.shape
        self.is_wide = _is_wide(held.dtype)

    def flat(self, start: int, stop: int) -> Array:
        return to_real(decode(np.ascontiguousarray(self.bits.reshape(-1)[start:stop]), self.dtype))

    def grid(self, axes: str, index: str) -> TensorGrid:
        place = parse_slice(self.shape, axes, index)
        if any(isinstance(word, str) and word != ":" for word in place.words):
            return self._reduced(place)
        picked = self.bits[_picking(place)]
        return TensorGrid(_turned(picked, place.shown), self.dtype)

    def _reduced(self, place: SliceSpec) -> TensorGrid:
        picked = self.bits[_picking(place)]
        nbytes = max(picked.nbytes, 4 * picked.size)  # small numbers become single precision
        if nbytes > _MOST_TO_REDUCE:
            raise TooLargeError(
                f"to reduce these axes {nbytes >> 20} MB would be held, and {_MOST_TO_REDUCE >> 20} "
                "are allowed; fix more axes"
            )
        part = to_real(decode(np.ascontiguousarray(picked), self.dtype))
        words = [word for word in place.words if isinstance(word, str)]
        with np.errstate(all="ignore"):
            for axis in reversed(range(len(words))):
                if words[axis] != ":":
                    part = _REDUCED[words[axis]](part, axis=axis)
        part = np.asarray(part, np.float64 if part.dtype.itemsize > 4 else np.float32)
        return TensorGrid(_turned(part, place.shown), str(part.dtype))


class TensorGrid:
    """Rows and columns of one array."""

    def __init__(self, bits: Array, dtype: str) -> None:
        self._bits, self._dtype = bits, dtype
        self.shape = (bits.shape[0], bits.shape[1])
        # Beyond a page of memory, a larger step reads no more.
        steps = [min(abs(step), 4096) for step in bits.strides]
        self.is_turned = self.shape[0] > 1 and self.shape[1] > 1 and steps[0] < steps[1]
        self.cost = max(steps[1], bits.itemsize)
        self.is_wide = _is_wide(dtype)

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array:
        return to_real(decode(np.ascontiguousarray(self._bits[rows][:, columns]), self._dtype))

    def pieces(self, rows: AxisIndex, columns: AxisIndex) -> tuple[Array, str]:
        return np.ascontiguousarray(self._bits[rows][:, columns]), self._dtype

    @property
    def turned(self) -> TensorGrid:
        return TensorGrid(self._bits.T, self._dtype)


class TensorDifference:
    """What B differs from A by: `how` says in which words."""

    def __init__(self, a: MappedTensor, b: MappedTensor, how: DifferenceMode) -> None:
        if a.shape != b.shape:
            raise NotFoundError(
                f"there is no difference to show: A has the shape {list(a.shape)}, B {list(b.shape)}"
            )
        self.a, self.b, self._how = a, b, how
        self.shape, self.is_wide = a.shape, a.is_wide or b.is_wide

    def flat(self, start: int, stop: int) -> Array:
        pieces = [
            (np.ascontiguousarray(one.bits.reshape(-1)[start:stop]), one.dtype) for one in (self.a, self.b)
        ]
        return difference(pieces[0], pieces[1], self._how)

    def grid(self, axes: str, index: str) -> DifferenceGrid:
        return DifferenceGrid(self.a.grid(axes, index), self.b.grid(axes, index), self._how)


class DifferenceGrid:
    def __init__(self, a: TensorGrid, b: TensorGrid, how: DifferenceMode) -> None:
        self._a, self._b, self._how = a, b, how
        self.shape, self.cost = a.shape, a.cost + b.cost
        self.is_turned, self.is_wide = a.is_turned, a.is_wide or b.is_wide

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array:
        return difference(self._a.pieces(rows, columns), self._b.pieces(rows, columns), self._how)

    @property
    def turned(self) -> DifferenceGrid:
        return DifferenceGrid(self._a.turned, self._b.turned, self._how)


def difference(a: tuple[Array, str], b: tuple[Array, str], how: DifferenceMode) -> Array:
    """Equal infinities and two NaN are no difference, as nowhere else."""
    x, y = (to_real(decode(*one)).astype(np.float64) for one in (a, b))
    with np.errstate(all="ignore"):
        gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, y - x)
        if how == "abs":
            return np.abs(gap)
        if how == "rel":
            largest = np.maximum(np.abs(x), np.abs(y))
            return np.abs(np.where(largest > 0, gap / largest, 0.0))
        if how == "sign":
            return np.sign(gap)
        if how == "ulp":
            return _ulps(a, b, gap)
    return gap


def parse_slice(shape: tuple[int, ...], axes: str, index: str) -> SliceSpec:
    """Read `axes=1,2` and `index=0,:,:,mean`; what is not said shows the last two axes."""
    shown = _axes(shape, axes, index)
    words = _words(shape, index, shown)
    left = [axis for axis, word in enumerate(words) if word == ":"]
    return SliceSpec(words, tuple(left.index(axis) for axis in shown))


def to_real(values: Array) -> Array:
    """Numbers to draw: halves and integers as floats, complex ones by their absolute value."""
    if values.dtype.kind == "c":
        values = np.abs(values.astype(np.complex128))
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values
    is_small = values.dtype.kind == "b" or values.dtype.itemsize <= 2
    return values.astype(np.float32 if is_small else np.float64)


def _axes(shape: tuple[int, ...], axes: str, index: str) -> tuple[int, ...]:
    if axes:
        shown = tuple(_axis(shape, word) for word in axes.split(","))
        if not 1 <= len(shown) <= 2 or len(set(shown)) < len(shown):
            raise ValueError(f"axes={axes!r} must name one or two different axes")
        return shown
    if index:
        return tuple(axis for axis, word in enumerate(index.split(",")) if word.strip() == ":")[:2]
    return tuple(range(len(shape)))[-2:]


def _axis(shape: tuple[int, ...], word: str) -> int:
    if not word.strip().isdecimal() or int(word) >= len(shape):
        raise ValueError(f"there is no axis {word!r}; the shape is {list(shape)}, and axes count from 0")
    return int(word)


def _words(shape: tuple[int, ...], index: str, shown: tuple[int, ...]) -> tuple[int | str, ...]:
    given = [word.strip() for word in index.split(",")] if index else ["0"] * len(shape)
    if len(given) != len(shape):
        raise ValueError(
            f"index={index!r} has {len(given)} words; the shape {list(shape)} has {len(shape)} axes"
        )
    return tuple(":" if axis in shown else _word(word, shape, axis) for axis, word in enumerate(given))


def _word(word: str, shape: tuple[int, ...], axis: int) -> int | str:
    if word in _REDUCED:
        return word
    if word == ":":  # shown elsewhere, or not at all
        return 0
    if not word.lstrip("-").isdecimal() or not -shape[axis] <= int(word) < shape[axis]:
        raise ValueError(f"axis {axis} has the size {shape[axis]}, so there is no {word!r} in it")
    return int(word)


def _picking(place: SliceSpec) -> tuple[int | slice, ...]:
    return tuple(word if isinstance(word, int) else slice(None) for word in place.words)


def _turned(picked: Array, shown: tuple[int, ...]) -> Array:
    if picked.ndim == 2:
        return picked if shown == (0, 1) else picked.T
    return picked.reshape(1, -1) if picked.ndim < 2 else picked.reshape(prod(picked.shape[:-1]), -1)


def _is_wide(dtype: str) -> bool:
    known = dtype_info(dtype)
    return known.itemsize > (8 if known.family == "complex" else 4) or dtype in ("int32", "uint32")


def _ulps(a: tuple[Array, str], b: tuple[Array, str], gap: Array) -> Array:
    if not are_counted(a[1], b[1]):
        return np.full(gap.shape, np.nan)
    found = distances(a[0], b[0], a[1]).astype(np.float64)
    return np.where(np.isfinite(gap) & (gap != 0), found, np.abs(gap))
