"""Pairs that hold the same numbers in different arrangements: what is a layout, and what is a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, finding
from tensortap.comparison.glimpse import Step
from tensortap.comparison.heads import heads_order
from tensortap.comparison.joining import Laid, Undecided, numbers_in
from tensortap.comparison.layouts import Found, Layout, layout_of
from tensortap.comparison.match import Pair
from tensortap.comparison.measuring import measure_pairs
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.verdict import GREEN, judge
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

_FAR = 0.3  # of the whole: two values of one shape may be arranged differently from there on


def relaid(pair: Pair, found: Metrics | str) -> Pair | None:
    """The pair in one arrangement, where both hold the same numbers in different ones; else None.

    Of the same shape, only what models are known to differ in: any other order is a difference. Of another
    shape, what several layouts explain equally well is not decided."""
    if isinstance(found, str) or not _may_be_laid(pair, found):
        return None
    both = _numbers(pair)
    told = layout_of(*both) if both is not None else Found()
    if len(told.layouts) > 1:
        return _undecided(pair, str(told)) if found.reason else None
    layout = told.layout
    return _in(pair, layout) if layout is not None and layout.is_ordinary else None


def with_healed_orders(findings: Sequence[Finding]) -> list[Finding]:
    """The same; heads in another order are a layout where the module around them gives what it should."""
    if not any(one.verdict == "origin" for one in findings):
        return list(findings)
    given = _given(findings)
    return [_settled(one) if _may_heal(one, given) else one for one in findings]


_Call = tuple[str, int, int, int]


def _given(findings: Sequence[Finding]) -> dict[_Call, bool]:
    """Whether all that a module gave is right, for each call of it."""
    found: dict[_Call, bool] = {}
    for one in findings:
        if one.kind == "output" and not one.is_opaque:
            key = one.module, one.step, one.rank, one.call
            found[key] = found.get(key, True) and one.verdict in GREEN
    return found


def _may_heal(found: Finding, given: dict[_Call, bool]) -> bool:
    metrics = found.metrics
    if found.verdict != "origin" or found.kind not in ("output", "input") or metrics is None:
        return False
    if metrics.relative_l2 <= _FAR or not _may_be_laid(found.pair, metrics):
        return False
    module = found.module
    while module:
        module = module.rpartition(".")[0]
        key = module, found.step, found.rank, found.call
        if key in given:
            return given[key]
    return False


def _settled(found: Finding) -> Finding:
    both = _numbers(found.pair)
    layout = heads_order(*both) if both is not None else None
    if layout is None:
        return found
    pair = _in(found.pair, layout)
    again = next(measure_pairs([(pair.a, pair.b)]))
    judged = judge(again, found.noise, pair)
    return found if judged.is_beyond else finding(pair, again, found.noise, judged)


def _numbers(pair: Pair) -> tuple[Array, Array] | None:
    try:
        a, b = numbers_in(pair.a.reference), numbers_in(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return None
    return None if a is None or b is None else (a, b)


def _in(pair: Pair, layout: Layout) -> Pair:
    plan = pair.plan or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        a=_laid(pair.a, layout.a) if layout.a else pair.a,
        b=_laid(pair.b, layout.b) if layout.b else pair.b,
        plan=layout.planned(plan),
    )


def _undecided(pair: Pair, told: str) -> Pair:
    plan = pair.plan or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        b=replace(pair.b, reference=Undecided(told)),
        plan=replace(plan.then("ambiguous", told), is_usable=False),
    )


def _may_be_laid(pair: Pair, found: Metrics) -> bool:
    if not found.reason and found.relative_l2 <= _FAR:
        return False
    # A piece beside a whole is no padding.
    if found.is_opaque or not pair.a.dtype or not pair.b.dtype or pair.a.placement != pair.b.placement:
        return False
    if found.reason:
        return found.reason.startswith("shapes differ")
    return not found.is_discrete and not found.disagreeing


def _laid(entry: Entry, steps: Sequence[Step]) -> Entry:
    return replace(entry, reference=Laid(entry.reference, tuple(steps)))
