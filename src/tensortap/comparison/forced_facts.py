"""What is known of a reference and a candidate themselves, whatever they compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensortap.comparison.forced import expected_shard_digests, is_model
from tensortap.recording.model_facts import describe_model


def collect_model_facts(reference: Any, candidate: Any) -> list[dict[str, Any]]:
    """For each a digest of each weight, and settings where they are of one class; those of two
    implementations have nothing to do with each other."""
    if not is_model(reference) and not isinstance(reference, Mapping):
        return [{}, {}]
    known = [describe_model(model) if is_model(model) else model for model in (reference, candidate)]
    shard_digests = expected_shard_digests(candidate, reference)
    known = [{**facts, "weights": {**(facts.get("weights") or {})}} for facts in known]
    for name, digest in shard_digests.items():
        # The piece that this rank should have; where that is not known, nothing is said of the weight.
        known[0]["weights"][name] = digest
        if digest is None:
            del known[0]["weights"][name], known[1]["weights"][name]
    if known[0].get("class") != known[1].get("class"):
        known = [{"weights": facts.get("weights")} for facts in known]
    return [{"model": facts} for facts in known]
