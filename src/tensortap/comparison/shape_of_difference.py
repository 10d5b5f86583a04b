"""What the values of one pair tell of how they came to differ."""

from __future__ import annotations

from tensortap.comparison.findings import Finding
from tensortap.comparison.joining import load_numbers
from tensortap.comparison.symptoms import find_symptoms
from tensortap.core.errors import TensortapError


def describe_symptoms(finding: Finding) -> list[str]:
    """Sentences that are sure; none for what is equal, and none where the values cannot be read any more."""
    metrics = finding.metrics
    if metrics is None or metrics.is_identical or metrics.reason or metrics.is_opaque:
        return []
    try:
        a, b = (load_numbers(entry.reference) for entry in (finding.pair.a, finding.pair.b))
    except (OSError, ValueError, TypeError, KeyError, TensortapError):
        return []
    return [] if a is None or b is None else [symptom.description for symptom in find_symptoms(a, b)]
