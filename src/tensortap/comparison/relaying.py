"""Pairs that hold the same numbers in different arrangements: what is a layout, and what is a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, make_finding
from tensortap.comparison.glimpse import ArrayOp
from tensortap.comparison.heads import find_head_order
from tensortap.comparison.joining import ReorderedRef, UnresolvedRef, load_numbers
from tensortap.comparison.layouts import LayoutMatch, Layout, find_layout
from tensortap.comparison.match import EntryPair
from tensortap.comparison.measuring import measure_pairs
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.verdict import GREEN, judge
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_FAR = 0.3  # of the whole: two values of one shape may be arranged differently from there on


def resolve_layout(pair: EntryPair, found: Metrics | str) -> EntryPair | None:
    """The pair in one arrangement, where both hold the same numbers in different ones; else None.

    Of the same shape, only what models are known to differ in: any other order is a difference. Of another
    shape, what several layouts explain equally well is not decided."""
    if isinstance(found, str) or not _may_be_reordered(pair, found):
        return None
    both = _load_arrays(pair)
    told = find_layout(*both) if both is not None else LayoutMatch()
    if len(told.layouts) > 1:
        return _mark_ambiguous(pair, str(told)) if found.reason else None
    layout = told.layout
    return _apply_layout(pair, layout) if layout is not None and layout.is_conventional else None


def accept_reordered_heads(findings: Sequence[Finding]) -> list[Finding]:
    """The same; heads in another order are a layout where the module around them gives what it should."""
    if not any(one.verdict == "origin" for one in findings):
        return list(findings)
    given = _outputs_match(findings)
    return [_reorder_heads(one) if _may_be_reordered_heads(one, given) else one for one in findings]


_CallKey = tuple[str, int, int, int]


def _outputs_match(findings: Sequence[Finding]) -> dict[_CallKey, bool]:
    """Whether all that a module gave is right, for each call of it."""
    found: dict[_CallKey, bool] = {}
    for one in findings:
        if one.kind == "output" and not one.is_opaque:
            key = one.module, one.step, one.rank, one.call
            found[key] = found.get(key, True) and one.verdict in GREEN
    return found


def _may_be_reordered_heads(found: Finding, given: dict[_CallKey, bool]) -> bool:
    metrics = found.metrics
    if found.verdict != "origin" or found.kind not in ("output", "input") or metrics is None:
        return False
    if metrics.relative_l2 <= _FAR or not _may_be_reordered(found.pair, metrics):
        return False
    module = found.module
    while module:
        module = module.rpartition(".")[0]
        key = module, found.step, found.rank, found.call
        if key in given:
            return given[key]
    return False


def _reorder_heads(found: Finding) -> Finding:
    both = _load_arrays(found.pair)
    layout = find_head_order(*both) if both is not None else None
    if layout is None:
        return found
    pair = _apply_layout(found.pair, layout)
    again = next(measure_pairs([(pair.a, pair.b)]))
    judged = judge(again, found.noise, pair)
    return found if judged.is_beyond else make_finding(pair, again, found.noise, judged)


def _load_arrays(pair: EntryPair) -> tuple[Array, Array] | None:
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return None
    return None if a is None or b is None else (a, b)


def _apply_layout(pair: EntryPair, layout: Layout) -> EntryPair:
    plan = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        a=_reorder(pair.a, layout.a) if layout.a else pair.a,
        b=_reorder(pair.b, layout.b) if layout.b else pair.b,
        alignment=layout.annotate(plan),
    )


def _mark_ambiguous(pair: EntryPair, told: str) -> EntryPair:
    plan = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        b=replace(pair.b, reference=UnresolvedRef(told)),
        alignment=replace(plan.extended("ambiguous", told), is_usable=False),
    )


def _may_be_reordered(pair: EntryPair, found: Metrics) -> bool:
    if not found.reason and found.relative_l2 <= _FAR:
        return False
    # A piece beside a whole is no padding.
    if found.is_opaque or not pair.a.dtype or not pair.b.dtype or pair.a.placement != pair.b.placement:
        return False
    if found.reason:
        return found.reason.startswith("shapes differ")
    return not found.is_discrete and not found.disagreeing


def _reorder(entry: Entry, steps: Sequence[ArrayOp]) -> Entry:
    return replace(entry, reference=ReorderedRef(entry.reference, tuple(steps)))
