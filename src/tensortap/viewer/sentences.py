"""A comparison in words: the sentence a page begins with, and how the error grows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensortap.comparison.findings import Finding, Origin
from tensortap.comparison.runs import Comparison
from tensortap.comparison.shape_of_difference import told_of
from tensortap.comparison.verdict import GREEN

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


def headline_sentence(found: Comparison, site: str = "") -> str:
    """`site` is where the first difference was made."""
    first = found.first
    if first is None:
        return _sentence_without_difference(found)
    seen = finding_at_origin(found, first)
    before = _count_equal_steps(found, first)
    start = f"Equal for {before:,} step{'s' if before != 1 else ''}. " if before else ""
    rank = f", rank {first.rank}" if _count_ranks(found) > 1 else ""
    made = f", made at {site.rpartition('/')[2]}" if site else ""
    where = f"step {first.step}, {first.where}{rank}{made}"
    return f"{start}First difference: {where}. {_describe_first(first, seen)}"


def finding_at_origin(found: Comparison, origin: Origin) -> Finding | None:
    key = origin.seen_at, origin.step, origin.rank, origin.call
    return next((one for one in found.table if (one.name, one.step, one.rank, one.call) == key), None)


def symptoms_of(one: Finding) -> list[str]:
    """What can be said of the shape of a difference; not of values that are too large for a moment's work."""
    return told_of(one) if one.pair.a.nbytes <= _MAX_SYMPTOM_BYTES else []


def error_growth(found: Comparison) -> dict[str, Any] | None:
    """How quickly the error of the first difference grows from step to step."""
    first = found.first
    if first is None:
        return None
    points = [
        (one.step, one.metrics.relative_l2)
        for one in found.table
        if one.name == first.seen_at
        and one.rank == first.rank
        and one.metrics is not None
        and one.step >= first.step
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
    away = steps - steps.mean()
    spread = float((away**2).sum())
    slope = float((away * doublings).sum()) / spread
    rest = doublings - doublings.mean() - slope * away
    unsure = math.sqrt(float((rest**2).sum()) / (len(steps) - 2) / spread)
    is_seen = slope * float(np.ptp(steps)) >= 1
    return 1 / slope if is_seen and slope > _SIGNIFICANCE * unsure else None


def _sentence_without_difference(found: Comparison) -> str:
    pairs = found.coverage.pairs
    if not pairs:
        return "Nothing to compare: no value has a partner on the other side."
    identical = found.counts.get("identical", 0)
    what = f"The same within noise: {identical:,} of {pairs:,} pairs are identical, the others nearly so"
    if identical == sum(found.counts.values()):
        what = f"Identical: all {pairs:,} pairs are the same, bit for bit"
    gaps = "" if found.coverage.is_whole else "; not everything could be compared"
    unsure = " (the noise was not measured)" if found.coverage.uncalibrated and identical < pairs else ""
    return f"{what}{unsure}{gaps}."


def _describe_first(first: Origin, seen: Finding | None) -> str:
    parts = [_MEANINGS.get(first.kind, "")] if not first.note else [first.note]
    if seen is not None:
        metrics = seen.metrics
        if metrics is not None and metrics.count and metrics.mismatches:
            parts.append(f"it differs in {100 * metrics.mismatches / metrics.count:.3g} % of its elements")
        parts += symptoms_of(seen)[:2]
    text = "; ".join(filter(None, parts))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _count_equal_steps(found: Comparison, first: Origin) -> int:
    before = {one.step for one in found.table if one.step < first.step}
    return len(before - {one.step for one in found.table if one.verdict not in GREEN})


def _count_ranks(found: Comparison) -> int:
    return len({one.rank for one in found.table})
