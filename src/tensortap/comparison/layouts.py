"""Two arrays that hold the same numbers in another arrangement: equal up to what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np

from tensortap.comparison import orders
from tensortap.kernels.numbers import Array

Step = tuple[
    Any, ...
]  # ("reshape", shape), ("transpose", axes), ("take", axis, rows), ("cut", axis, from, to)
Shape = tuple[int, ...]
# So much of the whole may remain, and the next best must leave this many times more.
_EQUAL, _MARGIN, _EXACT = 0.1, 3.0, 1e-12
_FEW = 8  # numbers: fewer fit by chance
_MOST_AXES = 5
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """What makes two arrays comparable: steps for each side, and what to call them."""

    words: str
    a: tuple[Step, ...] = ()
    b: tuple[Step, ...] = ()
    is_ordinary: bool = True  # False: as likely a fault as a layout


@dataclass(frozen=True, slots=True)
class Found:
    """What two arrays are equal up to; several where that is not settled, none where nothing fits."""

    layouts: tuple[Layout, ...] = ()
    error: float = 0.0

    @property
    def layout(self) -> Layout | None:
        return self.layouts[0] if len(self.layouts) == 1 else None

    def __str__(self) -> str:
        if len(self.layouts) > 1:
            return f"ambiguous: equal up to {' or '.join(one.words for one in self.layouts)}"
        return f"equal up to {self.layouts[0].words}" if self.layouts else "no layout explains it"


def layout_of(a: Array, b: Array) -> Found:
    """In what arrangement b holds the numbers of a; nothing where they are as different in any, and nothing
    where they fit as they are."""
    if min(a.size, b.size) < _FEW or _is_constant(a) or _is_constant(b):
        return Found()
    if a.shape == b.shape and _distance(a, b) <= _EQUAL:
        return Found()
    fitting = list(_fitting(a, b))
    if not fitting:
        return Found()
    best = min(error for _, error, _ in fitting)
    near = [one for one in fitting if one[1] <= _MARGIN * best + _EXACT]
    first, error, array = near[0]
    # What changes the other side instead makes the same pair of numbers.
    alike = [(one, other) for one, _, other in near[1:] if bool(one.b) == bool(first.b)]
    ties = [one for one, other in alike if _would_differ(array, other, error)]
    return Found((first, *ties), error)


def applied(steps: Sequence[Step], array: Array) -> Array:
    """The array after these steps; only `take` copies."""
    for verb, *what in steps:
        if verb == "reshape":
            array = array.reshape(what[0])
        elif verb == "transpose":
            array = array.transpose(what[0])
        elif verb == "take":
            array = np.take(array, what[1], axis=what[0])
        else:
            array = array[(slice(None),) * what[0] + (slice(what[1], what[2]),)]
    return array


def _fitting(a: Array, b: Array) -> Iterator[tuple[Layout, float, Array]]:
    """The layouts that leave little, and what each makes of the side that is changed."""
    for layout in _layouts(a.shape, b.shape):
        # A few numbers tell most of them apart.
        if not _may_fit(layout, a, b):
            continue
        one, other = applied(layout.a, a), applied(layout.b, b)
        error = _distance(one, other)
        if error <= _EQUAL:
            yield layout, error, other if layout.b else one


def _may_fit(layout: Layout, a: Array, b: Array) -> bool:
    if layout.b and layout.b[0][0] == "take":
        axis = layout.b[0][1]
        a, b = _thinned(a, axis), _thinned(b, axis)
    one, other = applied(layout.a, a), applied(layout.b, b)
    return _distance(_sample(one), _sample(other)) <= 2 * _EQUAL


def _thinned(array: Array, kept: int) -> Array:
    """A few of every axis but one."""
    return array[tuple(slice(None) if axis == kept else slice(0, 4) for axis in range(array.ndim))]


def _layouts(a: Shape, b: Shape) -> Iterator[Layout]:
    """Every arrangement that the shapes allow, the simplest first."""
    if np.prod(a) != np.prod(b):
        yield from _padded(a, b)
        return
    if a == b:
        yield from _reordered(a)
    else:
        yield Layout("its shape", b=(("reshape", a),))
    yield from _transposed(a, b)
    if a != b:
        yield from _transposed_and_reshaped(a, b)


def _transposed(a: Shape, b: Shape) -> Iterator[Layout]:
    if len(a) != len(b) or len(a) > _MOST_AXES:
        return
    for axes in permutations(range(len(b))):
        if axes != tuple(range(len(b))) and tuple(b[axis] for axis in axes) == a:
            yield Layout(_axes(axes), b=(("transpose", axes),), is_ordinary=a != b)


def _transposed_and_reshaped(a: Shape, b: Shape) -> Iterator[Layout]:
    """Such as [batch, tokens, width] against [batch, heads, tokens, width of a head]."""
    for shape, other, side in ((b, a, "b"), (a, b, "a")):
        if len(shape) > _MOST_AXES:
            continue
        for axes in permutations(range(len(shape))):
            if axes != tuple(range(len(shape))) and tuple(shape[axis] for axis in axes) != other:
                steps: tuple[Step, ...] = (("transpose", axes), ("reshape", other))
                words = f"{_axes(axes)} and its shape"
                yield Layout(words, b=steps) if side == "b" else Layout(words, a=steps)


def _padded(a: Shape, b: Shape) -> Iterator[Layout]:
    """One side has more rows, before or behind the others."""
    if len(a) != len(b):
        return
    differing = [axis for axis in range(len(a)) if a[axis] != b[axis]]
    larger = {a[axis] > b[axis] for axis in differing}
    if len(larger) > 1 or len(differing) > 2:
        return
    is_a = larger == {True}
    for ends in product((True, False), repeat=len(differing)):
        steps: list[Step] = []
        words = []
        for axis, is_end in zip(differing, ends, strict=True):
            less, more = sorted((a[axis], b[axis]))
            steps.append(("cut", axis, *((0, less) if is_end else (more - less, more))))
            words.append(f"{more - less} of axis {axis} at its {'end' if is_end else 'beginning'}")
        told = f"padding in {'A' if is_a else 'B'}: {', '.join(words)}"
        yield Layout(told, a=tuple(steps)) if is_a else Layout(told, b=tuple(steps))


def _reordered(shape: Shape) -> Iterator[Layout]:
    """Along the width of activations, or the first axis of weights: what models are known to differ in."""
    for axis in dict.fromkeys((len(shape) - 1, 0)):
        for words, rows in orders.known_orders(shape[axis]):
            # Two blocks that changed places are as likely two heads that were mixed up.
            is_ordinary = int(np.count_nonzero(np.diff(rows) != 1)) > 3
            yield Layout(f"{words}, along axis {axis}", b=(("take", axis, rows),), is_ordinary=is_ordinary)


def _axes(axes: Sequence[int]) -> str:
    if sorted(axes) == list(axes[::-1]) and len(axes) == 2:
        return "a transposition"
    return f"the order of axes {list(axes)}"


def _would_differ(one: Array, other: Array, error: float) -> bool:
    """Two layouts that make the same of the numbers are one."""
    return one.shape != other.shape or _distance(one, other) > error + _EXACT


def _sample(array: Array) -> Array:
    """The first and the last axis, as far as there are not too many numbers; a few of the others."""
    wanted = tuple(
        slice(None) if array.ndim == 1 or axis in (0, array.ndim - 1) else slice(0, _SAMPLED)
        for axis in range(array.ndim)
    )
    some = array[wanted]
    return some if some.size <= 1 << 16 or some.ndim < 2 else some[:: -(-some.size // (1 << 16))]


def _distance(one: Array, other: Array) -> float:
    x, y = one.astype(np.float64), other.astype(np.float64)
    is_odd = ~(np.isfinite(x) & np.isfinite(y))
    if is_odd.any():
        if not np.array_equal(x[is_odd], y[is_odd], equal_nan=True):
            return float("inf")
        x, y = np.where(is_odd, 0, x), np.where(is_odd, 0, y)
    apart = float(np.linalg.norm(x - y))
    return apart / max(float(np.linalg.norm(x)), float(np.linalg.norm(y))) if apart else 0.0


def _is_constant(array: Array) -> bool:
    flat = array.reshape(-1)
    return bool((flat == flat[0]).all())
