"""The plan for one pair: pieces of ranks become a whole, tokens meet their own, layouts are made the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.joining import (
    ConcatenatedStepsRef,
    DeclaredShardsRef,
    JoinedRef,
    UnassembledRef,
    UnresolvedRef,
    declared_placement,
    load_numbers,
    shards_of,
)
from tensortap.comparison.match import EntryPair, Matching
from tensortap.comparison.measuring import measure_pairs
from tensortap.comparison.padding import drop_padding
from tensortap.comparison.placing import InferredPlacement, infer_both_placements, infer_placement
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.recombining import pair_fused
from tensortap.comparison.references import InMemoryRef
from tensortap.comparison.said import apply_declared_placement, check_declared_placement
from tensortap.comparison.token_pairs import align_tokens
from tensortap.comparison.ways import REPLICATE, ShardPlacement, assemble
from tensortap.comparison.wholes import (
    FullValue,
    describe_ranks,
    do_replicas_differ,
    farthest_replica,
    load_shards,
)
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

log = logging.getLogger("tensortap.compare")


def align_pairs(matched: Matching, executor: Executor | None = None) -> Matching:
    """The pairs with one whole value on each side, and how that was made.

    How pieces sit in a whole is found by the executor's workers, where all of them can read the values."""
    pairs = _assemble_all(matched.pairs, executor)
    notes = _summarise_placements(pairs)
    are_stepped = any(map(_spans_several_steps, pairs))
    pairs = [
        _note_joined_steps(pair) if _spans_several_steps(pair) else _note_unresolved(pair) for pair in pairs
    ]
    whole = replace(matched, pairs=pairs, messages=[*matched.messages, *notes], has_shards=bool(notes))
    found = align_tokens(pair_fused(whole))
    return drop_padding(found) if are_stepped else found


def _assemble_all(pairs: Sequence[EntryPair], executor: Executor | None) -> list[EntryPair]:
    cut = [
        pair
        for pair in pairs
        if isinstance(pair.a.reference, UnassembledRef) or isinstance(pair.b.reference, UnassembledRef)
    ]
    if not cut:
        return list(pairs)
    found_there: list[EntryPair] = []
    if executor is not None and len(cut) > 1 and all(map(_is_on_disk, cut)):
        try:
            found_there = list(executor.map(assemble_pair, cut))
        except Exception as error:  # noqa: BLE001 - each executor has its own way to lose a worker
            log.warning("a worker was lost (%s: %s); it is done here", type(error).__name__, error)
    found = dict(zip(map(id, cut), found_there or map(assemble_pair, cut), strict=True))
    return [found.get(id(pair), pair) for pair in pairs]


def _is_on_disk(pair: EntryPair) -> bool:
    """Values in memory would be sent there and back."""
    held = [piece.reference for entry in (pair.a, pair.b) for piece in shards_of(entry) or [entry]]
    return not any(isinstance(reference, InMemoryRef) for reference in held)


def _spans_several_steps(pair: EntryPair) -> bool:
    return isinstance(pair.a.reference, ConcatenatedStepsRef) or isinstance(
        pair.b.reference, ConcatenatedStepsRef
    )


def _note_unresolved(pair: EntryPair) -> EntryPair:
    """A pair of which a side has several steps that could not be put together, with the reason."""
    told = [one.reference.reason for one in (pair.a, pair.b) if isinstance(one.reference, UnresolvedRef)]
    if not told or pair.alignment is not None:
        return pair
    return replace(pair, alignment=AlignmentNote(pair.a.name, "unaligned", tuple(told), is_usable=False))


def _note_joined_steps(pair: EntryPair) -> EntryPair:
    """The pair with the plan of what was put together from several steps."""
    told = [
        entry.reference.description
        for entry in (pair.a, pair.b)
        if isinstance(entry.reference, ConcatenatedStepsRef)
    ]
    plan = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(pair, alignment=plan.extended("steps put together", "".join(told)))


def assemble_pair(pair: EntryPair) -> EntryPair:
    """A pair of which a side is in pieces, with both whole; unusable, with the reason, where that fails."""
    try:
        a, b = _assemble_declared(pair.a), _assemble_declared(pair.b)
        wholes = _assemble_both_sides(pair, a, b)
    except (TensortapError, OSError, ValueError) as error:
        wholes = f"{type(error).__name__}: {error}"
    if isinstance(wholes, str):
        plan = AlignmentNote(pair.a.name, "unaligned", (wholes,), is_usable=False)
        a_entry, b_entry = (
            replace(one, reference=UnresolvedRef(wholes)) if shards_of(one) else one
            for one in (pair.a, pair.b)
        )
        return replace(pair, a=a_entry, b=b_entry, alignment=plan)
    words = ", ".join(dict.fromkeys(one.summary for one in wholes if one.summary))
    told = tuple(f"{side}: {one.details}" for side, one in zip("AB", wholes, strict=True) if one.details)
    doubt = "; ".join(one.replica_mismatch for one in wholes if one.replica_mismatch)
    plan = AlignmentNote(pair.a.name, words, told, replica_mismatch=doubt)
    return replace(pair, a=wholes[0].entry, b=wholes[1].entry, alignment=plan)


