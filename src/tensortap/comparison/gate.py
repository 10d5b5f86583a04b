"""What two runs have not in common before any value is judged: weights, inputs, configuration, code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensortap.comparison import circumstances
from tensortap.comparison.entries import Entry, Side
from tensortap.comparison.match import Matching, EntryPair
from tensortap.comparison.modules import module_of
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

Topic = Literal["weights", "inputs", "configuration", "packages", "code", "randomness", "environment", "ranks"]
State = Literal["differs", "equal", "unknown"]
_MAX_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """One finding of the gate. What differs explains what is found later; what is unknown was not recorded,
    and nothing is claimed about it."""

    what: Topic
    text: str
    names: tuple[str, ...] = ()
    state: State = "differs"
    are_alone: bool = False  # the names are on one side only: nothing is known of what they hold

    @property
    def differs(self) -> bool:
        return self.state == "differs"


def explain_setup_differences(a: Side, b: Side, matched: Matching) -> tuple[Explanation, ...]:
    """Every finding: first what differs, then what is equal, then what was not recorded."""
    found = [_explain_weights(a, b, matched), _explain_inputs(matched), *_explain_run_facts(a, b), *_explain_ranks(a, b)]
    places: tuple[State, ...] = ("differs", "equal", "unknown")
    return tuple(sorted(found, key=lambda one: places.index(one.state)))


def _explain_weights(a: Side, b: Side, matched: Matching) -> Explanation:
    """By the digests beside the runs, else by the parameters that were captured, as they first were."""
    known = [((side.metadata.get("model") or {}).get("weights")) or {} for side in (a, b)]
    if all(known):
        return _compare_digests(known[0], known[1], matched)
    pairs = _first_steps(pair for pair in matched.pairs if pair.a.kind == pair.b.kind == "param")
    if not pairs:
        return Explanation(
            "weights", "weights were not recorded: nothing is claimed about them", state="unknown"
        )
    return _explain_pairs("weights", "captured weights", pairs)


def _compare_digests(a: Mapping[str, Any], b: Mapping[str, Any], matched: Matching) -> Explanation:
    """Each weight is a type, a shape and a digest."""
    called = _weight_names_in_b(matched)
    common = {name: (weight, b[called(name)]) for name, weight in a.items() if called(name) in b}
    alone = {"A": [name for name in a if name not in common], "B": sorted(b.keys() - set(map(called, a)))}
    pieces = [name for name, (one, other) in common.items() if matched.has_shards and one[1] != other[1]]
    differing = [name for name, (one, other) in common.items() if one != other and name not in pieces]
    unread = [name for name, (one, other) in common.items() if one[2] is None or other[2] is None]
    if differing:
        told = f"{len(differing)} of {len(common)} weights differ{_describe_dtypes(differing, common)}"
        return Explanation("weights", f"{told}: {_join_some(differing)}", tuple(differing))
    if any(alone.values()):
        parts = [f"{len(names)} only in {side}: {_join_some(names)}" for side, names in alone.items() if names]
        told = f"the models do not have the same weights: {'; '.join(parts)}"
        return Explanation("weights", told, (*alone["A"], *alone["B"]), are_alone=True)
    if pieces:
        told = f"{len(pieces)} of {len(common)} weights are in pieces on one side, and were not compared"
        return Explanation("weights", told, tuple(pieces), "unknown")
    if unread:
        told = f"{len(unread)} of {len(common)} weights have no digest (pip install 'tensortap[fast]')"
        return Explanation("weights", told, tuple(unread), "unknown")
    return Explanation("weights", f"all {len(common)} weights are equal", state="equal")


def _describe_dtypes(differing: list[str], common: Mapping[str, Any]) -> str:
    """Where they all differ in their type, that is the news."""
    types = {(common[name][0][0], common[name][1][0]) for name in differing}
    one, other = types.pop()
    return f" in their type, {one} against {other}" if not types and one != other else ""


def _weight_names_in_b(matched: Matching) -> Any:
    """What B calls a weight of A, after the modules that were paired."""
    modules = {
        module_of(pair.a.name, pair.a.kind): module_of(pair.b.name, pair.b.kind)
        for pair in matched.pairs
        if pair.how != "parts"
    }

    def called(name: str) -> str:
        module, dot, last = name.rpartition(".")
        return f"{modules.get(module, module)}{dot}{last}"

    return called


def _explain_inputs(matched: Matching) -> Explanation:
    """The model's own inputs; nothing can be said of a run that did not capture them."""
    pairs = [pair for pair in matched.pairs if pair.a.kind == "input" and not module_of(pair.a.name, "input")]
    if not pairs:
        return Explanation(
            "inputs",
            "the model's inputs were not captured ('in' captures them): nothing is claimed about them",
            state="unknown",
        )
    return _explain_pairs("inputs", "inputs of the model", pairs)


