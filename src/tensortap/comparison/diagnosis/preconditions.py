"""Preconditions of a comparison: do weights, inputs, configuration, code and environment agree?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensortap.comparison.matching.match import EntryPair, Matching
from tensortap.comparison.sides import run_facts
from tensortap.comparison.sides.entry import Entry, Side, module_of
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array
from tensortap.render.words import join_some

Topic = Literal[
    "weights", "inputs", "configuration", "packages", "code", "randomness", "environment", "ranks"
]
State = Literal["differs", "equal", "unknown"]
_MAX_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether the runs agree on one topic: a difference may explain what is found later."""

    what: Topic
    text: str
    names: tuple[str, ...] = ()
    state: State = "differs"
    are_unmatched: bool = False  # the names exist on one side only, so their values are not compared

    @property
    def differs(self) -> bool:
        return self.state == "differs"


def explain_setup_differences(a: Side, b: Side, matched: Matching) -> tuple[Explanation, ...]:
    """One explanation per topic: differing first, then equal, then unknown (not recorded)."""
    explanations = [
        _explain_weights(a, b, matched),
        _explain_inputs(matched),
        *_explain_run_facts(a, b),
        *_explain_ranks(a, b),
    ]
    states: tuple[State, ...] = ("differs", "equal", "unknown")
    return tuple(sorted(explanations, key=lambda explanation: states.index(explanation.state)))


def _explain_weights(a: Side, b: Side, matched: Matching) -> Explanation:
    """Compare weights by recorded digests, else by the parameters captured at the first step."""
    digests = [((side.metadata.get("model") or {}).get("weights")) or {} for side in (a, b)]
    if all(digests):
        return _compare_digests(digests[0], digests[1], matched)
    pairs = _first_steps(pair for pair in matched.pairs if pair.a.kind == pair.b.kind == "param")
    if not pairs:
        return Explanation(
            "weights", "weights were not recorded: nothing is claimed about them", state="unknown"
        )
    return _explain_pairs("weights", "captured weights", pairs)


def _compare_digests(a: Mapping[str, Any], b: Mapping[str, Any], matched: Matching) -> Explanation:
    """Compare weights by name, each a list of dtype, shape and digest."""
    name_in_b = _weight_names_in_b(matched)
    common = {name: (weight, b[name_in_b(name)]) for name, weight in a.items() if name_in_b(name) in b}
    unmatched = {
        "A": [name for name in a if name not in common],
        "B": sorted(b.keys() - set(map(name_in_b, a))),
    }
    sharded = [
        name
        for name, (a_weight, b_weight) in common.items()
        if matched.has_shards and a_weight[1] != b_weight[1]
    ]
    differing = [
        name for name, (a_weight, b_weight) in common.items() if a_weight != b_weight and name not in sharded
    ]
    undigested = [
        name for name, (a_weight, b_weight) in common.items() if a_weight[2] is None or b_weight[2] is None
    ]
    if differing:
        description = f"{len(differing)} of {len(common)} weights differ{_describe_dtypes(differing, common)}"
        return Explanation("weights", f"{description}: {join_some(differing, _MAX_SHOWN)}", tuple(differing))
    if any(unmatched.values()):
        counts = [
            f"{len(names)} only in {side}: {join_some(names, _MAX_SHOWN)}"
            for side, names in unmatched.items()
            if names
        ]
        description = f"the models do not have the same weights: {'; '.join(counts)}"
        return Explanation("weights", description, (*unmatched["A"], *unmatched["B"]), are_unmatched=True)
    if sharded:
        description = (
            f"{len(sharded)} of {len(common)} weights are in pieces on one side, and were not compared"
        )
        return Explanation("weights", description, tuple(sharded), "unknown")
    if undigested:
        description = (
            f"{len(undigested)} of {len(common)} weights have no digest (pip install 'tensortap[fast]')"
        )
        return Explanation("weights", description, tuple(undigested), "unknown")
    return Explanation("weights", f"all {len(common)} weights are equal", state="equal")


def _describe_dtypes(differing: list[str], common: Mapping[str, Any]) -> str:
    """The dtypes of both sides, if all differing weights differ in the same pair of dtypes; else ""."""
    dtypes = {(common[name][0][0], common[name][1][0]) for name in differing}
    a_dtype, b_dtype = dtypes.pop()
    return f" in their type, {a_dtype} against {b_dtype}" if not dtypes and a_dtype != b_dtype else ""


