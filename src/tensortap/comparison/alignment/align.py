"""The alignment pass: assemble shards, pair fused projections, align tokens, drop padding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from tensortap.comparison.alignment.fused import pair_fused
from tensortap.comparison.alignment.padding import drop_padding
from tensortap.comparison.alignment.tokens import align_tokens
from tensortap.comparison.matching.match import EntryPair, Matching
from tensortap.comparison.sharding.assemble import (
    FullValue,
    apply_declared_placement,
    check_declared_placement,
    describe_ranks,
    do_replicas_differ,
    farthest_replica,
    load_shards,
)
from tensortap.comparison.sharding.derived import (
    ConcatenatedStepsRef,
    DeclaredShardsRef,
    JoinedRef,
    UnassembledRef,
    UnresolvedRef,
    declared_placement,
    load_numbers,
    shards_of,
)
from tensortap.comparison.sharding.infer import InferredPlacement, infer_both_placements, infer_placement
from tensortap.comparison.sharding.placement import REPLICATE, ShardPlacement, assemble
from tensortap.comparison.sides.entry import AlignmentNote, Entry, InMemoryRef
from tensortap.comparison.values.measure import measure_pairs
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

log = logging.getLogger("tensortap.compare")


def align_pairs(matching: Matching, executor: Executor | None = None) -> Matching:
    """The pairs with one full value on each side, and notes on how they were aligned.

    Placements are inferred by the executor's workers if all values are on disk.
    """
    pairs = _assemble_all(matching.pairs, executor)
    notes = _summarise_placements(pairs)
    are_stepped = any(map(_spans_several_steps, pairs))
    pairs = [
        _note_joined_steps(pair) if _spans_several_steps(pair) else _note_unresolved(pair) for pair in pairs
    ]
    assembled = replace(matching, pairs=pairs, messages=[*matching.messages, *notes], has_shards=bool(notes))
    aligned = pair_fused(assembled) if assembled.only_a and assembled.only_b else assembled
    if any(pair.a.is_token_ids and pair.b.is_token_ids for pair in aligned.pairs):
        aligned = align_tokens(aligned)
    return drop_padding(aligned) if are_stepped else aligned


def _assemble_all(pairs: Sequence[EntryPair], executor: Executor | None) -> list[EntryPair]:
    sharded = [
        pair
        for pair in pairs
        if isinstance(pair.a.reference, UnassembledRef) or isinstance(pair.b.reference, UnassembledRef)
    ]
    if not sharded:
        return list(pairs)
    from_workers: list[EntryPair] = []
    if executor is not None and len(sharded) > 1 and all(map(_is_on_disk, sharded)):
        try:
            from_workers = list(executor.map(assemble_pair, sharded))
        except Exception as error:  # noqa: BLE001 - every executor raises its own error for a lost worker
            log.warning("a worker was lost (%s: %s); it is done here", type(error).__name__, error)
    assembled = dict(zip(map(id, sharded), from_workers or map(assemble_pair, sharded), strict=True))
    return [assembled.get(id(pair), pair) for pair in pairs]


def _is_on_disk(pair: EntryPair) -> bool:
    """Whether workers can load the values themselves: those in memory would have to be sent."""
    references = [shard.reference for entry in (pair.a, pair.b) for shard in shards_of(entry) or [entry]]
    return not any(isinstance(reference, InMemoryRef) for reference in references)


def _spans_several_steps(pair: EntryPair) -> bool:
    return isinstance(pair.a.reference, ConcatenatedStepsRef) or isinstance(
        pair.b.reference, ConcatenatedStepsRef
    )


def _note_unresolved(pair: EntryPair) -> EntryPair:
    """Add the reason if a side has several steps that could not be merged."""
    reasons = [
        entry.reference.reason for entry in (pair.a, pair.b) if isinstance(entry.reference, UnresolvedRef)
    ]
    if not reasons or pair.alignment is not None:
        return pair
    return replace(pair, alignment=AlignmentNote(pair.a.name, "unaligned", tuple(reasons), is_usable=False))


def _note_joined_steps(pair: EntryPair) -> EntryPair:
    """Add how several steps were merged."""
    descriptions = [
        entry.reference.description
        for entry in (pair.a, pair.b)
        if isinstance(entry.reference, ConcatenatedStepsRef)
    ]
    note = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(pair, alignment=note.extended("steps put together", "".join(descriptions)))


def assemble_pair(pair: EntryPair) -> EntryPair:
    """The pair with both sides assembled; unusable, with the reason, if that fails."""
    try:
        a, b = _assemble_declared(pair.a), _assemble_declared(pair.b)
        full_values = _assemble_both_sides(pair, a, b)
    except (TensortapError, OSError, ValueError) as error:
        full_values = f"{type(error).__name__}: {error}"
    if isinstance(full_values, str):
        note = AlignmentNote(pair.a.name, "unaligned", (full_values,), is_usable=False)
        a_entry, b_entry = (
            replace(entry, reference=UnresolvedRef(full_values)) if shards_of(entry) else entry
            for entry in (pair.a, pair.b)
        )
        return replace(pair, a=a_entry, b=b_entry, alignment=note)
    summary = ", ".join(dict.fromkeys(full_value.summary for full_value in full_values if full_value.summary))
    details = tuple(
        f"{side}: {full_value.details}"
        for side, full_value in zip("AB", full_values, strict=True)
        if full_value.details
    )
    replica_mismatch = "; ".join(
        full_value.replica_mismatch for full_value in full_values if full_value.replica_mismatch
    )
    note = AlignmentNote(pair.a.name, summary, details, replica_mismatch=replica_mismatch)
    return replace(pair, a=full_values[0].entry, b=full_values[1].entry, alignment=note)


def _assemble_both_sides(
    pair: EntryPair, a: FullValue | None, b: FullValue | None
) -> tuple[FullValue, FullValue] | str:
    """Both full values: by declared placements, else inferred from the other side; a message if neither
    works."""
    if a is not None and b is not None:
        return check_declared_placement(pair.a, a, b), check_declared_placement(pair.b, b, a)
    if a is None and b is None:
        return _infer_both_sides(pair)
    full_side, sharded_entry = (a, pair.b) if b is None else (b, pair.a)
    assert full_side is not None
    full, shards = load_numbers(full_side.entry.reference), load_shards(sharded_entry)
    if full is None or shards is None:
        assembled = _take_identical_shards(sharded_entry)
        if assembled is None:
            return (
                f"{sharded_entry} is not numbers on every rank, "
                "and its ranks do not say how they belong together"
            )
        return (full_side, assembled) if b is None else (assembled, full_side)
    inferred = infer_placement(full, shards)
    if inferred.placement is None or not inferred.is_usable:
        message = f"the pieces of {describe_ranks(shards_of(sharded_entry))}: {inferred}"
        return "; ".join(filter(None, [message, _describe_declaration_error(sharded_entry)]))
    assembled = _assemble_shards(sharded_entry, inferred.placement, inferred, shards, full)
    return (full_side, assembled) if b is None else (assembled, full_side)


def _infer_both_sides(pair: EntryPair) -> tuple[FullValue, FullValue] | str:
    a, b = load_shards(pair.a), load_shards(pair.b)
    if a is None or b is None:
        replicas = _take_identical_shards(pair.a), _take_identical_shards(pair.b)
        if replicas[0] is None or replicas[1] is None:
            return "neither side says how its pieces belong together, and they are not numbers"
        return replicas[0], replicas[1]
    inferred_both = infer_both_placements(a, b)
    if isinstance(inferred_both, str):
        return f"neither side says how its pieces sit in the whole: {inferred_both}"
    placement, inferred = inferred_both
    assert inferred.placement is not None
    full = assemble(placement, a)[0]
    return _assemble_shards(pair.a, placement, inferred, a, full), _assemble_shards(
        pair.b, inferred.placement, inferred, b, full
    )


def _assemble_shards(
    entry: Entry, placement: ShardPlacement, inferred: InferredPlacement, arrays: Sequence[Array], full: Array
) -> FullValue:
    shards, replicas = shards_of(entry), assemble(placement, arrays)
    replica, mismatch = farthest_replica(replicas, full)
    details = [
        f"{len(shards)} pieces of {describe_ranks(shards)} are {inferred}",
        mismatch,
        _describe_declaration_error(entry),
    ]
    if inferred.misfits:
        misfits = ", ".join(str(shards[position].rank) for position in inferred.misfits)
        details.append(f"the piece of rank {misfits} does not fit, the others do")
    reference = JoinedRef(tuple(shard.reference for shard in shards), placement, replica)
    full_entry = replace(entry, reference=reference, shape=tuple(full.shape))
    replica_mismatch = (
        f"its {len(replicas)} copies are not equal"
        if mismatch and do_replicas_differ(replicas, entry.dtype)
        else ""
    )
    return FullValue(full_entry, str(placement), "; ".join(filter(None, details)), replica_mismatch)


def _take_identical_shards(entry: Entry) -> FullValue | None:
    """One of several non-numeric shards that are all equal; None if they differ."""
    first, *other_shards = shards_of(entry)
    measurements = measure_pairs([(first, shard) for shard in other_shards])
    if not all(not isinstance(measurement, str) and measurement.is_identical for measurement in measurements):
        return None
    count, ranks = len(other_shards) + 1, describe_ranks(shards_of(entry))
    details = f"{count} pieces of {ranks} are replicate: all of them are equal"
    return FullValue(replace(entry, reference=first.reference), str(REPLICATE), details)


def _assemble_declared(entry: Entry) -> FullValue | None:
    """The full value by its declared placement, or as it is; None if nothing is declared."""
    shards = shards_of(entry)
    if not shards:
        return FullValue(entry)
    placement = declared_placement(entry)
    if placement is not None:
        return apply_declared_placement(entry, placement)
    if any(shard.placement is None for shard in shards) or _declaration_error(entry):
        return None
    first = shards[0].placement
    assert first is not None
    summary = " x ".join(first.parts)
    return FullValue(
        replace(entry, reference=_declared_shards(entry), shape=first.shape),
        summary,
        f"{len(shards)} pieces of {describe_ranks(shards)} are {summary}, as they say themselves",
    )


def _declaration_error(entry: Entry) -> str:
    """Why the declared placements are inconsistent; empty if they are not."""
    try:
        _declared_shards(entry).load()
    except (TensortapError, ValueError) as error:
        return str(error)
    return ""


def _declared_shards(entry: Entry) -> DeclaredShardsRef:
    shards = shards_of(entry)
    return DeclaredShardsRef(
        entry.name,
        tuple(shard.reference for shard in shards),
        tuple(shard.first_rank for shard in shards),
        tuple(shard.placement for shard in shards),
    )


def _describe_declaration_error(entry: Entry) -> str:
    """A message if the shards declare inconsistent placements."""
    if any(shard.placement is None for shard in shards_of(entry)):
        return ""
    return f"what the pieces say of themselves is not so: {_declaration_error(entry)}"


def _summarise_placements(pairs: Iterable[EntryPair]) -> list[str]:
    notes = [pair.alignment for pair in pairs if pair.alignment is not None]
    if not notes:
        return []
    counts = Counter(note.summary for note in notes)
    listing = ", ".join(f"{count} {summary}" for summary, count in counts.most_common(6))
    return [f"the pieces of several ranks were put together: {listing}; .explain(name) tells each plan"]
