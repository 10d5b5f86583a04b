"""Merge the steps of one side if the other does the same in a single step: split batches, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tensortap.comparison.alignment.tokens import are_token_lengths, match_tokens, token_row_order
from tensortap.comparison.matching.rules import Rules
from tensortap.comparison.sharding.derived import (
    ConcatenatedStepsRef,
    JoinedRef,
    ReorderedRef,
    UnresolvedRef,
    WindowsRef,
    load_numbers,
)
from tensortap.comparison.sharding.placement import REPLICATE, ShardPlacement, assemble
from tensortap.comparison.sides.entry import Entry, Side, module_of, sort_entries
from tensortap.comparison.values.noise import UNIT_ROUNDOFF
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array, Shape

_CallKey = tuple[object, ...]
_NameOf = Callable[[Entry], str]
_SCALAR_TOLERANCE = 1e-5  # relative; scalars this close are the same


def merge_steps(a: Side, b: Side, rules: Rules) -> tuple[Side, Side]:
    """Both sides with one step, if the model's inputs show that several steps of one are the step of the
    other."""
    counts = [len(side.steps) for side in (a, b)]
    if min(counts) != 1 or max(counts) == 1:
        return a, b
    name_functions: tuple[_NameOf, _NameOf] = (
        lambda entry: rules.rename(entry.name),
        lambda entry: entry.name,
    )
    if counts[0] == 1:
        single, merged = _merge_long_side(a, b, *name_functions, "B")
        return single, merged
    single, merged = _merge_long_side(b, a, *name_functions[::-1], "A")
    return merged, single


def _merge_long_side(
    short: Side, long: Side, short_name: _NameOf, long_name: _NameOf, which: str
) -> tuple[Side, Side]:
    full_by_key = {_call_key(entry, short_name): entry for entry in short.entries}
    groups: dict[_CallKey, list[Entry]] = {}
    for entry in long.entries:
        groups.setdefault(_call_key(entry, long_name), []).append(entry)
    count = len(long.steps)
    pairs = [(full_by_key[key], group) for key, group in groups.items() if key in full_by_key]
    try:
        complete = [(full, group) for full, group in pairs if len(group) == count]
        # The split with most sequences: position ids may exist once for all.
        splits = [_split_of(*group_pair) for group_pair in complete if _is_same_data(*group_pair)]
        chosen = max(splits, key=lambda split: split.sequences, default=None)
        if chosen is None:
            return short, long
        merged = {id(full): _merge_group(full, group, chosen, which) for full, group in pairs}
    except (TensortapError, OSError, ValueError):
        return short, long
    return _replace_entries(
        short, long, pairs, merged, f"{which} does in {count} steps what the other does in one"
    )


@dataclass(frozen=True, slots=True)
class _StepSplit:
    """How the inputs of the model are split into steps."""

    axis: int
    sequences: int  # in the full input, if it is 2-D
    lengths: tuple[int, ...]  # of the steps along the axis
    other_length: int = 0  # length of the other axis, if it is 2-D

    def order(self, shape: Shape, axis: int) -> Array | None:
        """The order of the full value's rows in the concatenated steps; None if it is the same."""
        is_flat = axis == 0 and self.axis == 1 and shape[0] == self.sequences * sum(self.lengths)
        return token_row_order(self.sequences, self.lengths) if is_flat and self.sequences > 1 else None


def _split_of(full: Entry, group: Sequence[Entry]) -> _StepSplit:
    axis = _concat_axis([entry.shape for entry in group], full.shape) or 0
    sequences = full.shape[0] if len(full.shape) == 2 else 1
    other_length = full.shape[1 - axis] if len(full.shape) == 2 else 0
    return _StepSplit(axis, sequences, tuple(entry.shape[axis] for entry in group), other_length)


_MergedEntries = tuple[Entry, Entry] | None


