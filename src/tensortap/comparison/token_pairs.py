"""Pairs of sides that hold the same tokens in other places: another order, another padding, packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.joining import Laid, Undecided, numbers_in
from tensortap.comparison.layouts import Step, applied
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.plans import Plan
from tensortap.comparison.tokens import Rows, rows_of, steps_for
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_IDS, _MASK = "input_ids", "attention_mask"


def by_token(matched: Matched) -> tuple[list[Pair], list[str]]:
    """The pairs with the rows of common tokens alone, for steps whose ids are not the same; and notes."""
    found: dict[int, Rows] = {}
    notes = []
    for pair in matched.pairs:
        if _is_ids(pair.a) and _is_ids(pair.b) and pair.a.first_step not in found:
            rows, told = _rows(pair, matched)
            notes += [told] if told else []
            if rows is not None:
                found[pair.a.first_step] = rows
    return [_taken(pair, found.get(pair.a.first_step)) for pair in matched.pairs], notes


def _rows(pair: Pair, matched: Matched) -> tuple[Rows | None, str]:
    try:
        a, b = numbers_in(pair.a.reference), numbers_in(pair.b.reference)
        if a is None or b is None or np.array_equal(a, b) or max(a.ndim, b.ndim) > 2:
            return None, ""
        masks = [
            _mask(side, pair.a.first_step, ids) for side, ids in zip(_sides(matched), (a, b), strict=True)
        ]
    except (TensortapError, OSError, ValueError):
        return None, ""
    rows = rows_of(a, b, *masks)
    if rows is None:
        return None, ""
    if not rows.is_sure:
        return None, f"the tokens of step {pair.a.first_step} are ambiguous: sequences repeat ({rows.told})"
    return rows, f"rows of step {pair.a.first_step} are compared token by token: {rows.told}"


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
    plan = pair.plan or Plan(pair.a.name, "", ())
    if a is not None and b is not None:
        entries = (_laid(pair.a, a), _laid(pair.b, b))
        return replace(pair, a=entries[0], b=entries[1], plan=plan.then("rows by token", rows.told))
    has_tokens = rows.shapes[0][-1] in pair.a.shape[1:] and rows.shapes[1][-1] in pair.b.shape[1:]
    if not has_tokens or len(pair.a.shape) < 3:
        return pair
    told = "its axes do not say which row is which token, and the tokens stand elsewhere in B"
    return replace(
        pair,
        b=replace(pair.b, reference=Undecided(told)),
        plan=replace(plan.then("unaligned", told), is_usable=False),
    )


def _laid(entry: Entry, steps: tuple[Step, ...]) -> Entry:
    shape = applied(steps, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=Laid(entry.reference, steps), shape=shape, checksum="")
