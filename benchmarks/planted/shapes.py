"""What is told of the shape of a difference, where it is known what was done: how often it is right."""

import sys
from collections import Counter
from pathlib import Path

from tensortap.comparison.symptoms import symptoms

SEEDS = range(50_000, 50_200)  # what is sure was settled on others, below 2,000
RIGHT, SILENT, WRONG = "right", "silent", "wrong"
_ROOT = str(Path(__file__).parents[2])


def shapes(seeds: range = SEEDS) -> dict[str, Counter[str]]:
    """Of each thing that was done to a value: how often that is told, nothing, or something that is not so.
    Of what has no shape nothing is right."""
    sys.path.insert(0, _ROOT)
    try:
        from tests.comparison.differences_made import NOTHING, SPEAKING, made
    finally:
        sys.path.remove(_ROOT)
    allowed = SPEAKING | dict.fromkeys(NOTHING, ())
    return {
        label: Counter(_outcome({one.name for one in symptoms(*made(label, seed))}, words) for seed in seeds)
        for label, words in allowed.items()
    }


def _outcome(told: set[str], words: tuple[str, ...]) -> str:
    if told - set(words):
        return WRONG
    return RIGHT if not words or words[0] in told else SILENT
