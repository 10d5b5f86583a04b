"""What a difference means, measured by the noise of the value: never a bare number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tensortap.comparison.floor import Noise
from tensortap.comparison.match import EntryPair
from tensortap.comparison.metrics import Metrics

Verdict = Literal[
    "identical",
    "within noise",
    "healed",
    "drift",
    "origin",
    "flip",
    "nonfinite",
    "structure",
    "unaligned",
    "unreadable",
    "uncovered",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
GREEN: frozenset[Verdict] = frozenset(("identical", "within noise", "healed"))
GAPS: frozenset[Verdict] = frozenset(("unreadable", "uncovered", "unaligned"))
BEYOND_NOISE: frozenset[Verdict] = frozenset(VERDICTS) - GREEN - GAPS
Axis = Literal["", "whole", "row", "column"]
_WHOLE: Axis = "whole"
AFTER_STEP = ".after_step"


# Not frozen: one is made for every pair, and freezing takes four times as long. Nobody changes it.
@dataclass(slots=True)
class Judgement:
    """How many times the noise a difference is, along which axis, and what that alone makes of it."""

    verdict: Verdict
    ratio: float
    axis: Axis = ""
    note: str = ""

    @property
    def is_beyond(self) -> bool:
        return self.verdict in BEYOND_NOISE


def judge(measurement: Metrics | str, noise: Noise, pair: EntryPair | None = None) -> Judgement:
    """One pair by itself; whether it is an origin or inherited only its surroundings tell."""
    if isinstance(measurement, str):
        is_ambiguous = pair is not None and pair.alignment is not None and not pair.alignment.is_usable
        return Judgement("unaligned" if is_ambiguous else "unreadable", 0.0, note=measurement)
    if measurement.is_opaque or measurement.reason:
        return _judge_unmeasured(measurement, pair)
    if measurement.is_identical:
        return Judgement("identical", 0.0)
    if measurement.disagreeing > measurement.masked:
        return Judgement("nonfinite", math.inf, note=_describe_nonfinite(measurement))
    if measurement.is_discrete:
        return _judge_discrete(measurement, noise)
    if pair is not None and pair.a.name.endswith(AFTER_STEP):
        return _judge_updated_weights(measurement, noise)
    return _judge_numeric(measurement, noise)


def _judge_unmeasured(metrics: Metrics, pair: EntryPair | None) -> Judgement:
    """Of what was not measured in numbers."""
    if metrics.is_opaque:
        return Judgement(
            "identical" if metrics.is_identical else "uncovered", 0.0, note="not numbers or text"
        )
    is_sharded_differently = pair is not None and _is_sharded_differently(pair)
    return Judgement(
        "unaligned" if is_sharded_differently else "structure",
        0.0 if is_sharded_differently else math.inf,
        note=metrics.reason,
    )


def _is_sharded_differently(pair: EntryPair) -> bool:
    """Pieces of a whole that is cut in another way on the other side."""
    a, b = pair.a.placement, pair.b.placement
    return (a is not None or b is not None) and a != b


def _judge_discrete(metrics: Metrics, noise: Noise) -> Judgement:
    """Decisions that fall otherwise in a twin too are no alarm, as long as they are about as many."""
    note = f"{metrics.mismatches:,} of {metrics.count:,} differ"
    if noise.flips and metrics.mismatches <= noise.limit * noise.flips:
        return Judgement("within noise", metrics.mismatches / noise.flips, "whole", note)
    return Judgement("flip", math.inf, "whole", note)


def _judge_updated_weights(metrics: Metrics, noise: Noise) -> Judgement:
    """Weights after an optimizer's step, as a whole. It divides each number by the size of its own gradient:
    where that is next to nothing, a lone number goes anywhere, and its row with it."""
    rowless = replace(noise, row=math.inf, column=math.inf)
    return _judge_numeric(metrics, rowless)


def _judge_numeric(metrics: Metrics, noise: Noise) -> Judgement:
    if metrics.disagreeing:
        return Judgement("origin", math.inf, note=f"{metrics.disagreeing:,} masked on one side only")
    ratio, axis = _noise_ratio(metrics.relative_l2, noise.relative_l2), _WHOLE
    if (row := _noise_ratio(metrics.row, noise.row)) > ratio:
        ratio, axis = row, "row"
    if (column := _noise_ratio(metrics.column, noise.column)) > ratio:
        ratio, axis = column, "column"
    return Judgement("origin" if ratio > noise.limit else "within noise", ratio, axis)


def _noise_ratio(size: float, noise: float) -> float:
    if noise:
        return size / noise
    return math.inf if size else 0.0


def _describe_nonfinite(metrics: Metrics) -> str:
    counts = [
        f"{count:,} {kind} in {side}"
        for kind, per_side in (("NaN", metrics.nan), ("Inf", metrics.inf))
        for side, count in zip("AB", per_side, strict=True)
        if count
    ]
    return ", ".join(counts)
