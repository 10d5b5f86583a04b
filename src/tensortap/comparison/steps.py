"""One side does in one step what the other does in several: rows of a batch, or tokens, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tensortap.comparison.entries import Entry, Side, sort_entries
from tensortap.comparison.joining import (
    ConcatenatedStepsRef,
    JoinedRef,
    ReorderedRef,
    UnresolvedRef,
    WindowsRef,
    load_numbers,
)
from tensortap.comparison.modules import module_of
from tensortap.comparison.noise import UNIT_ROUNDOFF
from tensortap.comparison.rules import Rules
from tensortap.comparison.tokens import are_token_lengths, match_tokens, token_row_order
from tensortap.comparison.ways import REPLICATE, ShardPlacement, assemble
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

Shape = tuple[int, ...]
_CallKey = tuple[object, ...]
_NameOf = Callable[[Entry], str]
_SCALAR_TOLERANCE = 1e-5  # what a lone number may be off and still be the same


def merge_steps(a: Side, b: Side, rules: Rules) -> tuple[Side, Side]:
    """Both sides with one step, where the inputs of the model tell that several of one side are that of the
    other; else as they are."""
    counts = [len(side.steps) for side in (a, b)]
    if min(counts) != 1 or max(counts) == 1:
        return a, b
    called: tuple[_NameOf, _NameOf] = (lambda entry: rules.rename(entry.name), lambda entry: entry.name)
    if counts[0] == 1:
        whole, cut = _merge_long_side(a, b, *called, "B")
        return whole, cut
    whole, cut = _merge_long_side(b, a, *called[::-1], "A")
    return cut, whole


def _merge_long_side(
    short: Side, long: Side, short_name: _NameOf, long_name: _NameOf, which: str
) -> tuple[Side, Side]:
    wholes = {_call_key(entry, short_name): entry for entry in short.entries}
    groups: dict[_CallKey, list[Entry]] = {}
    for entry in long.entries:
        groups.setdefault(_call_key(entry, long_name), []).append(entry)
    count = len(long.steps)
    pairs = [(wholes[key], group) for key, group in groups.items() if key in wholes]
    try:
        known = [(whole, group) for whole, group in pairs if len(group) == count]
        # Of all sequences: positions may be there once for all.
        cuts = [_split_of(*one) for one in known if _is_same_data(*one)]
        cut = max(cuts, key=lambda one: one.lines, default=None)
        if cut is None:
            return short, long
        made = {id(whole): _merge_group(whole, group, cut, which) for whole, group in pairs}
    except (TensortapError, OSError, ValueError):
        return short, long
    return _replace_entries(
        short, long, pairs, made, f"{which} does in {count} steps what the other does in one"
    )


@dataclass(frozen=True, slots=True)
class _StepSplit:
    """How the inputs of the model are cut."""

    axis: int
    lines: int  # sequences of the whole, where it is a table
    lengths: tuple[int, ...]  # of the pieces along the axis
    beside: int = 0  # how long the other axis is, where it is a table

    def order(self, shape: Shape, axis: int) -> Array | None:
        """Where the rows of a whole are among those of its pieces, where that is another order."""
        is_flat = axis == 0 and self.axis == 1 and shape[0] == self.lines * sum(self.lengths)
        return token_row_order(self.lines, self.lengths) if is_flat and self.lines > 1 else None


def _split_of(whole: Entry, group: Sequence[Entry]) -> _StepSplit:
    axis = _concat_axis([entry.shape for entry in group], whole.shape) or 0
    lines = whole.shape[0] if len(whole.shape) == 2 else 1
    beside = whole.shape[1 - axis] if len(whole.shape) == 2 else 0
    return _StepSplit(axis, lines, tuple(entry.shape[axis] for entry in group), beside)


_MergedEntries = tuple[Entry, Entry] | None


def _replace_entries(
    short: Side,
    long: Side,
    pairs: Sequence[tuple[Entry, list[Entry]]],
    made: dict[int, _MergedEntries],
    told: str,
) -> tuple[Side, Side]:
    """What could be put together takes the place of its pieces; the others stay as they are."""
    found = [(whole, group, made[id(whole)]) for whole, group in pairs]
    wholes = {id(whole): both[0] for whole, _, both in found if both is not None}
    gone = {id(entry) for _, group, both in found if both is not None for entry in group}
    joined_up = [both[1] for *_, both in found if both is not None]
    open_ones = {id(group[0]): whole for whole, group, both in found if both is None}
    left = [_mark_unresolved(one, open_ones.get(id(one))) for one in long.entries if id(one) not in gone]
    note = f"{told}: {len(joined_up)} of its values are put together"
    return (
        replace(short, entries=[wholes.get(id(entry), entry) for entry in short.entries]),
        replace(long, entries=sort_entries([*joined_up, *left]), notes=[*long.notes, note]),
    )


def _mark_unresolved(entry: Entry, whole: Entry | None) -> Entry:
    """The first piece of a value that could not be put together, which is not to be taken for the whole."""
    if whole is None or not whole.dtype or entry.shape == whole.shape:
        return entry
    told = "nothing tells how what it has in several steps belongs together"
    return replace(entry, reference=UnresolvedRef(told), checksum="")


def _call_key(entry: Entry, name_of: _NameOf) -> _CallKey:
    return name_of(entry), entry.kind, entry.call, entry.rank


def _is_same_data(whole: Entry, group: Sequence[Entry]) -> bool:
    """Whether it is an input of the model itself, and the pieces are the whole, in whatever order of rows."""
    axis = _concat_axis([entry.shape for entry in group], whole.shape)
    if whole.kind != "input" or module_of(whole.name, "input") or axis is None:
        return False
    held = [load_numbers(entry.reference) for entry in group]
    mine = load_numbers(whole.reference)
    if mine is None or any(one is None for one in held):
        return False
    made = assemble(ShardPlacement("shard", axis), [one for one in held if one is not None])[0]
    return bool(np.array_equal(made, mine)) or (axis == 0 and _are_same_rows(mine, made))


def _are_same_rows(a: Array, b: Array) -> bool:
    rows = match_tokens(a, b) if a.ndim == 2 and a.dtype.kind in "iu" else None
    return rows is not None and len(rows.a) == a.size


def _merge_group(whole: Entry, group: Sequence[Entry], cut: _StepSplit, which: str) -> _MergedEntries:
    """The other side's value and that of all steps in its shape; None where the shapes do not tell how."""
    count = len(cut.lengths)
    if len(group) != count or not whole.dtype:
        return None
    shapes, references = [entry.shape for entry in group], tuple(entry.reference for entry in group)
    told = f"{which}: {count} steps"
    axis = _concat_axis(shapes, whole.shape)
    if axis is not None:
        rest = (*whole.shape[:axis], *whole.shape[axis + 1 :])
        if not are_token_lengths([shape[axis] for shape in shapes], cut.lengths, cut.beside, rest):
            return None
        told = f"{told}, put together along axis {axis}"
        order = cut.order(whole.shape, axis)
        made = JoinedRef(references, ShardPlacement("shard", axis))
        laid = made if order is None else ReorderedRef(made, (("take", 0, order),))
        return whole, _merged_entry(whole, group, ConcatenatedStepsRef(laid, told))
    if set(shapes) == {whole.shape}:
        return whole, _merged_entry(whole, group, _merge_repeated(whole, group, told))
    places = _growing_windows(shapes, whole.shape)
    if places is None:
        return None
    told = f"{told}, each of which reaches as far as its own tokens do"
    pieces = ConcatenatedStepsRef(WindowsRef(references, ((),) * count), told)
    mine = ConcatenatedStepsRef(WindowsRef((whole.reference,) * count, places), "")
    flat = (sum(int(np.prod(shape)) for shape in shapes),)
    return replace(whole, reference=mine, shape=flat, checksum=""), replace(
        _merged_entry(whole, group, pieces), shape=flat
    )


