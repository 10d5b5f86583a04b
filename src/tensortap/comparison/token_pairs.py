"""Pairs of sides that hold the same tokens in other places: another order, another padding, packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.glimpse import ArrayOp, relative_distance
from tensortap.comparison.joining import ReorderedRef, UnresolvedRef, load_numbers
from tensortap.comparison.layouts import apply_ops
from tensortap.comparison.match import EntryPair, Matching
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.tokens import (
    TokenRows,
    is_by_position,
    match_tokens,
    ops_for_sequences,
    ops_for_tokens,
)
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

_IDS, _MASK = "input_ids", "attention_mask"
_MAX_DISTANCE = 0.01  # of the whole


def align_tokens(matching: Matching) -> Matching:
    """The same with the rows of common tokens alone, for steps whose ids are not the same. Sequences that
    only one side has are gaps: nothing was compared there."""
    rows_by_step: dict[int, TokenRows] = {}
    messages, gaps = list[str](), list[str]()
    for pair in matching.pairs:
        if not (_is_ids(pair.a) and _is_ids(pair.b)):
            continue
        step = pair.a.first_step
        if step not in rows_by_step:
            rows = _match_ids(pair, matching)
            if rows is not None:
                rows_by_step[step] = rows
                messages.append(_describe_rows(rows, step))
                gaps += _describe_unmatched(rows, step) if rows.is_sure else []
    if not rows_by_step:
        return matching
    pairs = [_take_tokens(pair, rows_by_step.get(pair.a.first_step)) for pair in matching.pairs]
    return replace(
        matching, pairs=pairs, messages=[*matching.messages, *messages], gaps=[*matching.gaps, *gaps]
    )


def _describe_unmatched(rows: TokenRows, step: int) -> list[str]:
    """Sequences without a partner, as a sentence for each side that has some."""
    both = rows.count
    return [
        f"{count} of the {count + both} sequences of step {step} {'is' if count == 1 else 'are'} only in "
        f"{side}; {both} {'was' if both == 1 else 'were'} compared"
        for side, count in zip("AB", rows.unmatched, strict=True)
        if count
    ]


def _describe_rows(rows: TokenRows, step: int) -> str:
    if rows.is_sure:
        return f"rows of step {step} are compared token by token: {rows.description}"
    return f"the tokens of step {step} are ambiguous: sequences repeat ({rows.description})"


def _match_ids(pair: EntryPair, matching: Matching) -> TokenRows | None:
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
        if a is None or b is None or np.array_equal(a, b) or max(a.ndim, b.ndim) > 2:
            return None
        masks = [
            _find_mask(side, pair.a.first_step, ids)
            for side, ids in zip(_entries_by_side(matching), (a, b), strict=True)
        ]
    except (TensortapError, OSError, ValueError):
        return None
    return match_tokens(a, b, *masks)


def _find_mask(side: Iterable[Entry], step: int, ids: Array) -> Array | None:
    for entry in side:
        if entry.first_step == step and entry.name.endswith(_MASK) and entry.shape == ids.shape:
            return load_numbers(entry.reference)
    return None


def _entries_by_side(matching: Matching) -> tuple[list[Entry], list[Entry]]:
    a = [*(pair.a for pair in matching.pairs), *matching.only_a]
    return a, [*(pair.b for pair in matching.pairs), *matching.only_b]


def _is_ids(entry: Entry) -> bool:
    return entry.kind == "input" and entry.name.endswith(_IDS)


def _take_tokens(pair: EntryPair, rows: TokenRows | None) -> EntryPair:
    if rows is None or not pair.a.dtype or not pair.b.dtype:
        return pair
    a = ops_for_tokens(pair.a.shape, rows.shapes[0], rows.a)
    b = ops_for_tokens(pair.b.shape, rows.shapes[1], rows.b)
    note = pair.alignment or AlignmentNote(pair.a.name, "", ())
    if _is_shared_by_sequences(pair, rows):
        return _take_positions(pair, rows, note)
    if not rows.is_sure:
        reason = "ambiguous: a sequence that one side has once and the other several times may be any of them"
        return pair if pair.a.shape == pair.b.shape else _mark_unresolved(pair, note, reason)
    if rows.sequences is not None and (a is None or b is None):
        a, b = (
            ops_for_sequences(entry.shape, ids, sequences, have_same_columns=rows.have_same_columns)
            for entry, ids, sequences in zip((pair.a, pair.b), rows.shapes, rows.sequences, strict=True)
        )
    if a is not None and b is not None:
        entries = (reordered_entry(pair.a, a), reordered_entry(pair.b, b))
        return replace(
            pair, a=entries[0], b=entries[1], alignment=note.extended("rows by token", rows.description)
        )
    has_tokens = rows.shapes[0][-1] in pair.a.shape[1:] and rows.shapes[1][-1] in pair.b.shape[1:]
    if not (has_tokens and len(pair.a.shape) > 2) and (not _may_have_token_rows(pair) or _is_near(pair)):
        return pair
    reason = "its axes do not say which row is which token, and the tokens stand elsewhere in B"
    return _mark_unresolved(pair, note, reason)


def _may_have_token_rows(pair: EntryPair) -> bool:
    """Whether it may have something for each token, in an order of its own, as the rows of one expert."""
    return pair.a.kind not in ("param", "grad_param") and min(len(pair.a.shape), len(pair.b.shape)) > 0


def _is_near(pair: EntryPair) -> bool:
    """Whether it is hardly another value, wherever the tokens stand."""
    if pair.a.shape != pair.b.shape:
        return False
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return True  # what cannot be read is said to be so
    return a is None or b is None or relative_distance(a, b) <= _MAX_DISTANCE


def _mark_unresolved(pair: EntryPair, note: AlignmentNote, reason: str) -> EntryPair:
    b = replace(pair.b, reference=UnresolvedRef(reason))
    return replace(pair, b=b, alignment=replace(note.extended("unaligned", reason), is_usable=False))


def _is_shared_by_sequences(pair: EntryPair, rows: TokenRows) -> bool:
    """Whether both sides have it once for all their sequences, of which one at least has several."""
    is_shared = max(shape[0] for shape in rows.shapes) > 1 and all(len(shape) == 2 for shape in rows.shapes)
    both = zip((pair.a, pair.b), rows.shapes, strict=True)
    return is_shared and all(is_by_position(entry.shape, ids) for entry, ids in both)


def _take_positions(pair: EntryPair, rows: TokenRows, note: AlignmentNote) -> EntryPair:
    """As far as tokens go on both sides, where each stands in the same column of both."""
    columns = [side % ids[1] for side, ids in zip((rows.a, rows.b), rows.shapes, strict=True)]
    axes = [entry.shape.index(ids[1], 1) for entry, ids in zip((pair.a, pair.b), rows.shapes, strict=True)]
    if pair.a.shape == pair.b.shape or axes[0] != axes[1] or not np.array_equal(columns[0], columns[1]):
        return pair
    take = ("take", axes[0], np.unique(columns[0]))
    note = note.extended("rows by position", f"{len(take[2])} positions that both have")
    return replace(
        pair, a=reordered_entry(pair.a, (take,)), b=reordered_entry(pair.b, (take,)), alignment=note
    )


def reordered_entry(entry: Entry, ops: tuple[ArrayOp, ...]) -> Entry:
    shape = apply_ops(ops, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=ReorderedRef(entry.reference, ops), shape=shape, checksum="")