def _explain_pairs(what: Topic, called: str, pairs: Sequence[EntryPair]) -> Explanation:
    told = [(pair, _describe_difference(pair)) for pair in pairs]
    differing = [(pair, words) for pair, words in told if words]
    if not differing:
        return Explanation(what, f"all {len(pairs)} {called} are equal", state="equal")
    names = list(dict.fromkeys(pair.a.name for pair, _ in differing))
    first, words = differing[0]
    more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
    text = f"{len(differing)} of {len(pairs)} {called} differ: {first.a} ({words}){more}"
    return Explanation(what, text, tuple(names))


def _describe_difference(pair: EntryPair) -> str:
    """In what two values differ, exactly; empty when they do not."""
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
    one, other = a.operand(), b.operand()
    if one is None or other is None:
        return "" if a.load() == b.load() else "not equal"
    apart = int((_as_byte_rows(one.bits) != _as_byte_rows(other.bits)).any(axis=1).sum())
    return f"{apart:,} of {one.bits.size:,} numbers" if apart else ""


def _as_byte_rows(bits: Array) -> Array:
    """A row of bytes for each number: NaN is itself, and -0 is not 0."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1) if flat.size else np.empty((0, 1), np.uint8)


def _first_steps(pairs: Iterable[EntryPair]) -> list[EntryPair]:
    """The weights of the first step: later ones are a consequence."""
    found: dict[tuple[str, Any], EntryPair] = {}
    for pair in pairs:
        found.setdefault((pair.a.name, pair.a.rank), pair)
    return list(found.values())


def _explain_run_facts(a: Side, b: Side) -> list[Explanation]:
    """What the metadata of both tells; a side without metadata is no difference."""
    topics: tuple[Topic, ...] = ("configuration", "packages", "code", "randomness", "environment")
    if not a.metadata or not b.metadata:
        return [Explanation("configuration", "one side tells nothing of how it was made", state="unknown")]
    found = []
    for what in topics:
        facts = [circumstances.extract_facts(what, side.metadata) for side in (a, b)]
        differing = circumstances.describe_differences(*facts)
        if differing:
            text = f"{_headline(what, len(differing))}: {_join_some(list(differing.values()))}"
            found.append(Explanation(what, text, tuple(differing)))
        elif all(facts):
            found.append(Explanation(what, f"{what}: the same", state="equal"))
        else:
            found.append(Explanation(what, f"{what}: not recorded", state="unknown"))
    return found


def _headline(what: Topic, count: int) -> str:
    return f"{what}: {count} difference{'s' if count > 1 else ''}"


def _explain_ranks(a: Side, b: Side) -> list[Explanation]:
    if a.ranks == b.ranks or not a.entries or not b.entries:
        return []
    told = f"A has records of {_describe_ranks(a.ranks)}, B of {_describe_ranks(b.ranks)}"
    text = f"{told}: what only one side has is not compared"
    return [Explanation("ranks", text, tuple(map(str, set(a.ranks) ^ set(b.ranks))))]


def _describe_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _join_some(names: Sequence[str]) -> str:
    more = f", ... {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more