def _merge_repeated(whole: Entry, group: Sequence[Entry], told: str) -> ConcatenatedStepsRef | UnresolvedRef:
    """What every step has as a whole. A lone number may be each step's own, as a loss is."""
    references = tuple(entry.reference for entry in group)
    mine, *own = (_scalar_of(entry) for entry in (whole, *group))
    if not _is_per_step_scalar(mine, own):
        told = f"{told}, each of which has the whole: the farthest is compared"
        return ConcatenatedStepsRef(JoinedRef(references, REPLICATE, _farthest_step(whole, group)), told)
    rounding = 8 * UNIT_ROUNDOFF.get(whole.dtype, 0.0)
    if not math.isclose(float(np.mean(own)), mine, rel_tol=rounding):
        return UnresolvedRef("every step has a number of its own, and nothing tells how they make up the one")
    return ConcatenatedStepsRef(
        JoinedRef(references, ShardPlacement("partial", operation="mean")),
        f"{told}, of which this is the mean",
    )


def _scalar_of(entry: Entry) -> float:
    """A number that is no decision; NaN for whatever else."""
    held = load_numbers(entry.reference) if entry.shape == () else None
    return float(held) if held is not None and held.dtype.kind == "f" else math.nan


def _is_per_step_scalar(whole: float, numbers: Sequence[float]) -> bool:
    is_known = all(map(math.isfinite, (whole, *numbers)))
    is_any = any(math.isclose(one, whole, rel_tol=_SCALAR_TOLERANCE) for one in numbers)
    return is_known and len(set(numbers)) > 1 and not is_any


