"""Plant every bug in every model; ask each tool who is guilty."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

import tensortap as tt
from planted import answers as asked
from planted import attention_bugs, bugs, part_bugs, weight_bugs  # noqa: F401 - each adds its own to the list
from planted.answers import REPLAY, Answers, Clean, Limits
from planted.harmless import (
    Records,
    batch_split,
    captured,
    captured_with_weights,
    harmless,
    one_by_one,
    other_experts,
    otherwise,
    put_together,
    without_loss,
)
from planted.models import Batch
from planted.planting import Bug, DataBug, fitting, fitting_data

ALONE, ON_TOP, HARMLESS = "alone", "on top", "harmless"
IN_PARTS, IN_RANKS = "each sequence by itself", "two ranks"
SCENES = (ALONE, ON_TOP)


@dataclass(frozen=True)
class Case:
    """One pair of models, and what each tool blamed."""

    kind: str
    seed: int
    dtype: str
    what: str  # the bug, or the harmless change
    family: str
    scene: str
    located: str | None  # None: there is nothing to be found
    is_above_noise: bool
    answers: Answers

    def is_hit(self, tool: str) -> bool:
        return self.answers[tool].is_hit

    def is_seen(self, tool: str) -> bool:
        return self.answers[tool].is_seen


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def module_cases(
    base: Clean, limits: Limits, above: set[str], chosen: Iterable[Bug] | None = None
) -> Iterator[Case]:
    for one in fitting(base.kind) if chosen is None else chosen:
        for scene in SCENES:
            model = with_bug(base, one, scene)
            given = (
                _weights(base, model, one, limits) if one.is_of_weights else _code(base, model, one, limits)
            )
            yield case_of(base, one.name, one.family, scene, one.located(base.kind), one.name in above, given)


def data_cases(base: Clean, limits: Limits, chosen: Iterable[DataBug] | None = None) -> Iterator[Case]:
    for one in fitting_data(base.kind, base.batch) if chosen is None else chosen:
        wrong = one.into(base.batch)
        for scene in SCENES:
            model = plain(base, scene)
            name = f"in.{one.located}"
            answers = asked.of_peers(base.records, other := captured(model, wrong), name)
            answers |= asked.of_gate(base, other, limits, "inputs", {name})
            answers[REPLAY] = asked.gate_named(asked.by_replay(base, model, limits, wrong), "inputs", {name})
            yield case_of(base, one.name, "data", scene, name, True, answers)


def harmless_cases(base: Clean, limits: Limits) -> Iterator[Case]:
    for name, make in harmless(base.kind).items():
        model = make(base.kind, base.seed, base.dtype)
        answers = asked.of_records(base, captured(model, base.batch), limits, None)
        answers[REPLAY] = asked.all_named(asked.by_replay(base, model, limits), None)
        yield case_of(base, name, HARMLESS, HARMLESS, None, False, answers)
    yield _split(base, limits)
    if base.kind.sort == "experts":
        answers = asked.of_records(base, other_experts(base.build(), base.batch), limits, None)
        yield case_of(base, "other_experts", HARMLESS, HARMLESS, None, False, answers)


def _split(base: Clean, limits: Limits) -> Case:
    """Each sequence by itself."""
    other = batch_split(model := base.build(), base.batch)
    answers = asked.of_records(base, other, limits, None, plain=put_together(base.records, other))
    answers[REPLAY] = asked.all_named(in_parts(base, model, limits), None)
    return case_of(base, "batch_split", HARMLESS, HARMLESS, None, False, answers)


def in_parts(base: Clean, model: nn.Module, limits: Limits, given: Batch | None = None) -> tt.Comparison:
    """A replay of each sequence by itself."""
    known = without_loss(base.records)
    return asked.by_replay(base, model, limits, one_by_one(base.batch if given is None else given), a=known)


def with_bug(base: Clean, one: Bug, scene: str) -> nn.Module:
    return one.into(plain(base, scene), base.kind)


def plain(base: Clean, scene: str) -> nn.Module:
    return base.build() if scene == ALONE else otherwise(base.build("sdpa"))


def _code(base: Clean, model: nn.Module, one: Bug, limits: Limits) -> Answers:
    located = one.located(base.kind)
    answers = asked.of_records(base, captured(model, base.batch), limits, located)
    answers[REPLAY] = asked.all_named(asked.by_replay(base, model, limits), located)
    return answers


def _weights(base: Clean, model: nn.Module, one: Bug, limits: Limits) -> Answers:
    """Weights are captured too; a replay has both models at hand."""
    right = base.build()
    located, names = one.located(base.kind), changed_weights(right, model)
    known, other = captured_with_weights(right, base.batch), captured_with_weights(model, base.batch)
    answers = asked.of_gate(base, other, limits, "weights", names, a=known)
    answers[REPLAY] = asked.gate_named(asked.by_replay(base, model, limits, a=right), "weights", names)
    return answers | asked.of_peers(*(without_weights(some) for some in (known, other)), located)


def without_weights(records: Records) -> Records:
    """As others see it: a module is blamed by what it gives."""
    return [record for record in records if record.kind != "param"]


def changed_weights(right: nn.Module, wrong: nn.Module) -> set[str]:
    """The names of all weights that are not the same, with each name of one that is tied."""
    held = [dict(model.named_parameters(remove_duplicate=False)) for model in (right, wrong)]
    return {name for name, weight in held[0].items() if not torch.equal(weight, held[1][name])}


def case_of(
    base: Clean, what: str, family: str, scene: str, located: str | None, is_above: bool, answers: Answers
) -> Case:
    dtype = name_of(base.dtype)
    return Case(base.kind.name, base.seed, dtype, what, family, scene, located, is_above, answers)
