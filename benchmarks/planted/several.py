"""Two and three bugs at once: a replay has to name all of them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planted.answers import Clean, Limits, by_replay
from planted.planting import Bug, fitting
from planted.score import ALONE, ON_TOP, name_of, plain

PAIRS, TRIPLES = 5, 4  # of each model


@dataclass(frozen=True)
class Several:
    """What was planted, and what was named."""

    kind: str
    seed: int
    dtype: str
    bugs: tuple[str, ...]
    located: tuple[str, ...]
    told: tuple[str, ...]

    @property
    def are_found(self) -> bool:
        return set(self.located) <= set(self.told)

    @property
    def others(self) -> int:
        """How many were accused of nothing."""
        return len(set(self.told) - set(self.located))


def several(base: Clean, limits: Limits, above: set[str]) -> Iterator[Several]:
    toss = random.Random(f"{base.kind.name} {base.seed}")
    code = [one for one in fitting(base.kind) if one.name in above and not one.is_of_weights]
    for count, number in ((2, PAIRS), (3, TRIPLES)):
        for turn in range(number):
            chosen = _chosen(code, count, base, toss)
            model = plain(base, ON_TOP if turn % 2 else ALONE)
            for one in chosen:
                one.into(model, base.kind)
            told = tuple(one.name for one in by_replay(base, model, limits).origins)
            located = tuple(one.located(base.kind) for one in chosen)
            names = tuple(one.name for one in chosen)
            yield Several(base.kind.name, base.seed, name_of(base.dtype), names, located, told)


def _chosen(code: Sequence[Bug], count: int, base: Clean, toss: random.Random) -> list[Bug]:
    """In as many different parts."""
    chosen: dict[str, Bug] = {}
    while len(chosen) < count:
        one = toss.choice(code)
        chosen.setdefault(one.located(base.kind), one)
    return list(chosen.values())