def _merged_entry(
    whole: Entry, group: Sequence[Entry], reference: ConcatenatedStepsRef | UnresolvedRef
) -> Entry:
    size = sum(entry.nbytes for entry in group)
    return replace(
        group[0], reference=reference, step=whole.step, shape=whole.shape, nbytes=size, checksum=""
    )


def _farthest_step(whole: Entry, group: Sequence[Entry]) -> int:
    """Which of several copies is farthest from the other side's: a good one would hide it."""
    mine = load_numbers(whole.reference)
    if mine is None:
        return 0
    apart = []
    for entry in group:
        held = load_numbers(entry.reference)
        with np.errstate(invalid="ignore"):
            gap = np.abs(mine.astype(np.float64) - held) if held is not None else np.zeros(1)
        apart.append(np.nan_to_num(gap, nan=0.0).max(initial=0.0))
    return int(np.argmax(apart))


def _concat_axis(shapes: Sequence[Shape], whole: Shape) -> int | None:
    """The axis along which pieces add up to the whole, all others being the same."""
    if any(len(shape) != len(whole) for shape in shapes):
        return None
    columns = list(zip(*shapes, strict=True))
    axes = [axis for axis, sizes in enumerate(columns) if set(sizes) != {whole[axis]}]
    return axes[0] if len(axes) == 1 and sum(columns[axes[0]]) == whole[axes[0]] else None


def _growing_windows(shapes: Sequence[Shape], whole: Shape) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Where the pieces of masks or of attention weights lie: along two axes, the second as far as the first
    has come, or along one that every step has from its beginning on."""
    if any(len(shape) != len(whole) for shape in shapes):
        return None
    axes = [axis for axis in range(len(whole)) if any(shape[axis] != whole[axis] for shape in shapes)]
    limits = _prefix_windows(shapes, whole, axes) if len(axes) == 1 else _causal_windows(shapes, whole, axes)
    if limits is None:
        return None
    return tuple(tuple(one.get(axis, (0, size)) for axis, size in enumerate(whole)) for one in limits)


_Limits = list[dict[int, tuple[int, int]]]  # of each piece, along the axes that are cut


def _prefix_windows(shapes: Sequence[Shape], whole: Shape, axes: Sequence[int]) -> _Limits | None:
    ends = [shape[axes[0]] for shape in shapes]
    is_growing = all(one < other for one, other in pairwise(ends)) and ends[-1] == whole[axes[0]]
    return [{axes[0]: (0, end)} for end in ends] if is_growing else None


def _causal_windows(shapes: Sequence[Shape], whole: Shape, axes: Sequence[int]) -> _Limits | None:
    if len(axes) != 2 or sum(shape[axes[0]] for shape in shapes) != whole[axes[0]]:
        return None
    limits, end = list[dict[int, tuple[int, int]]](), 0
    for shape in shapes:
        start, end = end, end + shape[axes[0]]
        if shape[axes[1]] != end:
            return None
        limits.append({axes[0]: (start, end), axes[1]: (0, end)})
    return limits
