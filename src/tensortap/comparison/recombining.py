"""Values that one side keeps as one and the other as several: fused projections, a residual beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from tensortap.comparison.entries import Entry
from tensortap.comparison.fused_inputs import pair_fused_inputs
from tensortap.comparison.glimpse import ArrayOp, relative_distance
from tensortap.comparison.joining import JoinedRef, ReorderedRef, load_numbers
from tensortap.comparison.layouts import find_layout
from tensortap.comparison.match import EntryPair, Matching
from tensortap.comparison.neighbours import CandidatesByShape
from tensortap.comparison.pieces_seen import SampledConcatenation
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.ways import ShardPlacement, assemble
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_MAX_ERROR, _MARGIN = 0.1, 3.0
_MAX_PARTS, _MAX_CANDIDATES = 3, 8
_SUM = ShardPlacement("partial")


@dataclass(slots=True)
class _NumbersCache:
    """The numbers of values, each read once."""

    _arrays: dict[int, Array | None] = field(default_factory=dict)

    def load(self, entry: Entry) -> Array | None:
        if id(entry) not in self._arrays:
            self._arrays[id(entry)] = load_numbers(entry.reference)
        return self._arrays[id(entry)]

    def load_all(self, entries: Sequence[Entry]) -> list[Array] | None:
        held = [self.load(entry) for entry in entries]
        found = [one for one in held if one is not None]
        return found if len(found) == len(held) else None


@dataclass(frozen=True, slots=True, eq=False)
class FusedMatch:
    """One value, those of the other side that make it up, and how."""

    whole: Entry
    parts: list[Entry]
    placement: ShardPlacement
    ops: tuple[ArrayOp, ...]
    is_a: bool  # whether the one value is of A

    @property
    def is_fused(self) -> bool:
        return self.placement is not _SUM


def pair_fused(matched: Matching) -> Matching:
    """The same, with what only one side has paired with those of the other that make it up."""
    if not matched.only_a or not matched.only_b:
        return matched
    found = find_fused(matched)
    if not found:
        return matched
    taken = {id(entry) for made in found for entry in (made.whole, *made.parts)}
    pairs = [pair for made in found for pair in _fused_pairs(made)]
    only = [[one for one in side if id(one) not in taken] for side in (matched.only_a, matched.only_b)]
    words = ", ".join(dict.fromkeys(pair.alignment.summary for pair in pairs if pair.alignment is not None))
    note = f"{len(pairs)} pairs are kept as one value on one side and as several on the other: {words}"
    told = [*matched.messages, note]
    settled = replace(matched, pairs=[*matched.pairs, *pairs], only_a=only[0], only_b=only[1], messages=told)
    settled = pair_fused_inputs(settled, [(one.whole, one.parts, one.is_a) for one in found if one.is_fused])
    return replace(settled, pairs=sorted(settled.pairs, key=lambda pair: _execution_order(pair.a)))


def find_fused(matched: Matching) -> list[FusedMatch]:
    """Every value that only one side has and that values of the other make up."""
    found: list[FusedMatch] = []
    for mine, others, is_a in (
        (matched.only_a, matched.only_b, True),
        (matched.only_b, matched.only_a, False),
    ):
        taken = {id(entry) for made in found for entry in (made.whole, *made.parts)}
        near = CandidatesByShape([one for one in others if id(one) not in taken and one.dtype])
        for entry in mine:
            made = _find_parts(entry, near, is_a) if id(entry) not in taken and entry.dtype else None
            if made is not None:
                near.remove(made.parts)
                found.append(made)
    return found


def _find_parts(whole: Entry, near: CandidatesByShape, is_a: bool) -> FusedMatch | None:
    """The values that make it up; nothing unless exactly one way does."""
    numbers = _NumbersCache()
    try:
        found = [*_residual_sums(whole, near, numbers), *_fused_sections(whole, near, numbers)]
    except (TensortapError, OSError, ValueError):
        return None
    return FusedMatch(whole, *found[0], is_a) if len(found) == 1 else None


_FusedParts = tuple[list[Entry], ShardPlacement, tuple[ArrayOp, ...]]


def _residual_sums(whole: Entry, near: CandidatesByShape, numbers: _NumbersCache) -> Iterator[_FusedParts]:
    """Hidden states and the residual that the other side has added to them already."""
    parts = near.with_names(whole, (f"{whole.name}[0]", f"{whole.name}[1]"))
    if len(parts) == 2 and all(one.shape == whole.shape for one in parts):
        left = _remaining_error(whole, parts, _SUM, numbers)
        if left <= _MAX_ERROR and all(
            _remaining_error(whole, [one], _SUM, numbers) > _MARGIN * left for one in parts
        ):
            yield parts, _SUM, ()


def _fused_sections(whole: Entry, near: CandidatesByShape, numbers: _NumbersCache) -> Iterator[_FusedParts]:
    """Query, key and value, or gate and up, in one product."""
    for axis in dict.fromkeys((len(whole.shape) - 1, 0)) if whole.shape else ():
        fitting = near.with_shape(whole, axis, _MAX_CANDIDATES)
        mine = numbers.load(whole) if len(fitting) > 1 else None
        if mine is None:
            continue
        seen = SampledConcatenation(mine, axis)
        for count in range(2, _MAX_PARTS + 1):
            for parts in permutations(fitting, count):
                if sum(one.shape[axis] for one in parts) == whole.shape[axis]:
                    steps = _fused_layout(whole, list(parts), ShardPlacement("shard", axis), numbers, seen)
                    if steps is not None:
                        yield list(parts), ShardPlacement("shard", axis), steps


def _fused_layout(
    whole: Entry, parts: list[Entry], way: ShardPlacement, numbers: _NumbersCache, seen: SampledConcatenation
) -> tuple[ArrayOp, ...] | None:
    """What the whole needs to be the parts one after another; None where nothing makes it so."""
    held, mine = numbers.load_all(parts), numbers.load(whole)
    if held is None or mine is None:
        return None
    if seen.could_match(held, _MAX_ERROR) and _remaining_error(whole, parts, way, numbers) <= _MAX_ERROR:
        return ()
    if [one.order for one in parts] != sorted(one.order for one in parts):
        return None
    layout = find_layout(assemble(way, held)[0], mine).layout
    return layout.b if layout is not None and layout.is_conventional else None


def _fused_pairs(made: FusedMatch) -> Iterator[EntryPair]:
    whole, parts, way, steps = made.whole, made.parts, made.placement, made.ops
    words = f"fused along axis {way.dim}" if made.is_fused else "a residual beside"
    names = ", ".join(one.name for one in parts)
    if made.is_a or not made.is_fused:
        reference = JoinedRef(tuple(one.reference for one in parts), way)
        other = replace(parts[0], name=names, reference=reference, shape=whole.shape, checksum="")
        laid = replace(whole, reference=ReorderedRef(whole.reference, steps), checksum="") if steps else whole
        told = f"equal up to {words}: {whole.name} is {names}"
        plan = AlignmentNote(laid.name if made.is_a else names, words, (told,))
        yield (
            EntryPair(laid, other, "parts", alignment=plan)
            if made.is_a
            else EntryPair(other, laid, "parts", alignment=plan)
        )
        return
    start = 0
    for part in parts:
        end = start + part.shape[way.dim]
        cut: ArrayOp = ("cut", way.dim, start, end)
        reference_b = ReorderedRef(whole.reference, (*steps, cut))
        other = replace(whole, reference=reference_b, shape=part.shape, checksum="")
        told = f"equal up to {words}: it is {start} to {end - 1} of {whole.name}"
        yield EntryPair(part, other, "parts", alignment=AlignmentNote(part.name, words, (told,)))
        start = end


def _remaining_error(
    whole: Entry, parts: Sequence[Entry], way: ShardPlacement, numbers: _NumbersCache
) -> float:
    mine, held = numbers.load(whole), numbers.load_all(parts)
    return float("inf") if mine is None or held is None else relative_distance(mine, assemble(way, held)[0])


def _execution_order(entry: Entry) -> tuple[int, int, int]:
    return entry.first_step, entry.order, entry.first_rank
