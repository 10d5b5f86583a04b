"""Find the layout in which two arrays are equal: reshapes, transposes, crops, rotary and fused orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product

import numpy as np

from tensortap.comparison.layout.sampling import HUGE, ArrayOp, SampledFit, relative_distance
from tensortap.comparison.sides.entry import AlignmentNote
from tensortap.kernels.decode import Array, Shape

# Maximal relative error of a fit, by what factor the next best must be worse, and what counts as exact.
_MAX_ERROR, _MARGIN, _EPSILON = 0.1, 3.0, 1e-12
_MIN_NUMBERS = 8  # fewer fit by chance
_MAX_AXES = 5
_MAX_AXIS_LENGTH = 1 << 15  # longer axes, such as a vocabulary, have no heads
_MAX_HEAD_WIDTH = 1024  # heads
_FUSED_SECTIONS = {
    "gate and up": (1, 1),
    "query, key and value": (1, 1, 1),
    "2 queries, key and value": (2, 1, 1),
    "4 queries, key and value": (4, 1, 1),
    "8 queries, key and value": (8, 1, 1),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Array ops for each side that make two arrays comparable, with a description."""

    description: str
    a: tuple[ArrayOp, ...] = ()
    b: tuple[ArrayOp, ...] = ()
    is_conventional: bool = True  # False: as likely a bug as a layout
    gap: str = ""  # what only one side has, beyond padding

    def annotate(self, note: AlignmentNote) -> AlignmentNote:
        """Extend the note of a pair by this layout."""
        detail = f"equal but for {self.description}" if self.gap else f"equal up to {self.description}"
        return replace(note.extended(self.description, detail), gap=self.gap)


@dataclass(frozen=True, slots=True)
class LayoutMatch:
    """The layouts up to which two arrays are equal: several if ambiguous, none if nothing fits."""

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
    """The layout in which b equals a; empty if none fits, or if they are equal as they are."""
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
    # A layout that changes the other side instead pairs the same numbers.
    alike = [(layout, reordered) for layout, _, reordered in best_fits[1:] if bool(layout.b) == bool(first.b)]
    ties = [layout for layout, reordered in alike if _would_differ(array, reordered, error)]
    return LayoutMatch((first, *ties), error)


def apply_ops(ops: Sequence[ArrayOp], array: Array) -> Array:
    """Apply array ops; only `take` copies."""
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
    """The layouts with a small error, and the array that each changes."""
    for layout in _candidate_layouts(a.shape, b.shape):
        if not sampled.could_match(layout.a, layout.b, _MAX_ERROR):
            continue
        a_reordered, b_reordered = apply_ops(layout.a, a), apply_ops(layout.b, b)
        error = relative_distance(a_reordered, b_reordered)
        if error <= _MAX_ERROR:
            yield _check_padding(layout, a, b, error), error, b_reordered if layout.b else a_reordered


def _check_padding(layout: Layout, a: Array, b: Array, error: float) -> Layout:
    """Clear the gap if the cropped part is padding; otherwise describe it."""
    if not layout.gap:
        return layout
    ops, array = (layout.a, a) if layout.a else (layout.b, b)
    if is_padding(ops, array, error):
        return replace(layout, gap="")
    return replace(layout, description=f"what {layout.gap}")


def _candidate_layouts(a: Shape, b: Shape) -> Iterator[Layout]:
    """Every layout that the shapes allow, the simplest first."""
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
    """Such as [batch, tokens, width] against [batch, heads, tokens, head width]."""
    for shape, target, side in ((b, a, "b"), (a, b, "a")):
        if len(shape) > _MAX_AXES:
            continue
        for axes in permutations(range(len(shape))):
            if axes != tuple(range(len(shape))) and tuple(shape[axis] for axis in axes) != target:
                ops: tuple[ArrayOp, ...] = (("transpose", axes), ("reshape", target))
                description = f"{_describe_axes(axes)} and its shape"
                yield Layout(description, b=ops) if side == "b" else Layout(description, a=ops)


def _crops(a: Shape, b: Shape) -> Iterator[Layout]:
    """One side has more rows at either end: a gap, unless they turn out to be padding."""
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
    """Known orders along the last axis of activations or the first axis of weights."""
    for axis in dict.fromkeys((len(shape) - 1, 0)):
        for description, rows in known_orders(shape[axis]):
            # Two swapped blocks are as likely two heads that were mixed up.
            is_ordinary = int(np.count_nonzero(np.diff(rows) != 1)) > 3
            yield Layout(
                f"{description}, along axis {axis}", b=(("take", axis, rows),), is_conventional=is_ordinary
            )


