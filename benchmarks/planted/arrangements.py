"""The same numbers in another arrangement: nothing is wrong, and what they are equal up to has to be said."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import tensortap as tt
from planted import answers as asked
from planted.answers import FLOOR, Clean, Limits
from planted.attention_bugs import rope_interleaved
from planted.harmless import Records, captured
from planted.models import HEAD, LAYER, LENGTH, Kind
from planted.score import ON_TOP, Case, name_of

MORE = 8  # tokens of padding


@dataclass(frozen=True)
class Arrangement:
    """`told` is what the answer has to say of at least one value."""

    name: str
    told: str
    make: Callable[[Clean], Records]
    needs: frozenset[str]


ARRANGEMENTS: list[Arrangement] = []


def arrangement(told: str, *needs: str) -> Callable[[Callable[[Clean], Records]], Callable[[Clean], Records]]:
    def keep(make: Callable[[Clean], Records]) -> Callable[[Clean], Records]:
        ARRANGEMENTS.append(Arrangement(make.__name__, told, make, frozenset(needs)))
        return make

    return keep


def fitting(kind: Kind) -> list[Arrangement]:
    return [one for one in ARRANGEMENTS if one.needs <= kind.traits]


@arrangement(r"order of axes \[1, 0, 2\]", "causal", "single")
def tokens_before_sequences(base: Clean) -> Records:
    """As where the first axis is time."""
    return [_with(one, _hidden(one, lambda value: value.transpose(0, 1))) for one in base.records]


@arrangement("its shape", "causal", "single")
def tokens_in_one_row(base: Clean) -> Records:
    return [_with(one, _hidden(one, lambda value: value.flatten(0, 1))) for one in base.records]


@arrangement(r"order of axes \[0, 2, 1, 3\]", "split")
def heads_apart(base: Clean) -> Records:
    """Queries, keys and values as [batch, heads, tokens, width]."""

    def apart(one: tt.Record) -> tt.Record:
        if not re.search(r"\.[qkv]_proj$", one.name):
            return one
        return one.with_value(one.value.unflatten(-1, (-1, HEAD)).transpose(1, 2).contiguous())

    return [apart(one) for one in base.records]


@arrangement("fused", "split")
def query_key_and_value_fused(base: Clean) -> Records:
    return _fused(base.records, "self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj")


@arrangement("fused", "split")
def gate_and_up_fused(base: Clean) -> Records:
    return _fused(base.records, "mlp", ("gate_proj", "up_proj"), "gate_up_proj")


@arrangement("a residual beside", "causal", "single")
def residual_beside(base: Clean) -> Records:
    """A layer that gives its residual for the next one to add."""
    name = f"{base.kind.layer}.{LAYER}"
    made: Records = []
    for one in base.records:
        if one.name == name and one.kind == "output":
            part = torch.randn(one.value.shape, generator=torch.Generator().manual_seed(4)).to(one.value)
            made += [one._replace(name=f"{name}[0]", value=one.value - part)]
            made += [one._replace(name=f"{name}[1]", value=part)]
        else:
            made.append(one)
    return made


@arrangement("by their ids", "causal", "fusable")
def padded_further(base: Clean) -> Records:
    """The same sequences in a longer batch."""
    wider = {name: F.pad(value, (0, MORE), value=_empty(name)) for name, value in base.batch.items()}
    return captured(base.build(), wider)


@arrangement("by their ids", "causal", "fusable")
def sequences_in_another_order(base: Clean) -> Records:
    return captured(base.build(), {name: value.flip(0) for name, value in base.batch.items()})


@arrangement("rotary heads", "split")
def rotary_halves_in_turns(base: Clean) -> Records:
    """Weights and rotation both of the other convention: what they make together is the same."""
    model = base.build()
    turns = torch.arange(HEAD).view(2, -1).T.reshape(-1)
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj")):
            _reorder(module, turns)
        elif name.endswith(("q_norm", "k_norm")):
            module.weight.data = module.weight.data[turns]
        elif name.endswith("self_attn"):
            rope_interleaved(module)
    return captured(model, base.batch)


def _reorder(linear: torch.nn.Linear, turns: torch.Tensor) -> None:
    rows = torch.arange(linear.out_features).view(-1, HEAD)[:, turns].reshape(-1)
    linear.weight.data = linear.weight.data[rows]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data[rows]


def _hidden(one: tt.Record, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """What has a row for each token."""
    value = one.value
    is_hidden = isinstance(value, torch.Tensor) and value.ndim == 3 and value.shape[1] == LENGTH
    return change(value).contiguous() if is_hidden and value.is_floating_point() and len(value) > 1 else None


def _with(one: tt.Record, value: torch.Tensor | None) -> tt.Record:
    return one if value is None else one.with_value(value)


def _fused(records: Records, within: str, parts: tuple[str, ...], name: str) -> Records:
    """The outputs of several as one; what came in, once."""
    made: Records = []
    for one in records:
        before, found, last = one.name.rpartition(f".{within}.")
        module = last.split(".")[0]
        if not found or module not in parts:
            made.append(one)
        elif module == parts[-1]:
            renamed = one._replace(name=f"{before}.{within}.{last.replace(module, name, 1)}")
            if one.kind == "output":
                values = [_value(records, f"{before}.{within}.{part}") for part in parts]
                renamed = renamed.with_value(torch.cat(values, -1))
            made.append(renamed)
    return made


def _value(records: Records, name: str) -> torch.Tensor:
    return next(one.value for one in records if one.name == name)


def _empty(name: str) -> int:
    return -100 if name == "labels" else 0


def arrangement_cases(base: Clean, limits: Limits) -> Iterator[Case]:
    for one in fitting(base.kind):
        found = asked.by_floor(base, one.make(base), limits)
        is_told = any(re.search(one.told, plan.summary + " ".join(plan.details)) for plan in found.plans)
        told = () if found.first is None else (found.first.name,)
        answer = asked.Answer(told or ((asked.EQUAL_UP_TO,) if is_told else ()), is_told and not told)
        yield Case(
            base.kind.name,
            base.seed,
            name_of(base.dtype),
            one.name,
            "arrangements",
            ON_TOP,
            "equal up to",
            True,
            {FLOOR: answer},
        )
