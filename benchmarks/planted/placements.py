"""How pieces of a value sit in the whole: random shardings, and how many of them are found."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from tensortap.comparison.sharding.infer import infer_placement
from tensortap.comparison.sharding.placement import assemble, candidate_placements

SEEDS = range(40_000, 40_500)  # margins were set on others, below 1,500
_ROOT = str(Path(__file__).parents[2])


def placements(seeds: range = SEEDS) -> Counter[str]:
    """How many are right, left open, or wrong and called certain."""
    sys.path.insert(0, _ROOT)
    try:
        from tests.comparison.shardings import sharding
    finally:
        sys.path.remove(_ROOT)
    return Counter(_outcome(*sharding(seed)) for seed in seeds)


def _outcome(whole: np.ndarray, pieces: list[np.ndarray], words: str) -> str:
    found = infer_placement(whole, pieces)
    if found.state != "certain" or found.placement is None:
        return "open"
    truth = [
        way for way in candidate_placements([one.shape for one in pieces], whole.shape) if str(way) == words
    ]
    made = assemble(found.placement, pieces)[0]
    # Ways that give the same whole are the same: of few rows, a zigzag may be no other order.
    is_same = any(np.allclose(made, assemble(way, pieces)[0], rtol=0, atol=1e-9) for way in truth)
    return "right" if is_same else "wrong and certain"
