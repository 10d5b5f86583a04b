"""What is told of the shape of a difference, where it is known what was done: how often it is right."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensortap.comparison.diagnosis.symptoms import find_symptoms

SEEDS = range(50_000, 50_200)  # what is sure was settled on others, below 2,000
RIGHT, SILENT, WRONG = "right", "silent", "wrong"
_ROOT = str(Path(__file__).parents[2])


Shapes = dict[str, Counter[str]]


@dataclass(frozen=True)
class Told:
    """What was done to a value, who may speak of it, the one that must first, and who does."""

    label: str
    allowed: tuple[str, ...]
    names: frozenset[str]

    @property
    def outcome(self) -> str:
        """Of what has no shape silence is right."""
        if self.names - set(self.allowed):
            return WRONG
        return RIGHT if not self.allowed or self.allowed[0] in self.names else SILENT


def told(seeds: range = SEEDS) -> list[Told]:
    sys.path.insert(0, _ROOT)
    try:
        from tests.comparison.differences_made import NOTHING, SPEAKING, made
    finally:
        sys.path.remove(_ROOT)
    return [
        Told(label, words, frozenset(one.name for one in find_symptoms(*made(label, seed))))
        for label, words in (SPEAKING | dict.fromkeys(NOTHING, ())).items()
        for seed in seeds
    ]


def by_what_was_done(found: Sequence[Told]) -> Shapes:
    """How often that is told, nothing, or something that is not so."""
    labels = dict.fromkeys(one.label for one in found)
    return {label: Counter(one.outcome for one in found if one.label == label) for label in labels}


def by_detector(found: Sequence[Told]) -> Shapes:
    """How often each speaks and is right, says nothing where it must speak, or speaks of what is not so."""
    counts: Shapes = {name: Counter() for one in found for name in one.allowed[:1]}
    for one in found:
        for name in one.names:
            counts.setdefault(name, Counter())[RIGHT if name in one.allowed else WRONG] += 1
        for name in set(one.allowed[:1]) - one.names:
            counts[name][SILENT] += 1
    return counts
