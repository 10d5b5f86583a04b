"""Values that one side keeps as one and the other as several: fused projections, a residual beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.joining import Joined, Laid, numbers_in
from tensortap.comparison.layouts import Step, layout_of
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.plans import Plan
from tensortap.comparison.ways import Way, joined
from tensortap.core.errors import TensortapError

_EQUAL, _WORSE = 0.1, 3.0
_MOST_PARTS, _MOST_TRIED = 3, 8
_SUM = Way("partial")


def recombined(matched: Matched) -> Matched:
    """The same, with what only one side has paired with those of the other that make it up."""
    if not matched.only_a or not matched.only_b:
        return matched
    found: list[tuple[Pair, list[Entry]]] = []
    taken: set[int] = set()
    for mine, others, is_a in (
        (matched.only_a, matched.only_b, True),
        (matched.only_b, matched.only_a, False),
    ):
        for entry in mine:
            free = [one for one in others if id(one) not in taken]
            parts, pairs = _made_of(entry, free, is_a) if id(entry) not in taken and entry.dtype else ([], [])
            if parts:
                taken |= {id(entry), *map(id, parts)}
                found += [(pair, parts) for pair in pairs]
    if not found:
        return matched
    pairs = sorted([*matched.pairs, *(pair for pair, _ in found)], key=lambda pair: _place(pair.a))
    only = [[one for one in side if id(one) not in taken] for side in (matched.only_a, matched.only_b)]
    words = ", ".join(dict.fromkeys(pair.plan.words for pair, _ in found if pair.plan is not None))
    note = f"{len(found)} pairs are kept as one value on one side and as several on the other: {words}"
    return replace(matched, pairs=pairs, only_a=only[0], only_b=only[1], notes=[*matched.notes, note])


def _made_of(whole: Entry, others: Sequence[Entry], is_a: bool) -> tuple[list[Entry], list[Pair]]:
    """The values that make it up, and the pairs that compare them; nothing unless exactly one way does."""
    near = [one for one in others if _is_near(whole, one) and one.dtype]
    try:
        found = [*_sums(whole, near), *_sections(whole, near)]
    except (TensortapError, OSError, ValueError):
        return [], []
    if len(found) != 1:
        return [], []
    parts, way, steps = found[0]
    return parts, list(_pairs(whole, parts, way, steps, is_a))


_Made = tuple[list[Entry], Way, tuple[Step, ...]]


def _sums(whole: Entry, near: Sequence[Entry]) -> Iterator[_Made]:
    """Hidden states and the residual that the other side has added to them already."""
    parts = [one for one in near if one.name in (f"{whole.name}[0]", f"{whole.name}[1]")]
    if len(parts) == 2 and all(one.shape == whole.shape for one in parts):
        left = _left(whole, parts, _SUM)
        if left <= _EQUAL and all(_left(whole, [one], _SUM) > _WORSE * left for one in parts):
            yield parts, _SUM, ()


def _sections(whole: Entry, near: Sequence[Entry]) -> Iterator[_Made]:
    """Query, key and value, or gate and up, in one product."""
    for axis in dict.fromkeys((len(whole.shape) - 1, 0)) if whole.shape else ():
        fitting = [one for one in near if _without(one.shape, axis) == _without(whole.shape, axis)]
        for count in range(2, _MOST_PARTS + 1):
            for parts in permutations(fitting[:_MOST_TRIED], count):
                if sum(one.shape[axis] for one in parts) == whole.shape[axis]:
                    steps = _arranged(whole, list(parts), Way("shard", axis))
                    if steps is not None:
                        yield list(parts), Way("shard", axis), steps


def _arranged(whole: Entry, parts: list[Entry], way: Way) -> tuple[Step, ...] | None:
    """What the whole needs to be the parts one after another; None where nothing makes it so."""
    if _left(whole, parts, way) <= _EQUAL:
        return ()
    if [one.order for one in parts] != sorted(one.order for one in parts):
        return None
    held = [numbers_in(one.reference) for one in parts]
    mine = numbers_in(whole.reference)
    if mine is None or any(one is None for one in held):
        return None
    layout = layout_of(joined(way, [one for one in held if one is not None])[0], mine).layout
    return layout.b if layout is not None and layout.is_ordinary else None


def _pairs(whole: Entry, parts: list[Entry], way: Way, steps: tuple[Step, ...], is_a: bool) -> Iterator[Pair]:
    words = "a residual beside" if way is _SUM else f"fused along axis {way.dim}"
    names = ", ".join(one.name for one in parts)
    if is_a or way is _SUM:
        reference = Joined(tuple(one.reference for one in parts), way)
        made = replace(parts[0], name=names, reference=reference, shape=whole.shape, checksum="")
        laid = replace(whole, reference=Laid(whole.reference, steps), checksum="") if steps else whole
        plan = Plan(laid.name if is_a else names, words, (f"equal up to {words}: {whole.name} is {names}",))
        yield Pair(laid, made, "content", plan=plan) if is_a else Pair(made, laid, "content", plan=plan)
        return
    start = 0
    for part in parts:
        end = start + part.shape[way.dim]
        cut: Step = ("cut", way.dim, start, end)
        reference_b = Laid(whole.reference, (*steps, cut))
        other = replace(whole, reference=reference_b, shape=part.shape, checksum="")
        told = f"equal up to {words}: it is {start} to {end - 1} of {whole.name}"
        yield Pair(part, other, "content", plan=Plan(part.name, words, (told,)))
        start = end


def _left(whole: Entry, parts: Sequence[Entry], way: Way) -> float:
    mine, held = numbers_in(whole.reference), [numbers_in(one.reference) for one in parts]
    if mine is None or any(one is None for one in held):
        return float("inf")
    made = joined(way, [one.astype(np.float64) for one in held if one is not None])[0]
    size = float(np.linalg.norm(mine.astype(np.float64)))
    apart = float(np.linalg.norm(made - mine))
    return apart / size if size and np.isfinite(apart) else float("inf")


def _is_near(one: Entry, other: Entry) -> bool:
    """Of one moment and one parent, or parts of one value."""
    moments = [(entry.kind, entry.step, entry.call, entry.rank) for entry in (one, other)]
    is_inside = other.name.startswith(f"{one.name}[")
    return moments[0] == moments[1] and (is_inside or _parent(one) == _parent(other))


def _parent(entry: Entry) -> str:
    """Of a weight, that of its module."""
    path = entry.name.split(".")
    return ".".join(path[:-2] if entry.kind in ("param", "grad_param", "input") else path[:-1])


def _place(entry: Entry) -> tuple[int, int, int]:
    return entry.first_step, entry.order, entry.first_rank


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[int, ...]]:
    return len(shape), (*shape[:axis], *shape[axis + 1 :])
