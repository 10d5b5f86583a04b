"""Bugs on top of a run that is cut: into sequences, each by itself, or into two ranks."""

import zlib
from collections.abc import Iterator, Sequence

from torch import nn

from planted import answers as asked
from planted.answers import REPLAY, Answers, Clean, Limits
from planted.harmless import Records, batch_split, captured_with_weights, put_together, weights_of
from planted.models import Batch
from planted.parallel import Make, divided, is_divisible, on_one_rank, run
from planted.planting import Bug, DataBug
from planted.score import IN_PARTS, IN_RANKS, Case, case_of, changed_weights, in_parts, without_weights

TURNS = 3  # each bug once in as many seeds
# They speak of both sequences, or of the second; of one alone there is nothing that they could do.
_OF_TWO_SEQUENCES = (
    "nan_in_one_row",
    "one_embedding_from_the_other_sequence",
    "one_token_from_the_other_sequence",
    "residual_of_the_other_sequence",
)
# On each rank there is only one group; and the threads draw their numbers from one generator.
_OF_ONE_RANK = ("grouped_heads_mapped_wrongly", "dropout_left_on")


def is_its_turn(name: str, base: Clean) -> bool:
    """Names decide with which seed, before anything runs."""
    return zlib.crc32(f"{name} {base.kind.name}".encode()) % TURNS == base.seed % TURNS


def combined_cases(
    base: Clean, limits: Limits, above: set[str], chosen: Sequence[Bug], data: Sequence[DataBug]
) -> Iterator[Case]:
    bugs = [one for one in chosen if is_its_turn(one.name, base)]
    wrong = [one for one in data if is_its_turn(one.name, base)]
    for one in bugs:
        if one.family != "loss" and one.name not in _OF_TWO_SEQUENCES:
            yield _case(base, one, IN_PARTS, above, _in_parts(base, one, limits))
    for bad in wrong:
        yield _data_case(base, bad, IN_PARTS, _data_in_parts(base, bad, limits))
    if is_divisible(base.kind):
        yield from _cases_in_ranks(base, limits, above, bugs, wrong)


def _cases_in_ranks(
    base: Clean, limits: Limits, above: set[str], bugs: Sequence[Bug], data: Sequence[DataBug]
) -> Iterator[Case]:
    ranks = run(base)
    for one in bugs:
        if one.name not in _OF_ONE_RANK:
            yield _case(base, one, IN_RANKS, above, _in_ranks(base, one, limits, ranks))
    for bad in data:
        yield _data_case(base, bad, IN_RANKS, _data_in_ranks(base, bad, limits, ranks))


def _case(base: Clean, one: Bug, scene: str, above: set[str], answers: Answers) -> Case:
    return case_of(base, one.name, one.family, scene, one.located(base.kind), one.name in above, answers)


def _data_case(base: Clean, one: DataBug, scene: str, answers: Answers) -> Case:
    return case_of(base, one.name, "data", scene, f"in.{one.located}", True, answers)


def _in_parts(base: Clean, one: Bug, limits: Limits) -> Answers:
    model, located = one.into(base.build(), base.kind), one.located(base.kind)
    if one.is_of_weights:
        other = batch_split(model, base.batch, *weights_of(model))
        return _of_weights(base, model, other, put_together(base.records, other), located, limits)
    other = batch_split(model, base.batch)
    answers = asked.of_records(base, other, limits, located, plain=put_together(base.records, other))
    answers[REPLAY] = asked.all_named(in_parts(base, model, limits), located)
    return answers


def _in_ranks(base: Clean, one: Bug, limits: Limits, ranks: Records) -> Answers:
    """Two ranks with the bug against the whole; and the whole with the bug, replayed with two ranks."""
    model, located = one.into(base.build(), base.kind), one.located(base.kind)
    if one.is_of_weights:
        other = run(base, _handed_out(one, base), capture=captured_with_weights)
        return _of_weights(base, model, other, on_one_rank(base, other), located, limits)
    other = run(base, lambda *given: one.into(divided(*given), base.kind))
    answers = asked.of_records(base, other, limits, located, plain=on_one_rank(base, other))
    answers[REPLAY] = asked.all_named(asked.by_replay(base, model, limits, a=ranks), located)
    return answers


def _handed_out(one: Bug, base: Clean) -> Make:
    """Weights were wrong before each rank got its own."""
    return lambda model, rank, exchange: divided(one.into(model, base.kind), rank, exchange)


def _of_weights(
    base: Clean, model: nn.Module, other: Records, plain: Records, located: str, limits: Limits
) -> Answers:
    """With a floor alone: a replay has the weights of two whole models at hand."""
    right = base.build()
    known, names = captured_with_weights(right, base.batch), changed_weights(right, model)
    answers = asked.of_gate(base, other, limits, "weights", names, a=known)
    return answers | asked.of_peers(base.records, without_weights(plain), located)


def _data_in_parts(base: Clean, one: DataBug, limits: Limits) -> Answers:
    wrong: Batch = one.into(base.batch)
    other = batch_split(model := base.build(), wrong)
    return _of_data(base, one, limits, other, put_together(base.records, other)) | {
        REPLAY: asked.gate_named(in_parts(base, model, limits, wrong), "inputs", {f"in.{one.located}"})
    }


def _data_in_ranks(base: Clean, one: DataBug, limits: Limits, ranks: Records) -> Answers:
    wrong: Batch = one.into(base.batch)
    other = run(base, given=wrong)
    found = asked.by_replay(base, base.build(), limits, wrong, a=ranks)
    return _of_data(base, one, limits, other, on_one_rank(base, other)) | {
        REPLAY: asked.gate_named(found, "inputs", {f"in.{one.located}"})
    }


def _of_data(base: Clean, one: DataBug, limits: Limits, other: Records, plain: Records) -> Answers:
    name = f"in.{one.located}"
    answers = asked.of_gate(base, other, limits, "inputs", {name})
    return answers | asked.of_peers(base.records, plain, name)
