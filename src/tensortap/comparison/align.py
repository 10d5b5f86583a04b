"""The plan for one pair: pieces of ranks become a whole, tokens meet their own, layouts are made the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.joining import (
    Declared,
    Joined,
    Pieces,
    Stepped,
    Undecided,
    numbers_in,
    pieces_in,
    way_said,
)
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.measuring import measure_pairs
from tensortap.comparison.padding import without_padding
from tensortap.comparison.placing import Placing, infer, infer_both
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.recombining import recombined
from tensortap.comparison.references import InMemoryRef
from tensortap.comparison.said import as_said, checked
from tensortap.comparison.token_pairs import by_token
from tensortap.comparison.ways import REPLICATE, Way, joined
from tensortap.comparison.wholes import Whole, are_apart, arrays_in, farthest, ranks_of
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

log = logging.getLogger("tensortap.compare")


def align(matched: Matched, executor: Executor | None = None) -> Matched:
    """The pairs with one whole value on each side, and how that was made.

    How pieces sit in a whole is found by the executor's workers, where all of them can read the values."""
    pairs = _all_settled(matched.pairs, executor)
    notes = _notes(pairs)
    are_stepped = any(map(_is_of_steps, pairs))
    pairs = [_of_steps(pair) if _is_of_steps(pair) else _unplanned(pair) for pair in pairs]
    whole = replace(matched, pairs=pairs, told=[*matched.told, *notes], are_pieces=bool(notes))
    found = by_token(recombined(whole))
    return without_padding(found) if are_stepped else found


def _all_settled(pairs: Sequence[Pair], executor: Executor | None) -> list[Pair]:
    cut = [
        pair for pair in pairs if isinstance(pair.a.reference, Pieces) or isinstance(pair.b.reference, Pieces)
    ]
    if not cut:
        return list(pairs)
    found_there: list[Pair] = []
    if executor is not None and len(cut) > 1 and all(map(_is_on_disk, cut)):
        try:
            found_there = list(executor.map(settled, cut))
        except Exception as error:  # noqa: BLE001 - each executor has its own way to lose a worker
            log.warning("a worker was lost (%s: %s); it is done here", type(error).__name__, error)
    found = dict(zip(map(id, cut), found_there or map(settled, cut), strict=True))
    return [found.get(id(pair), pair) for pair in pairs]


def _is_on_disk(pair: Pair) -> bool:
    """Values in memory would be sent there and back."""
    held = [piece.reference for entry in (pair.a, pair.b) for piece in pieces_in(entry) or [entry]]
    return not any(isinstance(reference, InMemoryRef) for reference in held)


def _is_of_steps(pair: Pair) -> bool:
    return isinstance(pair.a.reference, Stepped) or isinstance(pair.b.reference, Stepped)


def _unplanned(pair: Pair) -> Pair:
    """A pair of which a side has several steps that could not be put together, with the reason."""
    told = [one.reference.told for one in (pair.a, pair.b) if isinstance(one.reference, Undecided)]
    if not told or pair.plan is not None:
        return pair
    return replace(pair, plan=AlignmentNote(pair.a.name, "unaligned", tuple(told), is_usable=False))


def _of_steps(pair: Pair) -> Pair:
    """The pair with the plan of what was put together from several steps."""
    told = [entry.reference.told for entry in (pair.a, pair.b) if isinstance(entry.reference, Stepped)]
    plan = pair.plan or AlignmentNote(pair.a.name, "", ())
    return replace(pair, plan=plan.then("steps put together", "".join(told)))


def settled(pair: Pair) -> Pair:
    """A pair of which a side is in pieces, with both whole; unusable, with the reason, where that fails."""
    try:
        a, b = _declared(pair.a), _declared(pair.b)
        wholes = _wholes(pair, a, b)
    except (TensortapError, OSError, ValueError) as error:
        wholes = f"{type(error).__name__}: {error}"
    if isinstance(wholes, str):
        plan = AlignmentNote(pair.a.name, "unaligned", (wholes,), is_usable=False)
        a_entry, b_entry = (
            replace(one, reference=Undecided(wholes)) if pieces_in(one) else one for one in (pair.a, pair.b)
        )
        return replace(pair, a=a_entry, b=b_entry, plan=plan)
    words = ", ".join(dict.fromkeys(one.words for one in wholes if one.words))
    told = tuple(f"{side}: {one.told}" for side, one in zip("AB", wholes, strict=True) if one.told)
    doubt = "; ".join(one.doubt for one in wholes if one.doubt)
    plan = AlignmentNote(pair.a.name, words, told, doubt=doubt)
    return replace(pair, a=wholes[0].entry, b=wholes[1].entry, plan=plan)


