"""What follows from decisions that fell otherwise within noise: only the rows they are about differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensortap.comparison.findings import Finding
from tensortap.comparison.metrics import Metrics, measure_operands
from tensortap.comparison.operands import Operand
from tensortap.comparison.verdict import judge
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array


def discount_ties(findings: list[Finding]) -> list[Finding]:
    """The same findings; what a module gives is judged without the rows whose decision fell otherwise."""
    decisions = {_call_key(one): one for one in findings if one.kind == "input" and is_tie(one)}
    if not decisions:
        return findings
    return [_discount_tied_rows(one, decisions.get(_call_key(one))) for one in findings]


def is_tie(found: Finding) -> bool:
    """Whether it is decisions that differ, and no more than noise makes them."""
    metrics = found.metrics
    return metrics is not None and metrics.is_discrete and found.verdict == "within noise"


def differs_in_few_rows(found: Finding) -> bool:
    """Whether it is beyond noise in rows alone, and not as a whole: so it is where few decisions differ."""
    metrics, noise = found.metrics, found.noise
    if metrics is None or found.verdict != "origin" or found.axis != "row":
        return False
    sizes = (metrics.relative_l2, noise.relative_l2), (metrics.column, noise.column)
    return all(size <= noise.limit * usual for size, usual in sizes)


def _call_key(found: Finding) -> tuple[str, int, int, int]:
    return found.module, found.step, found.rank, found.call


def _discount_tied_rows(found: Finding, decisions: Finding | None) -> Finding:
    if decisions is None or found.kind != "output" or found.verdict != "origin":
        return found
    try:
        rest = _measure_untied_rows(found, decisions)
    except (TensortapError, OSError, ValueError):  # what cannot be read has been said already
        return found
    if rest is None or judge(rest, found.noise, found.pair).is_beyond:
        return found
    note = f"only where {decisions.name} falls otherwise, within its noise"
    return replace(found, verdict="drift", note=note, source=decisions.name)


def _measure_untied_rows(found: Finding, decisions: Finding) -> Metrics | None:
    sides = found.pair.a.operand(), found.pair.b.operand()
    chosen = decisions.pair.a.operand(), decisions.pair.b.operand()
    if None in sides or None in chosen:
        return None
    picks = [_as_rows(one.bits) for one in chosen if one is not None]
    values = [Operand(_as_rows(one.bits), one.dtype) for one in sides if one is not None]
    if len(picks[0]) != len(values[0].bits):
        return None
    is_same = (picks[0] == picks[1]).all(axis=1)
    a, b = (Operand(np.ascontiguousarray(one.bits[is_same]), one.dtype) for one in values)
    return measure_operands(a, b)


def _as_rows(bits: Array) -> Array:
    return bits.reshape(-1, bits.shape[-1]) if bits.ndim > 1 else bits.reshape(-1, 1)


def are_same_decisions(one: Finding, other: Finding) -> bool:
    """Whether one is the other, handed on to another module: as it was measured."""
    return _fingerprint(one) == _fingerprint(other)


def _fingerprint(found: Finding) -> tuple[object, ...]:
    metrics = found.metrics
    measured = () if metrics is None else (metrics.count, metrics.mismatches, metrics.norms)
    return found.step, found.rank, measured
