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
from tensortap.kernels.decode import Array

_CLEAR_FACTOR, _EPSILON = 3.0, 1e-12  # another way contradicts what leaves so many times as much


def apply_declared_placement(
    entry: Entry, placement: ShardPlacement, reference_full: Array | None = None
) -> FullValue | None:
    """The whole that was declared, with what the other side's whole says of it; None for no numbers."""
    arrays = load_shards(entry)
    if arrays is None:
        return None
    placement = _fit_placement(entry, placement, arrays)
    replicas = assemble(placement, arrays)
    replica, mismatch = farthest_replica(replicas, replicas[0] if reference_full is None else reference_full)
    shards = shards_of(entry)
    details = [f"{len(shards)} pieces of {describe_ranks(shards)} are {placement}, as was declared", mismatch]
    details += (
        []
        if reference_full is None
        else [_describe_contradiction(placement, arrays, replicas[replica], reference_full)]
    )
    reference = JoinedRef(tuple(shard.reference for shard in shards), placement, replica)
    full_entry = replace(entry, reference=reference, shape=tuple(replicas[replica].shape))
    doubt = (
        f"its {len(replicas)} copies are not equal"
        if mismatch and do_replicas_differ(replicas, entry.dtype)
        else ""
    )
    return FullValue(full_entry, str(placement), "; ".join(filter(None, details)), doubt)


def check_declared_placement(entry: Entry, full_value: FullValue, other_side: FullValue) -> FullValue:
    """The same; of what was declared it is told where the numbers of the other side contradict it."""
    placement = declared_placement(entry)
    reference_full = None if placement is None else load_numbers(other_side.entry.reference)
    if placement is None or reference_full is None or reference_full.shape != full_value.entry.shape:
        return full_value
    return apply_declared_placement(entry, placement, reference_full) or full_value


def _fit_placement(entry: Entry, placement: ShardPlacement, arrays: Sequence[Array]) -> ShardPlacement:
    """The way as these shapes need it; refused where they make no whole by it."""
    shapes, axes = [array.shape for array in arrays], arrays[0].ndim
    if placement.kind in ("replicate", "partial"):
        if len(set(shapes)) == 1:
            return placement
    elif -axes <= placement.dim < axes:
        placement = replace(placement, dim=placement.dim % axes)
        other_dims = {(*shape[: placement.dim], *shape[placement.dim + 1 :]) for shape in shapes}
        lengths = [shape[placement.dim] for shape in shapes]
        for candidate in (placement, replace(placement, is_balanced=True)):
            if len(other_dims) == 1 and shard_spans(candidate, lengths) is not None:
                return candidate
    described_shapes = ", ".join(str(list(shape)) for shape in shapes)
    raise ValueError(
        f"{entry.name} was declared as {placement}, by which pieces of {described_shapes} make no whole"
    )


def _describe_contradiction(
    placement: ShardPlacement, arrays: Sequence[Array], assembled: Array, full: Array
) -> str:
    inferred = infer_placement(full, arrays)
    if inferred.state != "certain" or str(inferred.placement) == str(placement):
        return ""
    is_worse = relative_distance(assembled, full) > _CLEAR_FACTOR * inferred.error + _EPSILON
    return f"the numbers contradict it, they are {inferred}" if is_worse else ""
