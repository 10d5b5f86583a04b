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
from tensortap.kernels.decode import Array

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
        loaded = [self.load(entry) for entry in entries]
        arrays = [array for array in loaded if array is not None]
        return arrays if len(arrays) == len(loaded) else None


@dataclass(frozen=True, slots=True, eq=False)
class FusedMatch:
    """One value, those of the other side that make it up, and how."""

    full: Entry
    parts: list[Entry]
    placement: ShardPlacement
    ops: tuple[ArrayOp, ...]
    is_a: bool  # whether the one value is of A

    @property
    def is_fused(self) -> bool:
        return self.placement is not _SUM


def pair_fused(matching: Matching) -> Matching:
    """The same, with what only one side has paired with those of the other that make it up."""
    if not matching.only_a or not matching.only_b:
        return matching
    matches = find_fused(matching)
    if not matches:
        return matching
    paired = {id(entry) for fused in matches for entry in (fused.full, *fused.parts)}
    pairs = [pair for fused in matches for pair in _fused_pairs(fused)]
    only = [
        [entry for entry in side if id(entry) not in paired] for side in (matching.only_a, matching.only_b)
    ]
    summaries = ", ".join(
        dict.fromkeys(pair.alignment.summary for pair in pairs if pair.alignment is not None)
    )
    note = f"{len(pairs)} pairs are kept as one value on one side and as several on the other: {summaries}"
    messages = [*matching.messages, note]
    updated = replace(
        matching, pairs=[*matching.pairs, *pairs], only_a=only[0], only_b=only[1], messages=messages
    )
    updated = pair_fused_inputs(
        updated,
        [
            (fused_match.full, fused_match.parts, fused_match.is_a)
            for fused_match in matches
            if fused_match.is_fused
        ],
    )
    return replace(updated, pairs=sorted(updated.pairs, key=lambda pair: _execution_order(pair.a)))


def find_fused(matching: Matching) -> list[FusedMatch]:
    """Every value that only one side has and that values of the other make up."""
    matches: list[FusedMatch] = []
    for full_entries, part_entries, is_a in (
        (matching.only_a, matching.only_b, True),
        (matching.only_b, matching.only_a, False),
    ):
        paired = {id(entry) for fused in matches for entry in (fused.full, *fused.parts)}
        candidates = CandidatesByShape(
            [entry for entry in part_entries if id(entry) not in paired and entry.dtype]
        )
        for entry in full_entries:
            fused_match = (
                _find_parts(entry, candidates, is_a) if id(entry) not in paired and entry.dtype else None
            )
            if fused_match is not None:
                candidates.remove(fused_match.parts)
                matches.append(fused_match)
    return matches


def _find_parts(full: Entry, candidates: CandidatesByShape, is_a: bool) -> FusedMatch | None:
    """The values that make it up; nothing unless exactly one way does."""
    numbers = _NumbersCache()
    try:
        decompositions = [
            *_residual_sums(full, candidates, numbers),
            *_fused_sections(full, candidates, numbers),
        ]
    except (TensortapError, OSError, ValueError):
        return None
    return FusedMatch(full, *decompositions[0], is_a) if len(decompositions) == 1 else None


_FusedParts = tuple[list[Entry], ShardPlacement, tuple[ArrayOp, ...]]


def _residual_sums(
    full: Entry, candidates: CandidatesByShape, numbers: _NumbersCache
) -> Iterator[_FusedParts]:
    """Hidden states and the residual that the other side has added to them already."""
    parts = candidates.with_names(full, (f"{full.name}[0]", f"{full.name}[1]"))
    if len(parts) == 2 and all(part.shape == full.shape for part in parts):
        error = _remaining_error(full, parts, _SUM, numbers)
        if error <= _MAX_ERROR and all(
            _remaining_error(full, [part], _SUM, numbers) > _MARGIN * error for part in parts
        ):
            yield parts, _SUM, ()


def _fused_sections(
    full: Entry, candidates: CandidatesByShape, numbers: _NumbersCache
) -> Iterator[_FusedParts]:
    """Query, key and value, or gate and up, in one product."""
    for axis in dict.fromkeys((len(full.shape) - 1, 0)) if full.shape else ():
        fitting_parts = candidates.with_shape(full, axis, _MAX_CANDIDATES)
        full_numbers = numbers.load(full) if len(fitting_parts) > 1 else None
        if full_numbers is None:
            continue
        sampled = SampledConcatenation(full_numbers, axis)
        for count in range(2, _MAX_PARTS + 1):
            for parts in permutations(fitting_parts, count):
                if sum(part.shape[axis] for part in parts) == full.shape[axis]:
                    ops = _fused_layout(full, list(parts), ShardPlacement("shard", axis), numbers, sampled)
                    if ops is not None:
                        yield list(parts), ShardPlacement("shard", axis), ops


def _fused_layout(
    full: Entry,
    parts: list[Entry],
    placement: ShardPlacement,
    numbers: _NumbersCache,
    sampled: SampledConcatenation,
) -> tuple[ArrayOp, ...] | None:
    """What the whole needs to be the parts one after another; None where nothing makes it so."""
    arrays, full_numbers = numbers.load_all(parts), numbers.load(full)
    if arrays is None or full_numbers is None:
        return None
    if (
        sampled.could_match(arrays, _MAX_ERROR)
        and _remaining_error(full, parts, placement, numbers) <= _MAX_ERROR
    ):
        return ()
    if [part.order for part in parts] != sorted(part.order for part in parts):
        return None
    layout = find_layout(assemble(placement, arrays)[0], full_numbers).layout
    return layout.b if layout is not None and layout.is_conventional else None


def _fused_pairs(fused: FusedMatch) -> Iterator[EntryPair]:
    full, parts, placement, ops = fused.full, fused.parts, fused.placement, fused.ops
    summary = f"fused along axis {placement.dim}" if fused.is_fused else "a residual beside"
    names = ", ".join(part.name for part in parts)
    if fused.is_a or not fused.is_fused:
        reference = JoinedRef(tuple(part.reference for part in parts), placement)
        counterpart = replace(parts[0], name=names, reference=reference, shape=full.shape, checksum="")
        reordered = replace(full, reference=ReorderedRef(full.reference, ops), checksum="") if ops else full
        detail = f"equal up to {summary}: {full.name} is {names}"
        note = AlignmentNote(reordered.name if fused.is_a else names, summary, (detail,))
        yield (
            EntryPair(reordered, counterpart, "parts", alignment=note)
            if fused.is_a
            else EntryPair(counterpart, reordered, "parts", alignment=note)
        )
        return
    start = 0
    for part in parts:
        end = start + part.shape[placement.dim]
        cut: ArrayOp = ("cut", placement.dim, start, end)
        reference_b = ReorderedRef(full.reference, (*ops, cut))
        counterpart = replace(full, reference=reference_b, shape=part.shape, checksum="")
        detail = f"equal up to {summary}: it is {start} to {end - 1} of {full.name}"
        yield EntryPair(part, counterpart, "parts", alignment=AlignmentNote(part.name, summary, (detail,)))
        start = end


def _remaining_error(
    full: Entry, parts: Sequence[Entry], placement: ShardPlacement, numbers: _NumbersCache
) -> float:
    full_numbers, arrays = numbers.load(full), numbers.load_all(parts)
    return (
        float("inf")
        if full_numbers is None or arrays is None
        else relative_distance(full_numbers, assemble(placement, arrays)[0])
    )


def _execution_order(entry: Entry) -> tuple[int, int, int]:
    return entry.first_step, entry.order, entry.first_rank
