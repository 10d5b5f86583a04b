"""Argmax and top-k flips within noise: how close the scores were, and which rows they explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.verdict import Finding, is_tie, judge
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.values.metrics import Metrics, measure_operands
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array, decode


def discount_ties(findings: list[Finding]) -> list[Finding]:
    """The findings, with outputs judged without the rows of tied decisions that differ."""
    decisions = {
        _call_key(finding): finding for finding in findings if finding.kind == "input" and is_tie(finding)
    }
    if not decisions:
        return findings
    return [_discount_tied_rows(finding, decisions.get(_call_key(finding))) for finding in findings]


def _call_key(finding: Finding) -> tuple[str, int, int, int]:
    return finding.module, finding.step, finding.rank, finding.call


def _discount_tied_rows(finding: Finding, decisions: Finding | None) -> Finding:
    if decisions is None or finding.kind != "output" or finding.verdict != "origin":
        return finding
    try:
        untied = _measure_untied_rows(finding, decisions)
    except (TensortapError, OSError, ValueError):  # unreadable values are reported elsewhere
        return finding
    if untied is None or judge(untied, finding.noise, finding.pair).is_beyond:
        return finding
    note = f"only where {decisions.name} falls otherwise, within its noise"
    return replace(finding, verdict="drift", note=note, source=decisions.name)


def _measure_untied_rows(finding: Finding, decisions: Finding) -> Metrics | None:
    operands = finding.pair.a.operand(), finding.pair.b.operand()
    chosen = decisions.pair.a.operand(), decisions.pair.b.operand()
    if None in operands or None in chosen:
        return None
    picks = [_as_rows(operand.bits) for operand in chosen if operand is not None]
    values = [Operand(_as_rows(operand.bits), operand.dtype) for operand in operands if operand is not None]
    if len(picks[0]) != len(values[0].bits):
        return None
    is_same = (picks[0] == picks[1]).all(axis=1)
    a, b = (Operand(np.ascontiguousarray(operand.bits[is_same]), operand.dtype) for operand in values)
    return measure_operands(a, b)


def _as_rows(bits: Array) -> Array:
    return bits.reshape(-1, bits.shape[-1]) if bits.ndim > 1 else bits.reshape(-1, 1)


def are_same_decisions(a: Finding, b: Finding) -> bool:
    """Whether both are the same decisions, passed on to another module, by their metrics."""
    return _fingerprint(a) == _fingerprint(b)


def _fingerprint(finding: Finding) -> tuple[object, ...]:
    metrics = finding.metrics
    measured = () if metrics is None else (metrics.count, metrics.mismatches, metrics.norms)
    return finding.step, finding.rank, measured


_MAX_FLIPS = 16  # flips that are examined
_MAX_ROWS = 4096
_NEAR_TIES = "near ties"


def annotate_decision_margins(findings: list[Finding]) -> list[Finding]:
    """The findings, with a note on flips of how close the scores were; near ties count as noise."""
    flips = [index for index, finding in enumerate(findings) if finding.verdict == "flip"]
    siblings: dict[Any, list[Finding]] = {}
    if flips:
        for finding in findings:
            siblings.setdefault(_module_key(finding), []).append(finding)
    for index in flips[:_MAX_FLIPS]:
        flip = findings[index]
        description = _describe_margin(flip, siblings[_module_key(flip)])
        if description.startswith(_NEAR_TIES):
            _accept_ties(findings, flips, flip, description)
        elif description and flip.verdict == "flip":
            findings[index] = replace(flip, note=f"{flip.note}; {description}")
    return discount_ties(findings)


def _accept_ties(findings: list[Finding], flips: list[int], tie: Finding, description: str) -> None:
    """Mark the tie within noise, here and wherever the same decisions are passed on."""
    for index in flips:
        finding = findings[index]
        if are_same_decisions(finding, tie):
            findings[index] = replace(
                finding, verdict="within noise", ratio=1.0, note=f"{finding.note}; {description}"
            )


def _module_key(finding: Finding) -> tuple[str, int, int]:
    return finding.module, finding.step, finding.rank


def _describe_margin(flip: Finding, siblings: Sequence[Finding]) -> str:
    try:
        chosen = [_load_array(entry) for entry in (flip.pair.a, flip.pair.b)]
        # An input of a module was not decided by the module's outputs.
        is_input = flip.kind == "input"
        candidates = [
            sibling
            for sibling in siblings
            if sibling is not flip and (sibling.kind == "input" or not is_input)
        ]
        scores = [finding for finding in candidates if _are_scores(finding.pair.a, flip.pair.a, chosen)]
        best = max(scores, key=lambda finding: _agreement(finding, chosen), default=None)
        return "" if best is None else _describe_choices(best, chosen)
    except (TensortapError, OSError, ValueError):  # unreadable values are reported elsewhere
        return ""


def _are_scores(scores: Entry, decisions: Entry, chosen: list[Array]) -> bool:
    """Whether each row has a floating score for every index that could be chosen."""
    if "float" not in scores.dtype or not scores.shape or chosen[0].dtype.kind not in "iu":
        return False
    are_in_range = max(int(picks.max(initial=0)) for picks in chosen) < scores.shape[-1]
    rows = math.prod(scores.shape[:-1])
    return are_in_range and 0 < rows <= chosen[0].size and chosen[0].size % rows == 0


def _agreement(finding: Finding, chosen: list[Array]) -> float:
    """Share of rows in which the chosen indices have the highest scores, the smaller of both sides."""
    scores, picks = _rows_of_scores_and_picks(finding, chosen)
    agreed = 1.0
    for side, side_picks in zip(scores, picks, strict=True):
        highest = np.sort(np.argsort(side, axis=1)[:, -side_picks.shape[1] :], axis=1)
        agreed = min(agreed, float((highest == side_picks).all(axis=1).mean()))
    return agreed


def _rows_of_scores_and_picks(finding: Finding, chosen: list[Array]) -> tuple[list[Array], list[Array]]:
    """Scores and sorted chosen indices of both sides, as rows."""
    scores = [_load_array(entry).astype(np.float64) for entry in (finding.pair.a, finding.pair.b)]
    scores = [side.reshape(-1, side.shape[-1]) for side in scores]
    return scores, [np.sort(side.reshape(len(scores[0]), -1), axis=1) for side in chosen]


def _describe_choices(finding: Finding, chosen: list[Array]) -> str:
    scores, picks = _rows_of_scores_and_picks(finding, chosen)
    rows = np.flatnonzero((picks[0] != picks[1]).any(axis=1))[:_MAX_ROWS]
    if not rows.size:
        return _describe_reordering(finding, scores, chosen)
    margins = [_decision_margins(side[rows], picks[0][rows], picks[1][rows]) for side in scores]
    shift = float(np.abs(scores[0][rows] - scores[1][rows]).max())
    is_narrow = max(float(side.max()) for side in margins) <= 2 * shift and not finding.is_beyond
    low, high = (", ".join(f"{end(side):.3g}" for side in margins) for end in (np.min, np.max))
    description = f"{finding.name} decides by margins of {low} to {high} (A, B) and moved by {shift:.3g}"
    return f"{_NEAR_TIES}: {description}" if is_narrow else f"no near ties: {description}"


def _describe_reordering(finding: Finding, scores: list[Array], chosen: list[Array]) -> str:
    """Describe equal choices in another order: near ties if the swapped ones have nearly equal scores."""
    both = [side.reshape(len(scores[0]), -1) for side in chosen]
    margin = max(
        float(np.abs(np.subtract(*(np.take_along_axis(side, picks, axis=1) for picks in both))).max())
        for side in scores
    )
    rows = (both[0] != both[1]).any(axis=1)
    shift = float(np.abs(scores[0][rows] - scores[1][rows]).max(initial=0.0))
    is_narrow = margin <= 2 * shift and not finding.is_beyond
    return (
        f"{_NEAR_TIES}: the same choices in another order"
        if is_narrow
        else "the same choices in another order"
    )


def _decision_margins(scores: Array, a_picks: Array, b_picks: Array) -> Array:
    """Per row: the score distance between the best index chosen by A only and the worst chosen by B only."""
    a, b = (np.take_along_axis(scores, picks, axis=1) for picks in (a_picks, b_picks))
    is_common = (a_picks[:, :, None] == b_picks[:, None, :]).any(axis=2)
    is_taken = (b_picks[:, :, None] == a_picks[:, None, :]).any(axis=2)
    # An index chosen twice has no counterpart: its margin is infinite.
    lost, gained = np.where(is_common, -np.inf, a), np.where(is_taken, np.inf, b)
    return np.asarray(np.abs(lost.max(axis=1) - gained.min(axis=1)))


def _load_array(entry: Entry) -> Array:
    operand = entry.operand()
    if operand is None:
        raise ValueError(f"{entry.name} is not numbers")
    return decode(operand.bits, operand.dtype)
