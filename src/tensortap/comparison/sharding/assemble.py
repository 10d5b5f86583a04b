"""Assemble shards to the full value, by a declared placement; check replicas for equality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tensortap.comparison.layout.sampling import relative_distance
from tensortap.comparison.sharding.derived import JoinedRef, declared_placement, load_numbers, shards_of
from tensortap.comparison.sharding.infer import infer_placement
from tensortap.comparison.sharding.placement import ShardPlacement, assemble, shard_spans
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.values.noise import analytic_noise
from tensortap.kernels.decode import Array

_CLEAR_FACTOR, _EPSILON = 3.0, 1e-12  # factor by which another placement must be better to contradict


class FullValue(NamedTuple):
    """An assembled value, how it was assembled (in short and in full), and whether its replicas differ."""

    entry: Entry
    summary: str = ""
    details: str = ""
    replica_mismatch: str = ""


def load_shards(entry: Entry) -> list[Array] | None:
    loaded = [load_numbers(shard.reference) for shard in shards_of(entry)]
    arrays = [array for array in loaded if array is not None]
    return arrays if len(arrays) == len(loaded) else None


def describe_ranks(shards: Sequence[Entry]) -> str:
    ranks = [shard.first_rank for shard in shards]
    is_run = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_run else f"ranks {', '.join(map(str, ranks))}"


def farthest_replica(replicas: Sequence[Array], full: Array) -> tuple[int, str]:
    """The replica farthest from the other side: a good one would hide a bad one."""
    if all(np.array_equal(replicas[0], replica, equal_nan=True) for replica in replicas[1:]):
        return 0, ""
    with np.errstate(invalid="ignore"):
        distances = [
            np.nan_to_num(np.abs(replica.astype(np.float64) - full), nan=np.inf).max() for replica in replicas
        ]
    worst = int(np.argmax(distances))
    return worst, f"its {len(replicas)} copies are not equal: copy {worst}, the farthest, is compared"


def do_replicas_differ(replicas: Sequence[Array], dtype: str) -> bool:
    """Whether they differ by more than rounding."""
    most = analytic_noise(dtype).relative_l2 if replicas[0].dtype.kind == "f" else 0.0
    return any(relative_distance(replicas[0], replica) > most for replica in replicas[1:])


def apply_declared_placement(
    entry: Entry, placement: ShardPlacement, reference_full: Array | None = None
) -> FullValue | None:
    """Assemble by the declared placement, and report if the other side contradicts it; None if not
    numeric."""
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
    """Assemble again with the other side's full value, to report where it contradicts the declaration."""
    placement = declared_placement(entry)
    reference_full = None if placement is None else load_numbers(other_side.entry.reference)
    if placement is None or reference_full is None or reference_full.shape != full_value.entry.shape:
        return full_value
    return apply_declared_placement(entry, placement, reference_full) or full_value


def _fit_placement(entry: Entry, placement: ShardPlacement, arrays: Sequence[Array]) -> ShardPlacement:
    """Adapt the placement to these shapes; raises if they cannot be assembled by it."""
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