def _wholes(pair: Pair, a: Whole | None, b: Whole | None) -> tuple[Whole, Whole] | str:
    """Both values whole: each by what it says itself, else by the other side; a sentence where neither."""
    if a is not None and b is not None:
        return checked(pair.a, a, b), checked(pair.b, b, a)
    if a is None and b is None:
        return _both(pair)
    known, unknown = (a, pair.b) if b is None else (b, pair.a)
    assert known is not None
    whole, pieces = numbers_in(known.entry.reference), arrays_in(unknown)
    if whole is None or pieces is None:
        made = _same(unknown)
        if made is None:
            return (
                f"{unknown} is not numbers on every rank, and its ranks do not say how they belong together"
            )
        return (known, made) if b is None else (made, known)
    placing = infer(whole, pieces)
    if placing.way is None or not placing.is_usable:
        told = f"the pieces of {ranks_of(pieces_in(unknown))}: {placing}"
        return "; ".join(filter(None, [told, _unfit(unknown)]))
    made = _made(unknown, placing.way, placing, pieces, whole)
    return (known, made) if b is None else (made, known)


def _both(pair: Pair) -> tuple[Whole, Whole] | str:
    a, b = arrays_in(pair.a), arrays_in(pair.b)
    if a is None or b is None:
        copies = _same(pair.a), _same(pair.b)
        if copies[0] is None or copies[1] is None:
            return "neither side says how its pieces belong together, and they are not numbers"
        return copies[0], copies[1]
    found = infer_both(a, b)
    if isinstance(found, str):
        return f"neither side says how its pieces sit in the whole: {found}"
    way, placing = found
    assert placing.way is not None
    whole = joined(way, a)[0]
    return _made(pair.a, way, placing, a, whole), _made(pair.b, placing.way, placing, b, whole)


def _made(entry: Entry, way: Way, placing: Placing, arrays: Sequence[Array], whole: Array) -> Whole:
    pieces, copies = pieces_in(entry), joined(way, arrays)
    copy, worst = farthest(copies, whole)
    told = [f"{len(pieces)} pieces of {ranks_of(pieces)} are {placing}", worst, _unfit(entry)]
    if placing.misfits:
        wrong = ", ".join(str(pieces[position].rank) for position in placing.misfits)
        told.append(f"the piece of rank {wrong} does not fit, the others do")
    reference = Joined(tuple(piece.reference for piece in pieces), way, copy)
    made = replace(entry, reference=reference, shape=tuple(whole.shape))
    doubt = f"its {len(copies)} copies are not equal" if worst and are_apart(copies, entry.dtype) else ""
    return Whole(made, str(way), "; ".join(filter(None, told)), doubt)


def _same(entry: Entry) -> Whole | None:
    """What is not numbers, of ranks that all have the same; None where one has something else."""
    first, *others = pieces_in(entry)
    found = measure_pairs([(first, other) for other in others])
    if not all(not isinstance(one, str) and one.is_identical for one in found):
        return None
    told = f"{len(others) + 1} pieces of {ranks_of(pieces_in(entry))} are replicate: all of them are equal"
    return Whole(replace(entry, reference=first.reference), str(REPLICATE), told)


def _declared(entry: Entry) -> Whole | None:
    """A value that is whole by itself, or whose pieces say how they sit; None where nothing is said."""
    pieces = pieces_in(entry)
    if not pieces:
        return Whole(entry)
    way = way_said(entry)
    if way is not None:
        return as_said(entry, way)
    if any(piece.placement is None for piece in pieces) or _complaint(entry):
        return None
    first = pieces[0].placement
    assert first is not None
    words = " x ".join(first.parts)
    return Whole(
        replace(entry, reference=_declaration(entry), shape=first.shape),
        words,
        f"{len(pieces)} pieces of {ranks_of(pieces)} are {words}, as they say themselves",
    )


def _complaint(entry: Entry) -> str:
    """Why what the pieces say of themselves cannot be; empty where it can."""
    try:
        _declaration(entry).load()
    except (TensortapError, ValueError) as error:
        return str(error)
    return ""


def _declaration(entry: Entry) -> Declared:
    pieces = pieces_in(entry)
    return Declared(
        entry.name,
        tuple(piece.reference for piece in pieces),
        tuple(piece.first_rank for piece in pieces),
        tuple(piece.placement for piece in pieces),
    )


def _unfit(entry: Entry) -> str:
    """What was said of the pieces, and is not so."""
    if any(piece.placement is None for piece in pieces_in(entry)):
        return ""
    return f"what the pieces say of themselves is not so: {_complaint(entry)}"


def _notes(pairs: Iterable[Pair]) -> list[str]:
    plans = [pair.plan for pair in pairs if pair.plan is not None]
    if not plans:
        return []
    counts = Counter(plan.words for plan in plans)
    told = ", ".join(f"{count} {words}" for words, count in counts.most_common(6))
    return [f"the pieces of several ranks were put together: {told}; .explain(name) tells each plan"]
