"""Two arrays that hold the same numbers in another arrangement: equal up to what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np

from tensortap.comparison import orders
from tensortap.comparison.cutting import is_padding
from tensortap.comparison.glimpse import ArrayOp, SampledFit, Shape, relative_distance
from tensortap.comparison.plans import AlignmentNote
from tensortap.kernels.decode import Array

# So much of the whole may remain, and the next best must leave this many times more.
_MAX_ERROR, _MARGIN, _EPSILON = 0.1, 3.0, 1e-12
_MIN_NUMBERS = 8  # numbers: fewer fit by chance
_MAX_AXES = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """What makes two arrays comparable: steps for each side, and what to call them."""

    description: str
    a: tuple[ArrayOp, ...] = ()
    b: tuple[ArrayOp, ...] = ()
    is_conventional: bool = True  # False: as likely a fault as a layout
    gap: str = ""  # what only one side has, where that is more than padding

    def annotate(self, note: AlignmentNote) -> AlignmentNote:
        """The plan with this after it."""
        detail = f"equal but for {self.description}" if self.gap else f"equal up to {self.description}"
        return replace(note.extended(self.description, detail), gap=self.gap)


@dataclass(frozen=True, slots=True)
class LayoutMatch:
    """What two arrays are equal up to; several where that is not settled, none where nothing fits."""

    layouts: tuple[Layout, ...] = ()
    error: float = 0.0

    @property
    def layout(self) -> Layout | None:
        return self.layouts[0] if len(self.layouts) == 1 else None

    def __str__(self) -> str:
        if len(self.layouts) > 1:
            return f"ambiguous: equal up to {' or '.join(layout.description for layout in self.layouts)}"
        return f"equal up to {self.layouts[0].description}" if self.layouts else "no layout explains it"


def find_layout(a: Array, b: Array) -> LayoutMatch:
    """In what arrangement b holds the numbers of a; nothing where they are as different in any, and nothing
    where they fit as they are."""
    if min(a.size, b.size) < _MIN_NUMBERS or _is_constant(a) or _is_constant(b):
        return LayoutMatch()
    sampled = SampledFit(a, b)
    if (
        a.shape == b.shape
        and sampled.could_match((), (), _MAX_ERROR)
        and relative_distance(a, b) <= _MAX_ERROR
    ):
        return LayoutMatch()
    fitting = list(_fitting_layouts(a, b, sampled))
    if not fitting:
        return LayoutMatch()
    best = min(error for _, error, _ in fitting)
    best_fits = [fit for fit in fitting if fit[1] <= _MARGIN * best + _EPSILON]
    first, error, array = best_fits[0]
    # What changes the other side instead makes the same pair of numbers.
    alike = [(layout, reordered) for layout, _, reordered in best_fits[1:] if bool(layout.b) == bool(first.b)]
    ties = [layout for layout, reordered in alike if _would_differ(array, reordered, error)]
    return LayoutMatch((first, *ties), error)


def apply_ops(ops: Sequence[ArrayOp], array: Array) -> Array:
    """The array after these steps; only `take` copies."""
    for verb, *arguments in ops:
        if verb == "reshape":
            array = array.reshape(arguments[0])
        elif verb == "transpose":
            array = array.transpose(arguments[0])
        elif verb == "take":
            array = np.take(array, arguments[1], axis=arguments[0])
        else:
            array = array[(slice(None),) * arguments[0] + (slice(arguments[1], arguments[2]),)]
    return array


def _fitting_layouts(a: Array, b: Array, sampled: SampledFit) -> Iterator[tuple[Layout, float, Array]]:
    """The layouts that leave little, and what each makes of the side that is changed."""
    for layout in _candidate_layouts(a.shape, b.shape):
        if not sampled.could_match(layout.a, layout.b, _MAX_ERROR):
            continue
        a_reordered, b_reordered = apply_ops(layout.a, a), apply_ops(layout.b, b)
        error = relative_distance(a_reordered, b_reordered)
        if error <= _MAX_ERROR:
            yield _check_padding(layout, a, b, error), error, b_reordered if layout.b else a_reordered


def _check_padding(layout: Layout, a: Array, b: Array, error: float) -> Layout:
    """The same; what is cut away is padding, and then no gap, or it is said that one side has it alone."""
    if not layout.gap:
        return layout
    ops, array = (layout.a, a) if layout.a else (layout.b, b)
    if is_padding(ops, array, error):
        return replace(layout, gap="")
    return replace(layout, description=f"what {layout.gap}")


def _candidate_layouts(a: Shape, b: Shape) -> Iterator[Layout]:
    """Every arrangement that the shapes allow, the simplest first."""
    if np.prod(a) != np.prod(b):
        yield from _crops(a, b)
        return
    if a == b:
        yield from _known_reorderings(a)
    else:
        yield Layout("its shape", b=(("reshape", a),))
    yield from _transposes(a, b)
    if a != b:
        yield from _transposed_reshapes(a, b)


def _transposes(a: Shape, b: Shape) -> Iterator[Layout]:
    if len(a) != len(b) or len(a) > _MAX_AXES:
        return
    for axes in permutations(range(len(b))):
        if axes != tuple(range(len(b))) and tuple(b[axis] for axis in axes) == a:
            yield Layout(_describe_axes(axes), b=(("transpose", axes),), is_conventional=a != b)


def _transposed_reshapes(a: Shape, b: Shape) -> Iterator[Layout]:
    """Such as [batch, tokens, width] against [batch, heads, tokens, width of a head]."""
    for shape, target, side in ((b, a, "b"), (a, b, "a")):
        if len(shape) > _MAX_AXES:
            continue
        for axes in permutations(range(len(shape))):
            if axes != tuple(range(len(shape))) and tuple(shape[axis] for axis in axes) != target:
                ops: tuple[ArrayOp, ...] = (("transpose", axes), ("reshape", target))
                description = f"{_describe_axes(axes)} and its shape"
                yield Layout(description, b=ops) if side == "b" else Layout(description, a=ops)


def _crops(a: Shape, b: Shape) -> Iterator[Layout]:
    """One side has more rows, before or behind the others: a gap, unless that is found to be padding."""
    if len(a) != len(b):
        return
    differing = [axis for axis in range(len(a)) if a[axis] != b[axis]]
    larger = {a[axis] > b[axis] for axis in differing}
    if len(larger) > 1 or len(differing) > 2:
        return
    is_a = larger == {True}
    for ends in product((True, False), repeat=len(differing)):
        ops: list[ArrayOp] = []
        crops, gaps = list[str](), list[str]()
        for axis, is_end in zip(differing, ends, strict=True):
            less, more = sorted((a[axis], b[axis]))
            ops.append(("cut", axis, *((0, less) if is_end else (more - less, more))))
            end = "end" if is_end else "beginning"
            crops.append(f"{more - less} of axis {axis} at its {end}")
            gaps.append(f"{more - less} of {more} along axis {axis} at its {end}")
        where = "A" if is_a else "B"
        description, gap = f"padding in {where}: {', '.join(crops)}", f"only {where} has: {', '.join(gaps)}"
        cut = tuple(ops)
        yield Layout(description, a=cut, gap=gap) if is_a else Layout(description, b=cut, gap=gap)


def _known_reorderings(shape: Shape) -> Iterator[Layout]:
    """Along the width of activations, or the first axis of weights: what models are known to differ in."""
    for axis in dict.fromkeys((len(shape) - 1, 0)):
        for description, rows in orders.known_orders(shape[axis]):
            # Two blocks that changed places are as likely two heads that were mixed up.
            is_ordinary = int(np.count_nonzero(np.diff(rows) != 1)) > 3
            yield Layout(
                f"{description}, along axis {axis}", b=(("take", axis, rows),), is_conventional=is_ordinary
            )


def _describe_axes(axes: Sequence[int]) -> str:
    if sorted(axes) == list(axes[::-1]) and len(axes) == 2:
        return "a transposition"
    return f"the order of axes {list(axes)}"


def _would_differ(a: Array, b: Array, error: float) -> bool:
    """Two layouts that make the same of the numbers are one."""
    return a.shape != b.shape or relative_distance(a, b) > error + _EPSILON


def _is_constant(array: Array) -> bool:
    first = array.flat[0]
    few = array[tuple(slice(0, _MIN_NUMBERS) for _ in array.shape)]
    return bool((few == first).all() and (array == first).all())