def _weight_names_in_b(matched: Matching) -> Callable[[str], str]:
    """A function from A's name of a weight to B's, by the modules that were paired."""
    modules = {
        module_of(pair.a.name, pair.a.kind): module_of(pair.b.name, pair.b.kind)
        for pair in matched.pairs
        if pair.how != "parts"
    }

    def name_in_b(name: str) -> str:
        module, dot, last = name.rpartition(".")
        return f"{modules.get(module, module)}{dot}{last}"

    return name_in_b


def _explain_inputs(matched: Matching) -> Explanation:
    """Compare the inputs of the model itself; unknown if they were not captured."""
    pairs = [pair for pair in matched.pairs if pair.a.kind == "input" and not module_of(pair.a.name, "input")]
    if not pairs:
        return Explanation(
            "inputs",
            "the model's inputs were not captured ('in' captures them): nothing is claimed about them",
            state="unknown",
        )
    return _explain_pairs("inputs", "inputs of the model", pairs)


def _explain_pairs(topic: Topic, label: str, pairs: Sequence[EntryPair]) -> Explanation:
    described = [(pair, _describe_difference(pair)) for pair in pairs]
    differing = [(pair, description) for pair, description in described if description]
    if not differing:
        return Explanation(topic, f"all {len(pairs)} {label} are equal", state="equal")
    names = list(dict.fromkeys(pair.a.name for pair, _ in differing))
    first, description = differing[0]
    more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
    text = f"{len(differing)} of {len(pairs)} {label} differ: {first.a} ({description}){more}"
    return Explanation(topic, text, tuple(names))


def _describe_difference(pair: EntryPair) -> str:
    """How two values differ, bit for bit; "" if they are equal."""
    a, b = pair.a, pair.b
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    if a.dtype != b.dtype:
        return f"{a.dtype or 'no array'} against {b.dtype or 'no array'}"
    if a.checksum and a.checksum == b.checksum:
        return ""
    try:
        return _describe_unequal_numbers(a, b)
    except (TensortapError, OSError, ValueError) as error:
        return f"unreadable: {error}"


def _describe_unequal_numbers(a: Entry, b: Entry) -> str:
    a_operand, b_operand = a.operand(), b.operand()
    if a_operand is None or b_operand is None:
        return "" if a.load() == b.load() else "not equal"
    unequal = int((_as_byte_rows(a_operand.bits) != _as_byte_rows(b_operand.bits)).any(axis=1).sum())
    return f"{unequal:,} of {a_operand.bits.size:,} numbers" if unequal else ""


def _as_byte_rows(bits: Array) -> Array:
    """One row of bytes per number, so that NaN equals itself and -0 is not 0."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1) if flat.size else np.empty((0, 1), np.uint8)


def _first_steps(pairs: Iterable[EntryPair]) -> list[EntryPair]:
    """The first pair of each name and rank: later weights follow from earlier steps."""
    first_pairs: dict[tuple[str, Any], EntryPair] = {}
    for pair in pairs:
        first_pairs.setdefault((pair.a.name, pair.a.rank), pair)
    return list(first_pairs.values())


def _explain_run_facts(a: Side, b: Side) -> list[Explanation]:
    """Compare the metadata of both runs; unknown if a side has none."""
    topics: tuple[Topic, ...] = ("configuration", "packages", "code", "randomness", "environment")
    if not a.metadata or not b.metadata:
        return [Explanation("configuration", "one side tells nothing of how it was made", state="unknown")]
    explanations = []
    for topic in topics:
        facts = [run_facts.extract_facts(topic, side.metadata) for side in (a, b)]
        differing = run_facts.describe_differences(*facts)
        if differing:
            text = f"{_headline(topic, len(differing))}: {join_some(list(differing.values()), _MAX_SHOWN)}"
            explanations.append(Explanation(topic, text, tuple(differing)))
        elif all(facts):
            explanations.append(Explanation(topic, f"{topic}: the same", state="equal"))
        else:
            explanations.append(Explanation(topic, f"{topic}: not recorded", state="unknown"))
    return explanations


def _headline(topic: Topic, count: int) -> str:
    return f"{topic}: {count} difference{'s' if count > 1 else ''}"


def _explain_ranks(a: Side, b: Side) -> list[Explanation]:
    if a.ranks == b.ranks or not a.entries or not b.entries:
        return []
    description = f"A has records of {_describe_ranks(a.ranks)}, B of {_describe_ranks(b.ranks)}"
    text = f"{description}: what only one side has is not compared"
    return [Explanation("ranks", text, tuple(map(str, set(a.ranks) ^ set(b.ranks))))]


def _describe_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