def _describe_axes(axes: Sequence[int]) -> str:
    if sorted(axes) == list(axes[::-1]) and len(axes) == 2:
        return "a transposition"
    return f"the order of axes {list(axes)}"


def _would_differ(a: Array, b: Array, error: float) -> bool:
    """Whether two layouts give different arrays."""
    return a.shape != b.shape or relative_distance(a, b) > error + _EPSILON


def _is_constant(array: Array) -> bool:
    first = array.flat[0]
    few = array[tuple(slice(0, _MIN_NUMBERS) for _ in array.shape)]
    return bool((few == first).all() and (array == first).all())


@lru_cache(maxsize=8)
def known_orders(size: int) -> tuple[tuple[str, Array], ...]:
    """Descriptions of known orders along an axis, with the rows of B in the order of A."""
    if size > _MAX_AXIS_LENGTH:
        return ()
    orders: list[tuple[str, Array]] = []
    known = {np.arange(size).tobytes()}
    for description, rows in (*_rotary_orders(size), *_fused_orders(size)):
        if rows.tobytes() not in known:
            known.add(rows.tobytes())
            orders.append((description, rows))
    return tuple(orders)


def _rotary_orders(size: int) -> Iterator[tuple[str, Array]]:
    """Rotary heads with contiguous halves against interleaved ones."""
    for head in (width for width in range(4, min(size, _MAX_HEAD_WIDTH) + 1, 2) if size % width == 0):
        turns = np.concatenate([np.arange(0, head, 2), np.arange(1, head, 2)])
        starts = head * np.arange(size // head)[:, None]
        rows = (starts + turns).reshape(-1)
        description = f"halves (A) against turns (B) in rotary heads of {head}"
        yield description, rows
        yield (
            description.replace("halves (A)", "turns (A)").replace("turns (B)", "halves (B)"),
            np.argsort(rows),
        )


def _fused_orders(size: int) -> Iterator[tuple[str, Array]]:
    """Fused projections in contiguous sections against interleaved groups."""
    for description, shares in _FUSED_SECTIONS.items():
        total = sum(shares)
        for groups in (count for count in range(2, size // total + 1) if size % (count * total) == 0):
            rows = _section_order(shares, groups, size // (groups * total))
            yield f"{description} fused in sections (A) against {groups} groups (B)", rows
            yield f"{description} fused in {groups} groups (A) against sections (B)", np.argsort(rows)


def _section_order(shares: tuple[int, ...], groups: int, width: int) -> Array:
    each = np.arange(groups * sum(shares) * width).reshape(groups, sum(shares), width)
    parts = np.split(each, np.cumsum(shares)[:-1].tolist(), axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])


def is_padding(ops: Sequence[ArrayOp], array: Array, error: float = 0.0) -> bool:
    """Whether all that is cropped is padding: zeros, infinities, or one repeated value that the rest does
    not have. Values as small as `error`, the error of the rest, count as zeros."""
    return all(_is_empty(cropped, kept, error) for cropped, kept in _cropped_parts(ops, array))


def _cropped_parts(ops: Sequence[ArrayOp], array: Array) -> Iterator[tuple[Array, Array]]:
    """What each crop drops, and what it keeps."""
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
    """Whether all rows are the same, as a layer's bias is its output for zeros."""
    if cropped.ndim < 2 or cropped.shape[-1] != kept.shape[-1]:
        return False
    rows, kept_rows = (array.reshape(-1, array.shape[-1]) for array in (cropped, kept))
    is_same = len(rows) > 1 and bool((rows == rows[0]).all())
    return is_same and not (kept_rows == rows[0]).all(axis=1).any()


def _are_infinite(numbers: Array) -> bool:
    return bool((~(np.abs(numbers) < HUGE)).all()) if numbers.dtype.kind == "f" else False


def _rms(numbers: Array) -> float:
    """The root mean square; 0 if there are infinities."""
    wide = numbers.astype(np.float64)
    usual = wide[np.abs(wide) < HUGE]
    return float(np.sqrt(np.mean(usual**2))) if usual.size == wide.size and usual.size else 0.0
