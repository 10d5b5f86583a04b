"""Group the records of several ranks as the shards of one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.sharding.derived import UnassembledRef
from tensortap.comparison.sharding.placement import DeclaredPlacement, find_declared_placement
from tensortap.comparison.sides.entry import Entry, Side, sort_entries


def group_ranks(a: Side, b: Side, declarations: Sequence[DeclaredPlacement] = ()) -> tuple[Side, Side]:
    """Group the shards of both sides if their ranks or declared placements differ."""
    both = a.ranks, b.ranks
    if both[0] == both[1]:
        names = _differently_sharded_names(a, b)
        both_sides = (group_shards(side, None, names, declarations) for side in (a, b))
        return (next(both_sides), next(both_sides)) if names else (a, b)
    # With equal world sizes, missing ranks leave the same shards on both sides.
    if not all(both) or a.world_size == b.world_size > 1:
        return a, b
    rank = next((ranks[0] for ranks in both if len(ranks) == 1), 0)
    return group_shards(a, rank, None, declarations), group_shards(b, rank, None, declarations)


def _differently_sharded_names(a: Side, b: Side) -> set[str]:
    """Names whose declared placements differ between the sides."""
    if not any(entry.placement is not None for side in (a, b) for entry in side.entries):
        return set()
    placements_by_side: list[dict[str, set[object]]] = [{}, {}]
    for side, by_name in zip((a, b), placements_by_side, strict=True):
        for entry in side.entries:
            placement = entry.placement
            described = None if placement is None else (placement.mesh, placement.parts)
            by_name.setdefault(entry.name, set()).add(described)
    return {
        name
        for name, placements in placements_by_side[0].items()
        if placements_by_side[1].get(name, placements) != placements
    }


def group_shards(
    side: Side,
    rank: int | None,
    names: set[str] | None = None,
    declarations: Sequence[DeclaredPlacement] = (),
) -> Side:
    """One entry per value, with the shards of all ranks: of all names, or of the given ones."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for entry in side.entries:
        call_key = (entry.name, entry.kind, entry.step, entry.call)
        if names is not None and entry.name not in names:
            groups[(*call_key, id(entry))] = [entry]
            continue
        counts[(*call_key, entry.rank)] += 1
        groups.setdefault((*call_key, counts[(*call_key, entry.rank)]), []).append(entry)
    return replace(
        side, entries=sort_entries([_merge_group(group, rank, declarations) for group in groups.values()])
    )


def _merge_group(group: list[Entry], rank: int | None, declarations: Sequence[DeclaredPlacement]) -> Entry:
    """The entry of a single rank, as under pipeline parallelism, or the shards of several."""
    first = min(group, key=lambda entry: entry.first_rank)
    if len(group) == 1:
        return first if rank is None or first.rank == rank else replace(first, rank=rank)
    shards = tuple(sorted(group, key=lambda entry: entry.first_rank))
    return replace(
        first,
        reference=UnassembledRef(shards, find_declared_placement(first.name, declarations)),
        rank=first.rank if rank is None else rank,
        order=min(entry.order for entry in group),
        nbytes=sum(entry.nbytes for entry in group),
        placement=None,
        checksum="",
    )
