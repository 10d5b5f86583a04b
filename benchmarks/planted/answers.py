"""What each tool answers when two models are set against each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tensortap as tt
from planted import peers
from planted.harmless import Records, captured
from planted.models import Batch, Kind, batch, build

FLOOR, REPLAY, WITHOUT = "tensortap, floor", "tensortap, replay", "tensortap, no floor"
OURS = (FLOOR, REPLAY)
TOOLS = (*OURS, WITHOUT, *peers.RULES)
THE_MODEL = "the model itself"
EQUAL_UP_TO = "equal up to it"


@dataclass(frozen=True)
class Limits:
    """From how many times the noise on a difference counts."""

    floor: float
    replay: float


@dataclass(frozen=True)
class Clean:
    """One model that is right, what it computes, and how noisy that is."""

    kind: Kind
    seed: int
    dtype: torch.dtype
    batch: Batch
    records: Records
    floor: tt.Floor
    rounding: tt.Floor  # of each part alone, as a replay measures it

    def build(self, attention: str = "eager") -> nn.Module:
        return build(self.kind, self.seed, self.dtype, attention)


@dataclass(frozen=True)
class Answer:
    """`told` is what was blamed: nothing, or modules in the order in which they were named."""

    told: tuple[str, ...]
    is_hit: bool = False

    @property
    def is_seen(self) -> bool:
        return bool(self.told)

    @property
    def accuses(self) -> bool:
        return self.is_seen and self.told != (EQUAL_UP_TO,)

    def __str__(self) -> str:
        return ", ".join(one or THE_MODEL for one in self.told) or "nothing"


Answers = dict[str, Answer]
Hit = Callable[[tt.Comparison], bool]


def clean(kind: Kind, seed: int, dtype: torch.dtype) -> Clean:
    model, given = build(kind, seed, dtype), batch(kind, seed, dtype)
    records = captured(model, given)
    rounding = tt.align(model, model, given).floor
    return Clean(kind, seed, dtype, given, records, tt.floor(model, given), rounding)


def by_floor(base: Clean, other: Any, limits: Limits, *, a: Any = None) -> tt.Comparison:
    return tt.compare_runs(base.records if a is None else a, other, floor=base.floor, limit=limits.floor)


def by_replay(
    base: Clean, model: nn.Module, limits: Limits, given: Any = None, *, a: Any = None
) -> tt.Comparison:
    reference = base.records if a is None else a
    torch.manual_seed(0)
    return tt.align(
        reference, model, base.batch if given is None else given, floor=base.rounding, limit=limits.replay
    )


def first_named(found: tt.Comparison, located: str | None) -> Answer:
    told = () if found.first is None else (found.first.name,)
    return Answer(told, told == (located,))


def all_named(found: tt.Comparison, located: str | None) -> Answer:
    """A replay names every fault: the one that is there, and no other."""
    told = tuple(one.name for one in found.origins)
    return Answer(told, told == (located,))


def gate_named(found: tt.Comparison, what: str, names: set[str]) -> Answer:
    """The gate comes before any verdict: it names what differs, all of it, and nothing else."""
    (said,) = [one for one in found.gate if one.what == what]
    told = tuple(said.names) if said.differs else ()
    others = () if found.first is None else (found.first.name,)
    return Answer(told or others, set(told) == names)


def of_peers(a: Records, b: Records, located: str | None) -> Answers:
    answers = {}
    for tool, rule in peers.RULES.items():
        failure = peers.first_failure(a, b, rule)
        told = () if failure is None else (peers.blamed(failure),)
        answers[tool] = Answer(told, told == (located,))
    return answers


def of_records(
    base: Clean, other: Records, limits: Limits, located: str | None, *, plain: Records | None = None
) -> Answers:
    """All that judge two captures; `plain` is what those see who put nothing together."""
    return {
        FLOOR: first_named(by_floor(base, other, limits), located),
        WITHOUT: first_named(tt.compare_runs(base.records, other), located),
        **of_peers(base.records, other if plain is None else plain, located),
    }


def of_gate(
    base: Clean, other: Records, limits: Limits, what: str, names: set[str], *, a: Records | None = None
) -> Answers:
    """Both of ours that judge two captures, of what the gate looks at."""
    return {
        FLOOR: gate_named(by_floor(base, other, limits, a=a), what, names),
        WITHOUT: gate_named(tt.compare_runs(base.records if a is None else a, other), what, names),
    }
