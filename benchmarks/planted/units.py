"""What one worker does: everything about one model, one seed and one number type."""

import logging
import math
import pickle
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from planted.answers import Clean, Limits, by_floor, by_replay, clean
from planted.arrangements import arrangement_cases
from planted.combined import combined_cases
from planted.harmless import batch_split, captured, harmless, other_experts
from planted.noise import above_noise
from planted.parallel import is_divisible, parallel_cases
from planted.parallel import run as in_two_ranks
from planted.planting import fitting, fitting_data
from planted.score import Case, data_cases, harmless_cases, in_parts, module_cases
from planted.several import Several, several
from planted.training import clean_training, is_trainable, trained_otherwise, training_cases
from planted.zoo import CALIBRATED, SCORED
from tensortap.comparison.runs.compare import Comparison

DTYPES = ("float32", "bfloat16")
_BEYOND_ALL = sys.float_info.max  # nothing counts: what is looked for is how far noise reaches


@dataclass(frozen=True)
class Unit:
    """`is_whole`: also what one seed is enough for, ranks, arrangements, training."""

    kind: str
    seed: int
    dtype: str
    is_whole: bool = True
    bugs: tuple[str, ...] = ()  # only these

    @property
    def key(self) -> str:
        return f"{self.kind} {self.seed} {self.dtype}"

    @property
    def type(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found


@dataclass
class Scored:
    """What a unit gave."""

    cases: list[Case] = field(default_factory=list)
    several: list[Several] = field(default_factory=list)


def begin() -> None:
    """The models are small: threads would only wait for each other."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def find_above_noise(unit: Unit) -> list[str]:
    begin()
    return above_noise(SCORED[unit.kind], unit.seed, unit.type, is_whole=unit.is_whole)


class Worst(NamedTuple):
    """The largest multiple of its noise that a value of a harmless pair reaches, and where."""

    ratio: float = 0.0
    told: str = ""


def calibrate(unit: Unit) -> tuple[Worst, Worst]:
    """By a floor, and by replay."""
    begin()
    base = clean(CALIBRATED[unit.kind], unit.seed, unit.type)
    limits = Limits(_BEYOND_ALL, _BEYOND_ALL)
    floor, replay = [Worst()], [Worst()]
    for name, make in harmless(base.kind).items():
        model = make(base.kind, base.seed, base.dtype)
        floor.append(_worst(base, name, by_floor(base, captured(model, base.batch), limits)))
        replay.append(_worst(base, name, by_replay(base, model, limits)))
    splits = (batch_split, other_experts) if base.kind.sort == "experts" else (batch_split,)
    for split in splits:
        floor.append(_worst(base, split.__name__, by_floor(base, split(base.build(), base.batch), limits)))
    replay.append(_worst(base, batch_split.__name__, in_parts(base, base.build(), limits)))
    if is_divisible(base.kind):
        ranks = in_two_ranks(base)
        floor.append(_worst(base, "two_ranks", by_floor(base, ranks, limits)))
        replay.append(_worst(base, "two_ranks", by_replay(base, base.build(), limits, a=ranks)))
    if "loss" in base.kind.traits:
        chosen = base.kind, base.seed, base.dtype
        training = clean_training(*chosen)
        found = training.against(trained_otherwise(*chosen, training.given), limits.floor)
        floor.append(_worst(base, "training", found))
    return max(floor), max(replay)


def _worst(base: Clean, change: str, found: Comparison) -> Worst:
    told = f"{change} in {base.kind.name}, at {{}}"
    chosen = [one for one in found.table if not one.source and math.isfinite(one.ratio)]
    return max((Worst(one.ratio, told.format(one.name)) for one in chosen), default=Worst())


def kept(file: Path, task: tuple[Unit, Limits, tuple[str, ...]]) -> Scored:
    """The score, from a file where it is there."""
    if not file.exists():
        file.write_bytes(pickle.dumps(score(*task)))
    found = pickle.loads(file.read_bytes())
    assert isinstance(found, Scored)
    return found


def score(unit: Unit, limits: Limits, known: Collection[str]) -> Scored:
    """All cases of one model; `known` are the bugs above noise."""
    begin()
    made, above = Scored(), set(known)
    base = clean(SCORED[unit.kind], unit.seed, unit.type)
    made.cases += _of_one_process(base, unit, limits, above)
    if not unit.bugs:
        made.cases += harmless_cases(base, limits)
        made.several += several(base, limits, above)
        if unit.is_whole:
            made.cases += _once(base, limits, above)
    return made


def _of_one_process(base: Clean, unit: Unit, limits: Limits, above: set[str]) -> list[Case]:
    chosen = fitting(base.kind)
    data = fitting_data(base.kind, base.batch)
    if unit.bugs:
        chosen = [one for one in chosen if one.name in unit.bugs]
        data = [one for one in data if one.name in unit.bugs]
    return [
        *module_cases(base, limits, above, chosen),
        *data_cases(base, limits, data),
        *combined_cases(base, limits, above, chosen, data),
    ]


def _once(base: Clean, limits: Limits, above: set[str]) -> list[Case]:
    made = list(arrangement_cases(base, limits))
    if is_divisible(base.kind):
        made += parallel_cases(base, limits, above)
    if is_trainable(base.kind):
        made += training_cases(base.kind, base.seed, base.dtype, limits, above)
    return made