def _replace_entries(
    short: Side,
    long: Side,
    pairs: Sequence[tuple[Entry, list[Entry]]],
    merged: dict[int, _MergedEntries],
    message: str,
) -> tuple[Side, Side]:
    """Replace the steps that were merged; other entries stay as they are."""
    rows = [(full, group, merged[id(full)]) for full, group in pairs]
    replacements = {id(full): merged_pair[0] for full, _, merged_pair in rows if merged_pair is not None}
    consumed = {id(entry) for _, group, merged_pair in rows if merged_pair is not None for entry in group}
    merged_entries = [merged_pair[1] for *_, merged_pair in rows if merged_pair is not None]
    unresolved = {id(group[0]): full for full, group, merged_pair in rows if merged_pair is None}
    remaining = [
        _mark_unresolved(entry, unresolved.get(id(entry)))
        for entry in long.entries
        if id(entry) not in consumed
    ]
    note = f"{message}: {len(merged_entries)} of its values are put together"
    return (
        replace(short, entries=[replacements.get(id(entry), entry) for entry in short.entries]),
        replace(long, entries=sort_entries([*merged_entries, *remaining]), notes=[*long.notes, note]),
    )


def _mark_unresolved(entry: Entry, full: Entry | None) -> Entry:
    """Mark the first step of a value that could not be merged, lest it be compared with the full value."""
    if full is None or not full.dtype or entry.shape == full.shape:
        return entry
    reason = "nothing tells how what it has in several steps belongs together"
    return replace(entry, reference=UnresolvedRef(reason), checksum="")


def _call_key(entry: Entry, name_of: _NameOf) -> _CallKey:
    return name_of(entry), entry.kind, entry.call, entry.rank


def _is_same_data(full: Entry, group: Sequence[Entry]) -> bool:
    """Whether it is a model input that the steps concatenate to, up to the order of rows."""
    axis = _concat_axis([entry.shape for entry in group], full.shape)
    if full.kind != "input" or module_of(full.name, "input") or axis is None:
        return False
    arrays = [load_numbers(entry.reference) for entry in group]
    full_numbers = load_numbers(full.reference)
    if full_numbers is None or any(array is None for array in arrays):
        return False
    steps = [array for array in arrays if array is not None]
    concatenated = assemble(ShardPlacement("shard", axis), steps)[0]
    return bool(np.array_equal(concatenated, full_numbers)) or (
        axis == 0 and _are_same_rows(full_numbers, concatenated)
    )


def _are_same_rows(a: Array, b: Array) -> bool:
    rows = match_tokens(a, b) if a.ndim == 2 and a.dtype.kind in "iu" else None
    return rows is not None and len(rows.a) == a.size


def _merge_group(full: Entry, group: Sequence[Entry], split: _StepSplit, which: str) -> _MergedEntries:
    """The full value and the merged steps in the same shape; None if the shapes do not tell how."""
    count = len(split.lengths)
    if len(group) != count or not full.dtype:
        return None
    shapes, references = [entry.shape for entry in group], tuple(entry.reference for entry in group)
    description = f"{which}: {count} steps"
    axis = _concat_axis(shapes, full.shape)
    if axis is not None:
        other_dims = (*full.shape[:axis], *full.shape[axis + 1 :])
        if not are_token_lengths(
            [shape[axis] for shape in shapes], split.lengths, split.other_length, other_dims
        ):
            return None
        description = f"{description}, put together along axis {axis}"
        order = split.order(full.shape, axis)
        joined = JoinedRef(references, ShardPlacement("shard", axis))
        reference = joined if order is None else ReorderedRef(joined, (("take", 0, order),))
        return full, _merged_entry(full, group, ConcatenatedStepsRef(reference, description))
    if set(shapes) == {full.shape}:
        return full, _merged_entry(full, group, _merge_repeated(full, group, description))
    windows = _growing_windows(shapes, full.shape)
    if windows is None:
        return None
    description = f"{description}, each of which reaches as far as its own tokens do"
    stepped = ConcatenatedStepsRef(WindowsRef(references, ((),) * count), description)
    full_windows = ConcatenatedStepsRef(WindowsRef((full.reference,) * count, windows), "")
    flat = (sum(int(np.prod(shape)) for shape in shapes),)
    return replace(full, reference=full_windows, shape=flat, checksum=""), replace(
        _merged_entry(full, group, stepped), shape=flat
    )


