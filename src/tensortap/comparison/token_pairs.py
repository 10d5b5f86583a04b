"""Pairs of sides that hold the same tokens in other places: another order, another padding, packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.glimpse import Step, distance
from tensortap.comparison.joining import Laid, Undecided, numbers_in
from tensortap.comparison.layouts import applied
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.tokens import Rows, is_by_position, rows_of, steps_for, steps_of_lines
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_IDS, _MASK = "input_ids", "attention_mask"
_NEAR = 0.01  # of the whole


def by_token(matched: Matched) -> Matched:
    """The same with the rows of common tokens alone, for steps whose ids are not the same. Sequences that
    only one side has are gaps: nothing was compared there."""
    found: dict[int, Rows] = {}
    told, gaps = list[str](), list[str]()
    for pair in matched.pairs:
        if not (_is_ids(pair.a) and _is_ids(pair.b)):
            continue
        step = pair.a.first_step
        if step not in found:
            rows = _rows(pair, matched)
            if rows is not None:
                found[step] = rows
                told.append(_told(rows, step))
                gaps += _left_out(rows, step) if rows.is_sure else []
    if not found:
        return matched
    pairs = [_taken(pair, found.get(pair.a.first_step)) for pair in matched.pairs]
    return replace(matched, pairs=pairs, told=[*matched.told, *told], gaps=[*matched.gaps, *gaps])


def _left_out(rows: Rows, step: int) -> list[str]:
    """Sequences without a partner, as a sentence for each side that has some."""
    both = rows.count
    return [
        f"{count} of the {count + both} sequences of step {step} {'is' if count == 1 else 'are'} only in "
        f"{side}; {both} {'was' if both == 1 else 'were'} compared"
        for side, count in zip("AB", rows.left, strict=True)
        if count
    ]


def _told(rows: Rows, step: int) -> str:
    if rows.is_sure:
        return f"rows of step {step} are compared token by token: {rows.told}"
    return f"the tokens of step {step} are ambiguous: sequences repeat ({rows.told})"


def _rows(pair: Pair, matched: Matched) -> Rows | None:
    try:
        a, b = numbers_in(pair.a.reference), numbers_in(pair.b.reference)
        if a is None or b is None or np.array_equal(a, b) or max(a.ndim, b.ndim) > 2:
            return None
        masks = [
            _mask(side, pair.a.first_step, ids) for side, ids in zip(_sides(matched), (a, b), strict=True)
        ]
    except (TensortapError, OSError, ValueError):
        return None
    return rows_of(a, b, *masks)


def _mask(side: Iterable[Entry], step: int, ids: Array) -> Array | None:
    for entry in side:
        if entry.first_step == step and entry.name.endswith(_MASK) and entry.shape == ids.shape:
            return numbers_in(entry.reference)
    return None


def _sides(matched: Matched) -> tuple[list[Entry], list[Entry]]:
    a = [*(pair.a for pair in matched.pairs), *matched.only_a]
    return a, [*(pair.b for pair in matched.pairs), *matched.only_b]


def _is_ids(entry: Entry) -> bool:
    return entry.kind == "input" and entry.name.endswith(_IDS)


def _taken(pair: Pair, rows: Rows | None) -> Pair:
    if rows is None or not pair.a.dtype or not pair.b.dtype:
        return pair
    a = steps_for(pair.a.shape, rows.shapes[0], rows.a)
    b = steps_for(pair.b.shape, rows.shapes[1], rows.b)
    plan = pair.plan or AlignmentNote(pair.a.name, "", ())
    if _is_of_positions(pair, rows):
        return _by_position(pair, rows, plan)
    if not rows.is_sure:
        told = "ambiguous: a sequence that one side has once and the other several times may be any of them"
        return pair if pair.a.shape == pair.b.shape else _undecided(pair, plan, told)
    if rows.lines is not None and (a is None or b is None):
        a, b = (
            steps_of_lines(entry.shape, ids, lines, are_in_place=rows.are_in_place)
            for entry, ids, lines in zip((pair.a, pair.b), rows.shapes, rows.lines, strict=True)
        )
    if a is not None and b is not None:
        entries = (_laid(pair.a, a), _laid(pair.b, b))
        return replace(pair, a=entries[0], b=entries[1], plan=plan.then("rows by token", rows.told))
    has_tokens = rows.shapes[0][-1] in pair.a.shape[1:] and rows.shapes[1][-1] in pair.b.shape[1:]
    if not (has_tokens and len(pair.a.shape) > 2) and (not _has_rows(pair) or _is_near(pair)):
        return pair
    told = "its axes do not say which row is which token, and the tokens stand elsewhere in B"
    return _undecided(pair, plan, told)


def _has_rows(pair: Pair) -> bool:
    """Whether it may have something for each token, in an order of its own, as the rows of one expert."""
    return pair.a.kind not in ("param", "grad_param") and min(len(pair.a.shape), len(pair.b.shape)) > 0


def _is_near(pair: Pair) -> bool:
    """Whether it is hardly another value, wherever the tokens stand."""
    if pair.a.shape != pair.b.shape:
        return False
    try:
        a, b = numbers_in(pair.a.reference), numbers_in(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return True  # what cannot be read is said to be so
    return a is None or b is None or distance(a, b) <= _NEAR


def _undecided(pair: Pair, plan: AlignmentNote, told: str) -> Pair:
    b = replace(pair.b, reference=Undecided(told))
    return replace(pair, b=b, plan=replace(plan.then("unaligned", told), is_usable=False))


def _is_of_positions(pair: Pair, rows: Rows) -> bool:
    """Whether both sides have it once for all their sequences, of which one at least has several."""
    is_shared = max(shape[0] for shape in rows.shapes) > 1 and all(len(one) == 2 for one in rows.shapes)
    both = zip((pair.a, pair.b), rows.shapes, strict=True)
    return is_shared and all(is_by_position(entry.shape, ids) for entry, ids in both)


def _by_position(pair: Pair, rows: Rows, plan: AlignmentNote) -> Pair:
    """As far as tokens go on both sides, where each stands in the same column of both."""
    columns = [side % ids[1] for side, ids in zip((rows.a, rows.b), rows.shapes, strict=True)]
    axes = [entry.shape.index(ids[1], 1) for entry, ids in zip((pair.a, pair.b), rows.shapes, strict=True)]
    if pair.a.shape == pair.b.shape or axes[0] != axes[1] or not np.array_equal(columns[0], columns[1]):
        return pair
    step = ("take", axes[0], np.unique(columns[0]))
    plan = plan.then("rows by position", f"{len(step[2])} positions that both have")
    return replace(pair, a=_laid(pair.a, (step,)), b=_laid(pair.b, (step,)), plan=plan)


def _laid(entry: Entry, steps: tuple[Step, ...]) -> Entry:
    shape = applied(steps, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=Laid(entry.reference, steps), shape=shape, checksum="")
