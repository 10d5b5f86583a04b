"""Plant every bug in every model; count who names the guilty module, who sees anything, who cries wolf."""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

import tensortap as tt
from planted import attention_bugs, bugs  # noqa: F401 - each adds its own to the list
from planted.harmless import Records, captured, harmless, otherwise
from planted.models import KINDS as KINDS
from planted.models import Batch, Kind, batch, build
from planted.peers import RULES, blamed, first_failure
from planted.planting import Bug, fitting
from tensortap.comparison.metrics import Metrics, measure
from tensortap.comparison.twins import moved

OURS = "tensortap, floor"
WITHOUT = "tensortap, no floor"
TOOLS = (OURS, WITHOUT, *RULES)
SCENES = ("bug only", "bug and harmless changes")
_MARGIN = 1.5


@dataclass(frozen=True)
class Clean:
    """One model that is right, what it computes, and how noisy that is."""

    kind: Kind
    seed: int
    dtype: torch.dtype
    batch: Batch
    records: Records
    floor: tt.Floor


@dataclass(frozen=True)
class Case:
    """What each tool blamed: a module, `None` for nothing."""

    kind: str
    seed: int
    dtype: torch.dtype
    what: str  # the bug, or the harmless change
    scene: str
    located: str | None  # None: there is nothing to be found
    is_above_noise: bool
    blamed: dict[str, str | None]

    def is_hit(self, tool: str) -> bool:
        return self.located is not None and self.blamed[tool] == self.located

    def is_seen(self, tool: str) -> bool:
        return self.blamed[tool] is not None


@dataclass
class Score:
    """All cases of one number type."""

    limit: float
    cases: list[Case] = field(default_factory=list)

    def planted(self, scene: str = "", *, above_noise: bool = False) -> list[Case]:
        chosen = [one for one in self.cases if one.located is not None and scene in ("", one.scene)]
        return [one for one in chosen if one.is_above_noise] if above_noise else chosen

    @property
    def harmless(self) -> list[Case]:
        return [one for one in self.cases if one.located is None]


def clean(kind: Kind, seed: int, dtype: torch.dtype) -> Clean:
    model, given = build(kind, seed, dtype), batch(seed)
    return Clean(kind, seed, dtype, given, captured(model, given), tt.floor(model, given))


def calibrate(kinds: Iterable[Kind], seeds: Iterable[int], dtype: torch.dtype) -> float:
    """The limit, from harmless pairs alone, of seeds that are not scored."""
    seeds = list(seeds)
    worst = [0.0]
    for base in (clean(kind, seed, dtype) for kind in kinds for seed in seeds):
        for change in harmless(base.kind).values():
            found = tt.compare_runs(
                base.records, change(base.kind, base.seed, dtype, base.batch), floor=base.floor
            )
            worst += [one.ratio for one in found.table if not one.source and math.isfinite(one.ratio)]
    return _MARGIN * max(worst)


def score(kinds: Iterable[Kind], seeds: Iterable[int], dtype: torch.dtype, limit: float) -> Score:
    seeds = list(seeds)
    made = Score(limit)
    for kind in kinds:
        for seed in seeds:
            made.cases += cases(clean(kind, seed, dtype), limit)
    return made


def cases(base: Clean, limit: float) -> Iterator[Case]:
    yield from harmless_cases(base, limit)
    yield from planted_cases(base, limit, fitting(base.kind))


def planted_cases(base: Clean, limit: float, chosen: Iterable[Bug]) -> Iterator[Case]:
    for one in chosen:
        # Decided before anything is compared.
        is_above = is_above_noise(base, one)
        for scene in SCENES:
            other = captured(with_bug(base, one, scene), base.batch)
            yield _case(base, other, limit, one.name, scene, one.located(base.kind), is_above)


def harmless_cases(base: Clean, limit: float) -> Iterator[Case]:
    for name, change in harmless(base.kind).items():
        other = change(base.kind, base.seed, base.dtype, base.batch)
        yield _case(base, other, limit, name, "harmless", None, False)


def with_bug(base: Clean, one: Bug, scene: str) -> nn.Module:
    if scene == SCENES[0]:
        return one.into(build(base.kind, base.seed, base.dtype), base.kind)
    return one.into(otherwise(build(base.kind, base.seed, base.dtype, "sdpa")), base.kind)


def is_above_noise(base: Clean, one: Bug) -> bool:
    """Whether the module alone, on the very same inputs, is off by more than moving these by one place of
    their last digit does, or running it again."""
    path = one.located(base.kind)
    model = build(base.kind, base.seed, base.dtype)
    right, given = _with_inputs(model, path, base.batch)
    wrong = one.into(build(base.kind, base.seed, base.dtype), base.kind).get_submodule(path)
    plain = _given_by(right, given)
    noise = [measure(plain, _given_by(right, other)) for other in (given, _moved(given))]
    return _exceeds(measure(plain, _given_by(wrong, given)), noise)


def _case(
    base: Clean, other: Records, limit: float, what: str, scene: str, located: str | None, is_above: bool
) -> Case:
    found: dict[str, str | None] = {}
    for tool, floor, own in ((OURS, base.floor, limit), (WITHOUT, None, None)):
        first = tt.compare_runs(base.records, other, floor=floor, limit=own).first
        found[tool] = None if first is None else first.name
    for tool, rule in RULES.items():
        failure = first_failure(base.records, other, rule)
        found[tool] = None if failure is None else blamed(failure)
    return Case(base.kind.name, base.seed, base.dtype, what, scene, located, is_above, found)


Given = tuple[tuple[object, ...], dict[str, object]]


def _with_inputs(model: nn.Module, path: str, given: Batch) -> tuple[nn.Module, Given]:
    """The module, and what it is called with."""
    module, seen = model.get_submodule(path), list[Given]()
    handle = module.register_forward_pre_hook(
        lambda _, positional, named: seen.append(copy.deepcopy((positional, named))), with_kwargs=True
    )
    with torch.no_grad():
        model(**given)
    handle.remove()
    return module, seen[0]


def _given_by(module: nn.Module, given: Given) -> object:
    positional, named = copy.deepcopy(given)
    torch.manual_seed(0)
    with torch.no_grad():
        made = module(*positional, **named)
    return made if isinstance(made, torch.Tensor) else [one for one in made if isinstance(one, torch.Tensor)]


def _moved(given: Given) -> Given:
    positional, named = given
    return tuple(map(moved, positional)), {name: moved(value) for name, value in named.items()}


def _exceeds(found: Metrics, noise: list[Metrics]) -> bool:
    if found.reason or found.is_nonfinite or found.mismatches:
        return True
    sizes = ((found.relative_l2, "relative_l2"), (found.row, "row"), (found.column, "column"))
    least = torch.finfo(torch.float32).eps / 2
    return any(size > max(least, *(getattr(one, name) for one in noise)) for size, name in sizes)


def misses(made: Score, tool: str = OURS) -> list[str]:
    """One line for each bug that was not located, the most frequent first."""
    told = Counter(_told(one, one.blamed[tool]) for one in made.planted() if not one.is_hit(tool))
    return [f"{count}x {line}" for line, count in told.most_common()]


def _told(one: Case, blamed: str | None) -> str:
    instead = "not seen" if blamed is None else f"blamed {blamed or 'the model itself'}"
    return f"{one.what} in {one.kind}: {instead}{'' if one.is_above_noise else ' (below noise)'}"
