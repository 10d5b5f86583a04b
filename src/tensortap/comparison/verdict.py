"""What a difference means, measured by the noise of the value: never a bare number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tensortap.comparison.floor import Noise
from tensortap.comparison.match import Pair
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
BEYOND: frozenset[Verdict] = frozenset(VERDICTS) - GREEN - GAPS
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
        return self.verdict in BEYOND


def judge(found: Metrics | str, noise: Noise, pair: Pair | None = None) -> Judgement:
    """One pair by itself; whether it is an origin or inherited only its surroundings tell."""
    if isinstance(found, str):
        is_open = pair is not None and pair.plan is not None and not pair.plan.is_usable
        return Judgement("unaligned" if is_open else "unreadable", 0.0, note=found)
    if found.is_opaque or found.reason:
        return _of_others(found, pair)
    if found.is_identical:
        return Judgement("identical", 0.0)
    if found.disagreeing > found.masked:
        return Judgement("nonfinite", math.inf, note=_nonfinite(found))
    if found.is_discrete:
        return _of_decisions(found, noise)
    if pair is not None and pair.a.name.endswith(AFTER_STEP):
        return _of_stepped(found, noise)
    return _of_numbers(found, noise)


def _of_others(found: Metrics, pair: Pair | None) -> Judgement:
    """Of what was not measured in numbers."""
    if found.is_opaque:
        return Judgement("identical" if found.is_identical else "uncovered", 0.0, note="not numbers or text")
    is_cut = pair is not None and _is_cut_otherwise(pair)
    return Judgement("unaligned" if is_cut else "structure", 0.0 if is_cut else math.inf, note=found.reason)


def _is_cut_otherwise(pair: Pair) -> bool:
    """Pieces of a whole that is cut in another way on the other side."""
    a, b = pair.a.placement, pair.b.placement
    return (a is not None or b is not None) and a != b


def _of_decisions(found: Metrics, noise: Noise) -> Judgement:
    """Decisions that fall otherwise in a twin too are no alarm, as long as they are about as many."""
    told = f"{found.mismatches:,} of {found.count:,} differ"
    if noise.flips and found.mismatches <= noise.limit * noise.flips:
        return Judgement("within noise", found.mismatches / noise.flips, "whole", told)
    return Judgement("flip", math.inf, "whole", told)


def _of_stepped(found: Metrics, noise: Noise) -> Judgement:
    """Weights after an optimizer's step, as a whole. It divides each number by the size of its own gradient:
    where that is next to nothing, a lone number goes anywhere, and its row with it."""
    rowless = replace(noise, row=math.inf, column=math.inf)
    return _of_numbers(found, rowless)


def _of_numbers(found: Metrics, noise: Noise) -> Judgement:
    if found.disagreeing:
        return Judgement("origin", math.inf, note=f"{found.disagreeing:,} masked on one side only")
    ratio, axis = _over(found.relative_l2, noise.relative_l2), _WHOLE
    if (row := _over(found.row, noise.row)) > ratio:
        ratio, axis = row, "row"
    if (column := _over(found.column, noise.column)) > ratio:
        ratio, axis = column, "column"
    return Judgement("origin" if ratio > noise.limit else "within noise", ratio, axis)


def _over(size: float, noise: float) -> float:
    if noise:
        return size / noise
    return math.inf if size else 0.0


def _nonfinite(found: Metrics) -> str:
    counts = [
        f"{count:,} {what} in {side}"
        for what, both in (("NaN", found.nan), ("Inf", found.inf))
        for side, count in zip("AB", both, strict=True)
        if count
    ]
    return ", ".join(counts)
