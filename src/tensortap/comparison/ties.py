"""What follows from decisions that fell otherwise within noise: only the rows they are about differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensortap.comparison.findings import Finding
from tensortap.comparison.metrics import Metrics, measure_operands
from tensortap.comparison.operands import Operand
from tensortap.comparison.verdict import judge
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array


def discount_ties(findings: list[Finding]) -> list[Finding]:
    """The same findings; what a module gives is judged without the rows whose decision fell otherwise."""
    decisions = {
        _call_key(finding): finding for finding in findings if finding.kind == "input" and is_tie(finding)
    }
    if not decisions:
        return findings
    return [_discount_tied_rows(finding, decisions.get(_call_key(finding))) for finding in findings]


def is_tie(finding: Finding) -> bool:
    """Whether it is decisions that differ, and no more than noise makes them."""
    metrics = finding.metrics
    return metrics is not None and metrics.is_discrete and finding.verdict == "within noise"


def differs_in_few_rows(finding: Finding) -> bool:
    """Whether it is beyond noise in rows alone, and not as a whole: so it is where few decisions differ."""
    metrics, noise = finding.metrics, finding.noise
    if metrics is None or finding.verdict != "origin" or finding.axis != "row":
        return False
    sizes = (metrics.relative_l2, noise.relative_l2), (metrics.column, noise.column)
    return all(size <= noise.limit * typical for size, typical in sizes)


def _call_key(finding: Finding) -> tuple[str, int, int, int]:
    return finding.module, finding.step, finding.rank, finding.call


def _discount_tied_rows(finding: Finding, decisions: Finding | None) -> Finding:
    if decisions is None or finding.kind != "output" or finding.verdict != "origin":
        return finding
    try:
        untied = _measure_untied_rows(finding, decisions)
    except (TensortapError, OSError, ValueError):  # what cannot be read has been said already
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
    """Whether one is the other, handed on to another module: as it was measured."""
    return _fingerprint(a) == _fingerprint(b)


def _fingerprint(finding: Finding) -> tuple[object, ...]:
    metrics = finding.metrics
    measured = () if metrics is None else (metrics.count, metrics.mismatches, metrics.norms)
    return finding.step, finding.rank, measured
