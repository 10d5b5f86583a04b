"""Values that one side keeps as one and the other as several: fused projections, a residual beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from tensortap.comparison.entries import Entry
from tensortap.comparison.fused_inputs import with_inputs
from tensortap.comparison.glimpse import Step, distance
from tensortap.comparison.joining import Joined, Laid, numbers_in
from tensortap.comparison.layouts import layout_of
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.neighbours import Neighbours
from tensortap.comparison.pieces_seen import PiecesSeen
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.ways import Way, joined
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_EQUAL, _WORSE = 0.1, 3.0
_MOST_PARTS, _MOST_TRIED = 3, 8
_SUM = Way("partial")


@dataclass(slots=True)
class _Numbers:
    """The numbers of values, each read once."""

    _held: dict[int, Array | None] = field(default_factory=dict)

    def of(self, entry: Entry) -> Array | None:
        if id(entry) not in self._held:
            self._held[id(entry)] = numbers_in(entry.reference)
        return self._held[id(entry)]

    def all_of(self, entries: Sequence[Entry]) -> list[Array] | None:
        held = [self.of(entry) for entry in entries]
        found = [one for one in held if one is not None]
        return found if len(found) == len(held) else None


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """One value, those of the other side that make it up, and how."""

    whole: Entry
    parts: list[Entry]
    way: Way
    steps: tuple[Step, ...]
    is_a: bool  # whether the one value is of A

    @property
    def is_fused(self) -> bool:
        return self.way is not _SUM


def recombined(matched: Matched) -> Matched:
    """The same, with what only one side has paired with those of the other that make it up."""
    if not matched.only_a or not matched.only_b:
        return matched
    found = all_made(matched)
    if not found:
        return matched
    taken = {id(entry) for made in found for entry in (made.whole, *made.parts)}
    pairs = [pair for made in found for pair in _pairs(made)]
    only = [[one for one in side if id(one) not in taken] for side in (matched.only_a, matched.only_b)]
    words = ", ".join(dict.fromkeys(pair.plan.words for pair in pairs if pair.plan is not None))
    note = f"{len(pairs)} pairs are kept as one value on one side and as several on the other: {words}"
    told = [*matched.told, note]
    settled = replace(matched, pairs=[*matched.pairs, *pairs], only_a=only[0], only_b=only[1], told=told)
    settled = with_inputs(settled, [(one.whole, one.parts, one.is_a) for one in found if one.is_fused])
    return replace(settled, pairs=sorted(settled.pairs, key=lambda pair: _place(pair.a)))


def all_made(matched: Matched) -> list[Made]:
    """Every value that only one side has and that values of the other make up."""
    found: list[Made] = []
    for mine, others, is_a in (
        (matched.only_a, matched.only_b, True),
        (matched.only_b, matched.only_a, False),
    ):
        taken = {id(entry) for made in found for entry in (made.whole, *made.parts)}
        near = Neighbours([one for one in others if id(one) not in taken and one.dtype])
        for entry in mine:
            made = _made_of(entry, near, is_a) if id(entry) not in taken and entry.dtype else None
            if made is not None:
                near.take(made.parts)
                found.append(made)
    return found


def _made_of(whole: Entry, near: Neighbours, is_a: bool) -> Made | None:
    """The values that make it up; nothing unless exactly one way does."""
    numbers = _Numbers()
    try:
        found = [*_sums(whole, near, numbers), *_sections(whole, near, numbers)]
    except (TensortapError, OSError, ValueError):
        return None
    return Made(whole, *found[0], is_a) if len(found) == 1 else None


_Parts = tuple[list[Entry], Way, tuple[Step, ...]]


def _sums(whole: Entry, near: Neighbours, numbers: _Numbers) -> Iterator[_Parts]:
    """Hidden states and the residual that the other side has added to them already."""
    parts = near.named(whole, (f"{whole.name}[0]", f"{whole.name}[1]"))
    if len(parts) == 2 and all(one.shape == whole.shape for one in parts):
        left = _left(whole, parts, _SUM, numbers)
        if left <= _EQUAL and all(_left(whole, [one], _SUM, numbers) > _WORSE * left for one in parts):
            yield parts, _SUM, ()


def _sections(whole: Entry, near: Neighbours, numbers: _Numbers) -> Iterator[_Parts]:
    """Query, key and value, or gate and up, in one product."""
    for axis in dict.fromkeys((len(whole.shape) - 1, 0)) if whole.shape else ():
        fitting = near.fitting(whole, axis, _MOST_TRIED)
        mine = numbers.of(whole) if len(fitting) > 1 else None
        if mine is None:
            continue
        seen = PiecesSeen(mine, axis)
        for count in range(2, _MOST_PARTS + 1):
            for parts in permutations(fitting, count):
                if sum(one.shape[axis] for one in parts) == whole.shape[axis]:
                    steps = _arranged(whole, list(parts), Way("shard", axis), numbers, seen)
                    if steps is not None:
                        yield list(parts), Way("shard", axis), steps


def _arranged(
    whole: Entry, parts: list[Entry], way: Way, numbers: _Numbers, seen: PiecesSeen
) -> tuple[Step, ...] | None:
    """What the whole needs to be the parts one after another; None where nothing makes it so."""
    held, mine = numbers.all_of(parts), numbers.of(whole)
    if held is None or mine is None:
        return None
    if seen.may_be(held, _EQUAL) and _left(whole, parts, way, numbers) <= _EQUAL:
        return ()
    if [one.order for one in parts] != sorted(one.order for one in parts):
        return None
    layout = layout_of(joined(way, held)[0], mine).layout
    return layout.b if layout is not None and layout.is_ordinary else None


def _pairs(made: Made) -> Iterator[Pair]:
    whole, parts, way, steps = made.whole, made.parts, made.way, made.steps
    words = f"fused along axis {way.dim}" if made.is_fused else "a residual beside"
    names = ", ".join(one.name for one in parts)
    if made.is_a or not made.is_fused:
        reference = Joined(tuple(one.reference for one in parts), way)
        other = replace(parts[0], name=names, reference=reference, shape=whole.shape, checksum="")
        laid = replace(whole, reference=Laid(whole.reference, steps), checksum="") if steps else whole
        told = f"equal up to {words}: {whole.name} is {names}"
        plan = AlignmentNote(laid.name if made.is_a else names, words, (told,))
        yield Pair(laid, other, "parts", plan=plan) if made.is_a else Pair(other, laid, "parts", plan=plan)
        return
    start = 0
    for part in parts:
        end = start + part.shape[way.dim]
        cut: Step = ("cut", way.dim, start, end)
        reference_b = Laid(whole.reference, (*steps, cut))
        other = replace(whole, reference=reference_b, shape=part.shape, checksum="")
        told = f"equal up to {words}: it is {start} to {end - 1} of {whole.name}"
        yield Pair(part, other, "parts", plan=AlignmentNote(part.name, words, (told,)))
        start = end


def _left(whole: Entry, parts: Sequence[Entry], way: Way, numbers: _Numbers) -> float:
    mine, held = numbers.of(whole), numbers.all_of(parts)
    return float("inf") if mine is None or held is None else distance(mine, joined(way, held)[0])


def _place(entry: Entry) -> tuple[int, int, int]:
    return entry.first_step, entry.order, entry.first_rank
