"""Pieces that sit in the whole as a user says, and what the numbers say against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.glimpse import relative_distance
from tensortap.comparison.joining import JoinedRef, declared_placement, load_numbers, shards_of
from tensortap.comparison.placing import infer_placement
from tensortap.comparison.ways import ShardPlacement, assemble, shard_spans
from tensortap.comparison.wholes import (
    FullValue,
    describe_ranks,
    do_replicas_differ,
    farthest_replica,
    load_shards,
)
from tensortap.kernels.numbers import Array

_CLEAR_FACTOR, _EPSILON = 3.0, 1e-12  # another way contradicts what leaves so many times as much


def apply_declared_placement(
    entry: Entry, way: ShardPlacement, whole: Array | None = None
) -> FullValue | None:
    """The whole that was declared, with what the other side's whole says of it; None for no numbers."""
    arrays = load_shards(entry)
    if arrays is None:
        return None
    way = _fit_placement(entry, way, arrays)
    copies = assemble(way, arrays)
    copy, worst = farthest_replica(copies, copies[0] if whole is None else whole)
    pieces = shards_of(entry)
    told = [f"{len(pieces)} pieces of {describe_ranks(pieces)} are {way}, as was declared", worst]
    told += [] if whole is None else [_describe_contradiction(way, arrays, copies[copy], whole)]
    reference = JoinedRef(tuple(piece.reference for piece in pieces), way, copy)
    made = replace(entry, reference=reference, shape=tuple(copies[copy].shape))
    doubt = (
        f"its {len(copies)} copies are not equal" if worst and do_replicas_differ(copies, entry.dtype) else ""
    )
    return FullValue(made, str(way), "; ".join(filter(None, told)), doubt)


def check_declared_placement(entry: Entry, made: FullValue, other: FullValue) -> FullValue:
    """The same; of what was declared it is told where the numbers of the other side contradict it."""
    way = declared_placement(entry)
    whole = None if way is None else load_numbers(other.entry.reference)
    if way is None or whole is None or whole.shape != made.entry.shape:
        return made
    return apply_declared_placement(entry, way, whole) or made


def _fit_placement(entry: Entry, way: ShardPlacement, arrays: Sequence[Array]) -> ShardPlacement:
    """The way as these shapes need it; refused where they make no whole by it."""
    shapes, axes = [one.shape for one in arrays], arrays[0].ndim
    if way.kind in ("replicate", "partial"):
        if len(set(shapes)) == 1:
            return way
    elif -axes <= way.dim < axes:
        way = replace(way, dim=way.dim % axes)
        rest = {(*shape[: way.dim], *shape[way.dim + 1 :]) for shape in shapes}
        lengths = [shape[way.dim] for shape in shapes]
        for known in (way, replace(way, is_balanced=True)):
            if len(rest) == 1 and shard_spans(known, lengths) is not None:
                return known
    told = ", ".join(str(list(shape)) for shape in shapes)
    raise ValueError(f"{entry.name} was declared as {way}, by which pieces of {told} make no whole")


def _describe_contradiction(way: ShardPlacement, arrays: Sequence[Array], made: Array, whole: Array) -> str:
    placing = infer_placement(whole, arrays)
    if placing.state != "certain" or str(placing.placement) == str(way):
        return ""
    is_worse = relative_distance(made, whole) > _CLEAR_FACTOR * placing.error + _EPSILON
    return f"the numbers contradict it, they are {placing}" if is_worse else ""
