"""What is known of a reference and a candidate themselves, whatever they compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensortap.comparison.forced import is_model, expected_shard_digests
from tensortap.recording.model_facts import describe_model


def collect_model_facts(reference: Any, candidate: Any) -> list[dict[str, Any]]:
    """For each a digest of each weight, and settings where they are of one class; those of two
    implementations have nothing to do with each other."""
    if not is_model(reference) and not isinstance(reference, Mapping):
        return [{}, {}]
    known = [describe_model(one) if is_model(one) else one for one in (reference, candidate)]
    pieces = expected_shard_digests(candidate, reference)
    known = [{**one, "weights": {**(one.get("weights") or {})}} for one in known]
    for name, piece in pieces.items():
        # The piece that this rank should have; where that is not known, nothing is said of the weight.
        known[0]["weights"][name] = piece
        if piece is None:
            del known[0]["weights"][name], known[1]["weights"][name]
    if known[0].get("class") != known[1].get("class"):
        known = [{"weights": one.get("weights")} for one in known]
    return [{"model": one} for one in known]