def _merge_repeated(
    full: Entry, group: Sequence[Entry], description: str
) -> ConcatenatedStepsRef | UnresolvedRef:
    """Merge steps that all have the full shape. A scalar such as a loss may be each step's own."""
    references = tuple(entry.reference for entry in group)
    full_scalar, *step_scalars = (_scalar_of(entry) for entry in (full, *group))
    if not _is_per_step_scalar(full_scalar, step_scalars):
        description = f"{description}, each of which has the whole: the farthest is compared"
        return ConcatenatedStepsRef(
            JoinedRef(references, REPLICATE, _farthest_step(full, group)), description
        )
    rounding = 8 * UNIT_ROUNDOFF.get(full.dtype, 0.0)
    if not math.isclose(float(np.mean(step_scalars)), full_scalar, rel_tol=rounding):
        return UnresolvedRef("every step has a number of its own, and nothing tells how they make up the one")
    return ConcatenatedStepsRef(
        JoinedRef(references, ShardPlacement("partial", operation="mean")),
        f"{description}, of which this is the mean",
    )


def _scalar_of(entry: Entry) -> float:
    """A floating-point scalar; NaN for anything else."""
    array = load_numbers(entry.reference) if entry.shape == () else None
    return float(array) if array is not None and array.dtype.kind == "f" else math.nan


def _is_per_step_scalar(full: float, numbers: Sequence[float]) -> bool:
    is_known = all(map(math.isfinite, (full, *numbers)))
    is_any = any(math.isclose(number, full, rel_tol=_SCALAR_TOLERANCE) for number in numbers)
    return is_known and len(set(numbers)) > 1 and not is_any


def _merged_entry(
    full: Entry, group: Sequence[Entry], reference: ConcatenatedStepsRef | UnresolvedRef
) -> Entry:
    size = sum(entry.nbytes for entry in group)
    return replace(group[0], reference=reference, step=full.step, shape=full.shape, nbytes=size, checksum="")


def _farthest_step(full: Entry, group: Sequence[Entry]) -> int:
    """The step farthest from the full value: a good one would hide a bad one."""
    full_numbers = load_numbers(full.reference)
    if full_numbers is None:
        return 0
    gaps = []
    for entry in group:
        array = load_numbers(entry.reference)
        with np.errstate(invalid="ignore"):
            gap = np.abs(full_numbers.astype(np.float64) - array) if array is not None else np.zeros(1)
        gaps.append(np.nan_to_num(gap, nan=0.0).max(initial=0.0))
    return int(np.argmax(gaps))


def _concat_axis(shapes: Sequence[Shape], full: Shape) -> int | None:
    """The axis along which the steps concatenate to the full shape, if all others are equal."""
    if any(len(shape) != len(full) for shape in shapes):
        return None
    columns = list(zip(*shapes, strict=True))
    axes = [axis for axis, sizes in enumerate(columns) if set(sizes) != {full[axis]}]
    return axes[0] if len(axes) == 1 and sum(columns[axes[0]]) == full[axes[0]] else None


def _growing_windows(shapes: Sequence[Shape], full: Shape) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """The windows of masks or attention weights that grow with the steps: causal along two axes, or
    prefixes along one."""
    if any(len(shape) != len(full) for shape in shapes):
        return None
    axes = [axis for axis in range(len(full)) if any(shape[axis] != full[axis] for shape in shapes)]
    limits = _prefix_windows(shapes, full, axes) if len(axes) == 1 else _causal_windows(shapes, full, axes)
    if limits is None:
        return None
    return tuple(tuple(window.get(axis, (0, size)) for axis, size in enumerate(full)) for window in limits)


_Limits = list[dict[int, tuple[int, int]]]  # per step, (start, stop) along the split axes


def _prefix_windows(shapes: Sequence[Shape], full: Shape, axes: Sequence[int]) -> _Limits | None:
    ends = [shape[axes[0]] for shape in shapes]
    is_growing = all(end < next_end for end, next_end in pairwise(ends)) and ends[-1] == full[axes[0]]
    return [{axes[0]: (0, end)} for end in ends] if is_growing else None


def _causal_windows(shapes: Sequence[Shape], full: Shape, axes: Sequence[int]) -> _Limits | None:
    if len(axes) != 2 or sum(shape[axes[0]] for shape in shapes) != full[axes[0]]:
        return None
    limits, end = list[dict[int, tuple[int, int]]](), 0
    for shape in shapes:
        start, end = end, end + shape[axes[0]]
        if shape[axes[1]] != end:
            return None
        limits.append({axes[0]: (start, end), axes[1]: (0, end)})
    return limits
