"""Pairs with the same numbers in another order: which are layouts, and which are bugs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.diagnosis.verdict import GREEN, Finding, judge, make_finding
from tensortap.comparison.layout.heads import find_head_order
from tensortap.comparison.layout.layouts import Layout, LayoutMatch, find_layout
from tensortap.comparison.layout.sampling import ArrayOp
from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sharding.derived import ReorderedRef, UnresolvedRef, load_numbers
from tensortap.comparison.sides.entry import AlignmentNote, Entry
from tensortap.comparison.values.measure import measure_pairs
from tensortap.comparison.values.metrics import Metrics
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

REORDERED_L2 = 0.3  # relative L2: closer values of one shape have the same layout


def resolve_layout(pair: EntryPair, measurement: Metrics | str) -> EntryPair | None:
    """The pair in one layout, if both hold the same numbers in different layouts; else None.

    For equal shapes only conventional layouts count: any other order is a difference. For different shapes,
    a pair that several layouts fit equally well is marked ambiguous."""
    if isinstance(measurement, str) or not _may_be_reordered(pair, measurement):
        return None
    arrays = _load_arrays(pair)
    fit = find_layout(*arrays) if arrays is not None else LayoutMatch()
    if len(fit.layouts) > 1:
        return _mark_ambiguous(pair, str(fit)) if measurement.reason else None
    layout = fit.layout
    return _apply_layout(pair, layout) if layout is not None and layout.is_conventional else None


def accept_reordered_heads(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with reordered attention heads accepted if the outputs of the enclosing module match."""
    if not any(finding.verdict == "origin" for finding in findings):
        return list(findings)
    outputs_match = _outputs_match(findings)
    return [
        _reorder_heads(finding) if _may_be_reordered_heads(finding, outputs_match) else finding
        for finding in findings
    ]


_CallKey = tuple[str, int, int, int]


def _outputs_match(findings: Sequence[Finding]) -> dict[_CallKey, bool]:
    """Per call: do all outputs of the module match?"""
    matches: dict[_CallKey, bool] = {}
    for finding in findings:
        if finding.kind == "output" and not finding.is_opaque:
            key = finding.module, finding.step, finding.rank, finding.call
            matches[key] = matches.get(key, True) and finding.verdict in GREEN
    return matches


def _may_be_reordered_heads(finding: Finding, outputs_match: dict[_CallKey, bool]) -> bool:
    metrics = finding.metrics
    if finding.verdict != "origin" or finding.kind not in ("output", "input") or metrics is None:
        return False
    if metrics.relative_l2 <= REORDERED_L2 or not _may_be_reordered(finding.pair, metrics):
        return False
    module = finding.module
    while module:
        module = module.rpartition(".")[0]
        key = module, finding.step, finding.rank, finding.call
        if key in outputs_match:
            return outputs_match[key]
    return False


def _reorder_heads(finding: Finding) -> Finding:
    arrays = _load_arrays(finding.pair)
    layout = find_head_order(*arrays) if arrays is not None else None
    if layout is None:
        return finding
    pair = _apply_layout(finding.pair, layout)
    metrics = next(measure_pairs([(pair.a, pair.b)]))
    judgement = judge(metrics, finding.noise, pair)
    return finding if judgement.is_beyond else make_finding(pair, metrics, finding.noise, judgement)


def _load_arrays(pair: EntryPair) -> tuple[Array, Array] | None:
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return None
    return None if a is None or b is None else (a, b)


def _apply_layout(pair: EntryPair, layout: Layout) -> EntryPair:
    alignment = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        a=_reorder(pair.a, layout.a) if layout.a else pair.a,
        b=_reorder(pair.b, layout.b) if layout.b else pair.b,
        alignment=layout.annotate(alignment),
    )


def _mark_ambiguous(pair: EntryPair, description: str) -> EntryPair:
    alignment = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        b=replace(pair.b, reference=UnresolvedRef(description)),
        alignment=replace(alignment.extended("ambiguous", description), is_usable=False),
    )


def _may_be_reordered(pair: EntryPair, metrics: Metrics) -> bool:
    if not metrics.reason and metrics.relative_l2 <= REORDERED_L2:
        return False
    # A shard beside a full tensor is no padding.
    if metrics.is_opaque or not pair.a.dtype or not pair.b.dtype or pair.a.placement != pair.b.placement:
        return False
    if metrics.reason:
        return metrics.reason.startswith("shapes differ")
    return not metrics.is_discrete and not metrics.disagreeing


def _reorder(entry: Entry, ops: Sequence[ArrayOp]) -> Entry:
    """The entry in another layout; reports show its recorded shape."""
    return replace(entry, reference=ReorderedRef(entry.reference, tuple(ops)))
