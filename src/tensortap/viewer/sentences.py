"""A comparison in words: the sentence a page begins with, and how the error grows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.symptoms import describe_symptoms
from tensortap.comparison.diagnosis.verdict import GREEN, Finding, Origin
from tensortap.comparison.runs.compare import Comparison

_MAX_SYMPTOM_BYTES = 64 << 20
_SIGNIFICANCE = 4  # standard errors
Array = np.ndarray[Any, Any]
_MEANINGS = {
    "own code": "its inputs and what its parts gave are equal, so the fault lies between them",
    "output": "its inputs, and whatever it has called, are equal",
    "backward": "the forward pass and all gradients before it are equal",
    "data": "what was given to the model differs",
    "param": "a parameter differs",
}


def headline_sentence(comparison: Comparison, site: str = "") -> str:
    """`site` is where the first difference was made."""
    first = comparison.first
    if first is None:
        return _sentence_without_difference(comparison)
    finding = finding_at_origin(comparison, first)
    before = _count_equal_steps(comparison, first)
    start = f"Equal for {before:,} step{'s' if before != 1 else ''}. " if before else ""
    rank = f", rank {first.rank}" if _count_ranks(comparison) > 1 else ""
    made_at = f", made at {site.rpartition('/')[2]}" if site else ""
    where = f"step {first.step}, {first.where}{rank}{made_at}"
    return f"{start}First difference: {where}. {_describe_first(first, finding)}"


def finding_at_origin(comparison: Comparison, origin: Origin) -> Finding | None:
    key = origin.seen_at, origin.step, origin.rank, origin.call
    return next(
        (
            finding
            for finding in comparison.table
            if (finding.name, finding.step, finding.rank, finding.call) == key
        ),
        None,
    )


def symptoms_of(finding: Finding) -> list[str]:
    """What can be said of the shape of a difference; not of values that are too large for a moment's work."""
    return describe_symptoms(finding) if finding.pair.a.nbytes <= _MAX_SYMPTOM_BYTES else []


def error_growth(comparison: Comparison) -> dict[str, Any] | None:
    """How quickly the error of the first difference grows from step to step."""
    first = comparison.first
    if first is None:
        return None
    points = [
        (finding.step, finding.metrics.relative_l2)
        for finding in comparison.table
        if finding.name == first.seen_at
        and finding.rank == first.rank
        and finding.metrics is not None
        and finding.step >= first.step
    ]
    sound = [(step, size) for step, size in points if size > 0 and math.isfinite(size)]
    if len({step for step, _ in sound}) < 4:
        return None
    steps, sizes = np.array(sound, np.float64).T
    doubling = _doubling_steps(steps, np.log2(sizes))
    if doubling is None:
        return {"doubling": None, "text": "the error does not clearly grow from step to step"}
    return {"doubling": doubling, "text": f"the error doubles every {doubling:.3g} steps"}


def _doubling_steps(steps: Array, doublings: Array) -> float | None:
    """In how many steps the line through the sizes doubles; None where it does so nowhere in sight, or the
    sizes lie around it so widely that it might as well be flat."""
    centred = steps - steps.mean()
    spread = float((centred**2).sum())
    slope = float((centred * doublings).sum()) / spread
    residuals = doublings - doublings.mean() - slope * centred
    standard_error = math.sqrt(float((residuals**2).sum()) / (len(steps) - 2) / spread)
    is_seen = slope * float(np.ptp(steps)) >= 1
    return 1 / slope if is_seen and slope > _SIGNIFICANCE * standard_error else None


def _sentence_without_difference(comparison: Comparison) -> str:
    pairs = comparison.coverage.pairs
    if not pairs:
        return "Nothing to compare: no value has a partner on the other side."
    identical = comparison.counts.get("identical", 0)
    what = f"The same within noise: {identical:,} of {pairs:,} pairs are identical, the others nearly so"
    if identical == sum(comparison.counts.values()):
        what = f"Identical: all {pairs:,} pairs are the same, bit for bit"
    gaps = "" if comparison.coverage.is_whole else "; not everything could be compared"
    unsure = " (the noise was not measured)" if comparison.coverage.uncalibrated and identical < pairs else ""
    return f"{what}{unsure}{gaps}."


def _describe_first(first: Origin, finding: Finding | None) -> str:
    parts = [_MEANINGS.get(first.kind, "")] if not first.note else [first.note]
    if finding is not None:
        metrics = finding.metrics
        if metrics is not None and metrics.count and metrics.mismatches:
            parts.append(f"it differs in {100 * metrics.mismatches / metrics.count:.3g} % of its elements")
        parts += symptoms_of(finding)[:2]
    text = "; ".join(filter(None, parts))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _count_equal_steps(comparison: Comparison, first: Origin) -> int:
    before = {finding.step for finding in comparison.table if finding.step < first.step}
    return len(before - {finding.step for finding in comparison.table if finding.verdict not in GREEN})


def _count_ranks(comparison: Comparison) -> int:
    return len({finding.rank for finding in comparison.table})