def _assemble_both_sides(
    pair: EntryPair, a: FullValue | None, b: FullValue | None
) -> tuple[FullValue, FullValue] | str:
    """Both values whole: each by what it says itself, else by the other side; a sentence where neither."""
    if a is not None and b is not None:
        return check_declared_placement(pair.a, a, b), check_declared_placement(pair.b, b, a)
    if a is None and b is None:
        return _infer_both_sides(pair)
    known, unknown = (a, pair.b) if b is None else (b, pair.a)
    assert known is not None
    whole, pieces = load_numbers(known.entry.reference), load_shards(unknown)
    if whole is None or pieces is None:
        made = _take_identical_shards(unknown)
        if made is None:
            return (
                f"{unknown} is not numbers on every rank, and its ranks do not say how they belong together"
            )
        return (known, made) if b is None else (made, known)
    placing = infer_placement(whole, pieces)
    if placing.placement is None or not placing.is_usable:
        told = f"the pieces of {describe_ranks(shards_of(unknown))}: {placing}"
        return "; ".join(filter(None, [told, _describe_declaration_error(unknown)]))
    made = _assemble_shards(unknown, placing.placement, placing, pieces, whole)
    return (known, made) if b is None else (made, known)


def _infer_both_sides(pair: EntryPair) -> tuple[FullValue, FullValue] | str:
    a, b = load_shards(pair.a), load_shards(pair.b)
    if a is None or b is None:
        copies = _take_identical_shards(pair.a), _take_identical_shards(pair.b)
        if copies[0] is None or copies[1] is None:
            return "neither side says how its pieces belong together, and they are not numbers"
        return copies[0], copies[1]
    found = infer_both_placements(a, b)
    if isinstance(found, str):
        return f"neither side says how its pieces sit in the whole: {found}"
    way, placing = found
    assert placing.placement is not None
    whole = assemble(way, a)[0]
    return _assemble_shards(pair.a, way, placing, a, whole), _assemble_shards(
        pair.b, placing.placement, placing, b, whole
    )


def _assemble_shards(
    entry: Entry, way: ShardPlacement, placing: InferredPlacement, arrays: Sequence[Array], whole: Array
) -> FullValue:
    pieces, copies = shards_of(entry), assemble(way, arrays)
    copy, worst = farthest_replica(copies, whole)
    told = [
        f"{len(pieces)} pieces of {describe_ranks(pieces)} are {placing}",
        worst,
        _describe_declaration_error(entry),
    ]
    if placing.misfits:
        wrong = ", ".join(str(pieces[position].rank) for position in placing.misfits)
        told.append(f"the piece of rank {wrong} does not fit, the others do")
    reference = JoinedRef(tuple(piece.reference for piece in pieces), way, copy)
    made = replace(entry, reference=reference, shape=tuple(whole.shape))
    doubt = (
        f"its {len(copies)} copies are not equal" if worst and do_replicas_differ(copies, entry.dtype) else ""
    )
    return FullValue(made, str(way), "; ".join(filter(None, told)), doubt)


def _take_identical_shards(entry: Entry) -> FullValue | None:
    """What is not numbers, of ranks that all have the same; None where one has something else."""
    first, *others = shards_of(entry)
    found = measure_pairs([(first, other) for other in others])
    if not all(not isinstance(one, str) and one.is_identical for one in found):
        return None
    told = (
        f"{len(others) + 1} pieces of {describe_ranks(shards_of(entry))} are replicate: all of them are equal"
    )
    return FullValue(replace(entry, reference=first.reference), str(REPLICATE), told)


def _assemble_declared(entry: Entry) -> FullValue | None:
    """A value that is whole by itself, or whose pieces say how they sit; None where nothing is said."""
    pieces = shards_of(entry)
    if not pieces:
        return FullValue(entry)
    way = declared_placement(entry)
    if way is not None:
        return apply_declared_placement(entry, way)
    if any(piece.placement is None for piece in pieces) or _declaration_error(entry):
        return None
    first = pieces[0].placement
    assert first is not None
    words = " x ".join(first.parts)
    return FullValue(
        replace(entry, reference=_declared_shards(entry), shape=first.shape),
        words,
        f"{len(pieces)} pieces of {describe_ranks(pieces)} are {words}, as they say themselves",
    )


def _declaration_error(entry: Entry) -> str:
    """Why what the pieces say of themselves cannot be; empty where it can."""
    try:
        _declared_shards(entry).load()
    except (TensortapError, ValueError) as error:
        return str(error)
    return ""


def _declared_shards(entry: Entry) -> DeclaredShardsRef:
    pieces = shards_of(entry)
    return DeclaredShardsRef(
        entry.name,
        tuple(piece.reference for piece in pieces),
        tuple(piece.first_rank for piece in pieces),
        tuple(piece.placement for piece in pieces),
    )


def _describe_declaration_error(entry: Entry) -> str:
    """What was said of the pieces, and is not so."""
    if any(piece.placement is None for piece in shards_of(entry)):
        return ""
    return f"what the pieces say of themselves is not so: {_declaration_error(entry)}"


def _summarise_placements(pairs: Iterable[EntryPair]) -> list[str]:
    plans = [pair.alignment for pair in pairs if pair.alignment is not None]
    if not plans:
        return []
    counts = Counter(plan.summary for plan in plans)
    told = ", ".join(f"{count} {words}" for words, count in counts.most_common(6))
    return [f"the pieces of several ranks were put together: {told}; .explain(name) tells each plan"]
