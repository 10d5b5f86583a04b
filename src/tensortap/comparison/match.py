"""Which value of one side is set against which of the other: by name, by rule, by class, by content."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tensortap.comparison.entries import Entry, Side
from tensortap.comparison.likeness import Found, by_class, by_content, suggested_rules
from tensortap.comparison.plans import Plan
from tensortap.comparison.rules import Rules, rules_of
from tensortap.core.paths import nearest

How = Literal["name", "map", "class", "order", "content"]
_Key = tuple[Any, ...]
_SHOWN = 3
_GUESSES: tuple[tuple[How, Callable[..., list[Found]]], ...] = (("class", by_class), ("content", by_content))


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two values that are taken for the same thing, how they were found, and how sure that is (1 is sure)."""

    a: Entry
    b: Entry
    how: How = "name"
    score: float = 1.0
    plan: Plan | None = None  # what was done to make them comparable


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """All pairs in the order of A, and what has no partner."""

    pairs: list[Pair]
    only_a: list[Entry] = field(default_factory=list)
    only_b: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ignored: int = 0  # values that a rule left out


def match(a: Side, b: Side, rules: Any = None) -> Matched:
    """Pair the values of two sides; each value has at most one partner, and whatever has none is listed.

    `rules` are a `Rules`, a TOML file, a dict of names, or a function of A's name.
    """
    known = rules_of(rules)
    a_entries, b_entries = known.kept(a.entries), known.kept(b.entries)
    ignored = len(a.entries) + len(b.entries) - len(a_entries) - len(b_entries)
    notes = known.problems(a.names, b.names)
    shift, told = _steps(a_entries, b_entries)
    pairs = _by_name(a_entries, b_entries, known, shift)
    left_a, left_b = _left(pairs, a_entries, b_entries)
    for how, alike in _GUESSES:
        if left_a and left_b:
            found = alike(left_a, left_b, pairs, shift)
            pairs += [Pair(one, other, how, score) for one, other, score in found]
            left_a, left_b = _left(pairs, left_a, left_b)
    notes += [*told, *_alike(pairs), *_strangers(a, b, pairs)]
    place = {id(entry): position for position, entry in enumerate(a_entries)}
    return Matched(sorted(pairs, key=lambda pair: place[id(pair.a)]), left_a, left_b, notes, ignored)


def _by_name(a: list[Entry], b: list[Entry], rules: Rules, shift: dict[Any, Any]) -> list[Pair]:
    """By name, step, rank and call, after the rules have had their say."""
    names = {name: rules.renamed(name) for name in dict.fromkeys(entry.name for entry in a)}
    ruled = {name for name, renamed in names.items() if renamed != name}
    rules.check_unique(names, {entry.name for entry in b})
    others = _keyed(b, lambda entry: (entry.name, entry.step, entry.rank, entry.call))
    pairs = []
    # Those that a rule speaks of come first: it may mean a name that another of A has by itself.
    for chosen in (ruled, names.keys() - ruled) if ruled else (names.keys(),):
        mine = _keyed(
            (entry for entry in a if entry.name in chosen),
            lambda entry: (names[entry.name], shift.get(entry.step, entry.step), entry.rank, entry.call),
        )
        for key, entry in mine.items():
            other = others.pop(key, None)
            if other is not None:
                how: How = "map" if entry.name in ruled else "order" if shift else "name"
                pairs.append(Pair(entry, other, how))
    return pairs


def _keyed(entries: Iterable[Entry], key_of: Callable[[Entry], _Key]) -> dict[_Key, Entry]:
    """Each value under a key of its own: what has the same key as another is numbered."""
    found: dict[_Key, Entry] = {}
    again: dict[_Key, int] = {}
    for entry in entries:
        key = key_of(entry)
        if key in found:
            again[key] = again.get(key, 0) + 1
            key = (*key, again[key])
        found[key] = entry
    return found


def _left(pairs: list[Pair], a: list[Entry], b: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    taken = {id(entry) for pair in pairs for entry in (pair.a, pair.b)}
    return [one for one in a if id(one) not in taken], [one for one in b if id(one) not in taken]


def _steps(a: list[Entry], b: list[Entry]) -> tuple[dict[Any, Any], list[str]]:
    """Which step of B stands for which of A, where the two count differently: both have as many steps, and
    none in common."""
    mine, others = ({entry.first_step for entry in entries} for entries in (a, b))
    are_plain = all(isinstance(entry.step, int) for entry in (*a, *b))
    if not are_plain or not mine or mine & others or len(mine) != len(others):
        return {}, []
    shift = dict(zip(sorted(mine), sorted(others), strict=True))
    told = f"A has the steps {_span(mine)}, B {_span(others)}: they are paired in their order"
    return shift, [told]


def _span(steps: set[int]) -> str:
    low, high = min(steps), max(steps)
    return str(low) if low == high else f"{low} to {high}"


def _alike(pairs: list[Pair]) -> list[str]:
    """What was paired without a name in common, and the rules that would say so."""
    guessed = [pair for pair in pairs if pair.how in ("class", "content")]
    if not guessed:
        return []
    counts = ", ".join(
        f"{sum(pair.how == how for pair in guessed)} by {words}"
        for how, words in (("class", "class and order"), ("content", "shape and content"))
        if any(pair.how == how for pair in guessed)
    )
    rules = suggested_rules([(pair.a.name, pair.b.name) for pair in guessed])
    return [f"names differ, so these pairs are a guess: {counts}; to be sure, give a map with\n{rules}"]


def _strangers(a: Side, b: Side, pairs: list[Pair]) -> list[str]:
    """Two sides that share no name at all: what is nearest, and what to write."""
    if any(pair.how in ("name", "map", "order") for pair in pairs) or not a.names or not b.names:
        return []
    told = f"no name is on both sides: A has {_some(a.names)}, B has {_some(b.names)}"
    near = [(name, found[0]) for name in a.names[:50] if (found := nearest(name, b.names, 1))]
    if not near or pairs:
        return [told]
    nearby = f"nearest is {near[0][0]!r} to {near[0][1]!r}"
    return [f"{told}; {nearby}. A map says what belongs together, such as\n{suggested_rules(near)}"]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
