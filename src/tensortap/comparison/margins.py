"""How narrow the decisions were that fell otherwise: the scores beside them tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding
from tensortap.comparison.ties import are_same_decisions, discount_ties
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array, decode

_MAX_FLIPS = 16  # decisions that are looked into
_MAX_ROWS = 4096
_NEAR_TIES = "near ties"


def annotate_decision_margins(findings: list[Finding]) -> list[Finding]:
    """The same findings; those of decisions say how close the scores were, where scores are at hand."""
    flips = [place for place, one in enumerate(findings) if one.verdict == "flip"]
    beside: dict[Any, list[Finding]] = {}
    if flips:
        for one in findings:
            beside.setdefault(_module_key(one), []).append(one)
    for place in flips[:_MAX_FLIPS]:
        flip = findings[place]
        told = _describe_margin(flip, beside[_module_key(flip)])
        if told.startswith(_NEAR_TIES):
            _accept_ties(findings, flips, flip, told)
        elif told and flip.verdict == "flip":
            findings[place] = replace(flip, note=f"{flip.note}; {told}")
    return discount_ties(findings)


def _accept_ties(findings: list[Finding], flips: list[int], tie: Finding, told: str) -> None:
    """Scores within noise explain it, here and wherever the same decisions are handed on."""
    for place in flips:
        one = findings[place]
        if are_same_decisions(one, tie):
            findings[place] = replace(one, verdict="within noise", ratio=1.0, note=f"{one.note}; {told}")


def _module_key(found: Finding) -> tuple[str, int, int]:
    return found.module, found.step, found.rank


def _describe_margin(flip: Finding, siblings: Sequence[Finding]) -> str:
    try:
        chosen = [_load_array(entry) for entry in (flip.pair.a, flip.pair.b)]
        # What comes into a module was not decided by what the module made of it.
        is_given = flip.kind == "input"
        beside = [one for one in siblings if one is not flip and (one.kind == "input" or not is_given)]
        scores = [one for one in beside if _are_scores(one.pair.a, flip.pair.a, chosen)]
        best = max(scores, key=lambda one: _agreement(one, chosen), default=None)
        return "" if best is None else _describe_choices(best, chosen)
    except (TensortapError, OSError, ValueError):  # what cannot be read has been said already
        return ""


def _are_scores(scores: Entry, decisions: Entry, chosen: list[Array]) -> bool:
    """Whether there is a floating number for each thing that could be chosen, row by row."""
    if "float" not in scores.dtype or not scores.shape or chosen[0].dtype.kind not in "iu":
        return False
    many = max(int(one.max(initial=0)) for one in chosen) < scores.shape[-1]
    rows = math.prod(scores.shape[:-1])
    return many and 0 < rows <= chosen[0].size and chosen[0].size % rows == 0


def _agreement(one: Finding, chosen: list[Array]) -> float:
    """In which share of the rows what was chosen has the highest scores, on both sides."""
    scores, picks = _rows_of_scores_and_picks(one, chosen)
    agreed = 1.0
    for side, taken in zip(scores, picks, strict=True):
        highest = np.sort(np.argsort(side, axis=1)[:, -taken.shape[1] :], axis=1)
        agreed = min(agreed, float((highest == taken).all(axis=1).mean()))
    return agreed


def _rows_of_scores_and_picks(one: Finding, chosen: list[Array]) -> tuple[list[Array], list[Array]]:
    """The scores and the sorted choices of both sides, row by row."""
    scores = [_load_array(entry).astype(np.float64) for entry in (one.pair.a, one.pair.b)]
    scores = [side.reshape(-1, side.shape[-1]) for side in scores]
    return scores, [np.sort(side.reshape(len(scores[0]), -1), axis=1) for side in chosen]


def _describe_choices(one: Finding, chosen: list[Array]) -> str:
    scores, picks = _rows_of_scores_and_picks(one, chosen)
    rows = np.flatnonzero((picks[0] != picks[1]).any(axis=1))[:_MAX_ROWS]
    if not rows.size:
        return _describe_reordering(one, scores, chosen)
    margins = [_decision_margins(side[rows], picks[0][rows], picks[1][rows]) for side in scores]
    moved = float(np.abs(scores[0][rows] - scores[1][rows]).max())
    is_narrow = max(float(side.max()) for side in margins) <= 2 * moved and not one.is_beyond
    low, high = (", ".join(f"{end(side):.3g}" for side in margins) for end in (np.min, np.max))
    told = f"{one.name} decides by margins of {low} to {high} (A, B) and moved by {moved:.3g}"
    return f"{_NEAR_TIES}: {told}" if is_narrow else f"no near ties: {told}"


def _describe_reordering(one: Finding, scores: list[Array], chosen: list[Array]) -> str:
    """The same choices; whether those that changed places have nearly the same scores."""
    places = [side.reshape(len(scores[0]), -1) for side in chosen]
    margin = max(
        float(np.abs(np.subtract(*(np.take_along_axis(side, picks, axis=1) for picks in places))).max())
        for side in scores
    )
    rows = (places[0] != places[1]).any(axis=1)
    moved = float(np.abs(scores[0][rows] - scores[1][rows]).max(initial=0.0))
    is_narrow = margin <= 2 * moved and not one.is_beyond
    return f"{_NEAR_TIES}: the same choices in another order" if is_narrow else "the same choices in another order"


def _decision_margins(scores: Array, one: Array, other: Array) -> Array:
    """Of each row, how far the worst and the best of what was chosen otherwise are apart."""
    a, b = (np.take_along_axis(scores, picks, axis=1) for picks in (one, other))
    is_common = (one[:, :, None] == other[:, None, :]).any(axis=2)
    is_taken = (other[:, :, None] == one[:, None, :]).any(axis=2)
    # Something chosen twice has nothing to be set against: no margin explains that.
    lost, gained = np.where(is_common, -np.inf, a), np.where(is_taken, np.inf, b)
    return np.asarray(np.abs(lost.max(axis=1) - gained.min(axis=1)))


def _load_array(entry: Entry) -> Array:
    held = entry.operand()
    if held is None:
        raise ValueError(f"{entry.name} is not numbers")
    return decode(held.bits, held.dtype)
