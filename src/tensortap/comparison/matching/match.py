"""Pair the values of two sides: by name, by rule, by class, by content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from operator import attrgetter
from typing import Any, Literal

from tensortap.comparison.matching.rules import Rules, load_rules
from tensortap.comparison.matching.similarity import (
    ScoredPair,
    match_by_class,
    match_by_content,
    suggest_rules,
)
from tensortap.comparison.sides.entry import AlignmentNote, Entry, Side
from tensortap.core.interpreter import gc_paused

MatchMethod = Literal["name", "map", "class", "order", "content", "parts"]
_Key = tuple[Any, ...]
_call_key: Callable[[Entry], _Key] = attrgetter("name", "step", "rank", "call")
_GUESSERS: tuple[tuple[MatchMethod, Callable[..., list[ScoredPair]]], ...] = (
    ("class", match_by_class),
    ("content", match_by_content),
)
_MAX_NAMES_SHOWN = 3
_MAX_DISTINCT_NAMES = 100  # per side; names that differ only in numbers count once
_NUMBERS = re.compile(r"\d+")


# Not frozen: one is created per pair, and frozen dataclasses are five times slower. Never mutated.
@dataclass(slots=True, eq=False)
class EntryPair:
    """Two values taken for the same, how they were matched, and a confidence up to 1."""

    a: Entry
    b: Entry
    how: MatchMethod = "name"
    score: float = 1.0
    alignment: AlignmentNote | None = None  # how they were made comparable


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """All pairs in the order of A, and the values without a partner."""

    pairs: list[EntryPair]
    only_a: list[Entry] = field(default_factory=list)
    only_b: list[Entry] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # remarks that are not problems
    ignored: int = 0  # number of values excluded by a rule
    gaps: list[str] = field(default_factory=list)  # parts of values that only one side has
    has_shards: bool = False  # some values were assembled from several ranks

    @property
    def notes(self) -> list[str]:
        """All remarks on the pairs, including those that depend on later changes to them."""
        return [*self.messages, *_describe_guesses(self.pairs), *_hints_without_common_names(self)]


def match(a: Side, b: Side, rules: Any = None) -> Matching:
    """Pair the values of two sides; each value has at most one partner, and whatever has none is listed.

    `rules` are a `Rules`, a TOML file, a dict of names, or a function of A's name.
    """
    rename_rules = load_rules(rules)
    a_entries, b_entries = rename_rules.drop_ignored(a.entries), rename_rules.drop_ignored(b.entries)
    ignored = len(a.entries) + len(b.entries) - len(a_entries) - len(b_entries)
    shift, messages = _map_steps(a_entries, b_entries)
    with gc_paused():
        pairs = _pair_by_name(a_entries, b_entries, rename_rules, shift)
    is_complete = len(pairs) == len(a_entries) == len(b_entries)
    left_a, left_b = ([], []) if is_complete else _unpaired(pairs, a_entries, b_entries)
    for how, guess in _GUESSERS:
        if left_a and left_b:
            scored = guess(left_a, left_b, pairs, shift)
            pairs += [EntryPair(a_entry, b_entry, how, score) for a_entry, b_entry, score in scored]
            left_a, left_b = _unpaired(pairs, left_a, left_b)
    if any(pair.how != "name" for pair in pairs):  # pairing by name keeps the order of A
        positions = {id(entry): position for position, entry in enumerate(a_entries)}
        pairs.sort(key=lambda pair: positions[id(pair.a)])
    if rename_rules.ignore or rename_rules.placements:
        messages = [
            *rename_rules.describe_unused_patterns(_unique_names([*a.entries, *b.entries])),
            *messages,
        ]
    if rename_rules.has_renames:
        messages = [
            *rename_rules.find_problems(_unique_names(a_entries), _unique_names(b_entries)),
            *messages,
        ]
    return Matching(pairs, left_a, left_b, messages, ignored)


def _unique_names(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.name for entry in entries))


def _pair_by_name(a: list[Entry], b: list[Entry], rules: Rules, shift: dict[Any, Any]) -> list[EntryPair]:
    """Pair by name, step, rank and call, after renaming by the rules."""
    names = {name: rules.rename(name) for name in _unique_names(a)} if rules.has_renames else {}
    ruled = {name for name, renamed in names.items() if renamed != name}
    rules.check_unique(names, {entry.name for entry in b} if ruled else set())
    b_by_key = _index_by_key(b, map(_call_key, b))
    pairs = []
    # Renamed values first: a rule may target a name that another value of A has itself.
    for chosen in (ruled, names.keys() - ruled) if ruled else (names.keys(),):
        a_entries = [entry for entry in a if entry.name in chosen] if ruled else a
        keys: Iterable[_Key] = map(_call_key, a_entries)
        if ruled or shift:
            keys = ((names.get(name, name), shift.get(step, step), *call) for name, step, *call in keys)
        for key, entry in _index_by_key(a_entries, keys).items():
            b_entry = b_by_key.pop(key, None)
            if b_entry is not None:
                how: MatchMethod = "map" if entry.name in ruled else "order" if shift else "name"
                pairs.append(EntryPair(entry, b_entry, how))
    return pairs


def _index_by_key(entries: list[Entry], keys: Iterable[_Key]) -> dict[_Key, Entry]:
    """Index by key; duplicates get a number appended."""
    pairs = list(zip(keys, entries, strict=True))
    by_key = dict(pairs)
    if len(by_key) == len(pairs):
        return by_key
    by_key = {}
    repeats: dict[_Key, int] = {}
    for key, entry in pairs:
        if key in by_key:
            repeats[key] = repeats.get(key, 0) + 1
            key = (*key, repeats[key])
        by_key[key] = entry
    return by_key


def _unpaired(pairs: list[EntryPair], a: list[Entry], b: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    paired = {id(entry) for pair in pairs for entry in (pair.a, pair.b)}
    return [entry for entry in a if id(entry) not in paired], [
        entry for entry in b if id(entry) not in paired
    ]


def _map_steps(a: list[Entry], b: list[Entry]) -> tuple[dict[Any, Any], list[str]]:
    """Map the steps of A to those of B if they are equally many and none is common."""
    all_steps = [{entry.step for entry in entries} for entries in (a, b)]
    a_steps, b_steps = ({step for step in steps if isinstance(step, int)} for steps in all_steps)
    if [a_steps, b_steps] != all_steps or not a_steps or a_steps & b_steps or len(a_steps) != len(b_steps):
        return {}, []
    shift = dict(zip(sorted(a_steps), sorted(b_steps), strict=True))
    a_range, b_range = _describe_range(a_steps), _describe_range(b_steps)
    message = f"A has the steps {a_range}, B {b_range}: they are paired in their order"
    return shift, [message]


def _describe_range(steps: set[int]) -> str:
    low, high = min(steps), max(steps)
    return str(low) if low == high else f"{low} to {high}"


def _describe_guesses(pairs: list[EntryPair]) -> list[str]:
    """Report the pairs that were guessed, and the rules that would make them certain."""
    guessed = [pair for pair in pairs if pair.how in ("class", "content")]
    if not guessed:
        return []
    counts = ", ".join(
        f"{sum(pair.how == how for pair in guessed)} by {description}"
        for how, description in (("class", "class and order"), ("content", "shape and content"))
        if any(pair.how == how for pair in guessed)
    )
    surest = sorted(guessed, key=lambda pair: -pair.score)
    rules = suggest_rules([(pair.a.name, pair.b.name) for pair in surest])
    return [f"names differ, so these pairs are a guess: {counts}; to be sure, give a map with\n{rules}"]


def _hints_without_common_names(matching: Matching) -> list[str]:
    """Hints for sides that have no name in common."""
    pairs = matching.pairs
    if any(pair.how not in ("class", "content") for pair in pairs):
        return []
    a, b = [*(pair.a for pair in pairs), *matching.only_a], [*(pair.b for pair in pairs), *matching.only_b]
    return unmatched_hints(a, b, are_guessed=bool(pairs))


def unmatched_hints(a: Sequence[Entry], b: Sequence[Entry], *, are_guessed: bool) -> list[str]:
    """Report the nearest names of sides without a common name, and rules to start from unless pairs were
    guessed."""
    a_names, b_names = _first_by_name(a), _first_by_name(b)
    if not a_names or not b_names:
        return []
    common = [name for name in a_names if name in b_names]
    if common:
        are = "is" if len(common) == 1 else "are"
        message = f"no value has a partner, although {_list_names(common)} {are} on both sides"
        return [f"{message}: the map, the step, the rank or the call tells them apart"]
    message = (
        f"no name is on both sides: A has {_list_names(list(a_names))}, B has {_list_names(list(b_names))}"
    )
    if are_guessed:
        return [message]
    nearest = _nearest_names(a_names, b_names)
    nearby = f"nearest is {nearest[0][0]!r} to {nearest[0][1]!r}"
    return [f"{message}; {nearby}. A map says what belongs together, such as\n{suggest_rules(nearest)}"]


def _first_by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Every name once, with its first entry."""
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    return first


def _nearest_names(a: dict[str, Entry], b: dict[str, Entry]) -> list[tuple[str, str]]:
    """For each distinct name of A the nearest of B, best first."""
    scored = []
    b_entries = _distinct_names(b)
    for name, entry in _distinct_names(a).items():
        likeness, index = max(
            (_entry_similarity(entry, b_entry), position)
            for position, b_entry in enumerate(b_entries.values())
        )
        scored.append((likeness, name, list(b_entries)[index]))
    return [
        (name, b_name)
        for _, name, b_name in sorted(scored, key=lambda row: row[0], reverse=True)[:_MAX_NAMES_SHOWN]
    ]


def _distinct_names(names: dict[str, Entry]) -> dict[str, Entry]:
    """One representative of names that differ only in their numbers."""
    by_shape: dict[str, str] = {}
    for name in names:
        by_shape.setdefault(_NUMBERS.sub("*", name), name)
    return {name: names[name] for name in list(by_shape.values())[:_MAX_DISTINCT_NAMES]}


def _entry_similarity(a: Entry, b: Entry) -> float:
    """Score by the last name segment above all, the full name, its numbers, shape and kind."""
    parts = [entry.name.rpartition(".")[2] for entry in (a, b)]
    numbers = [_NUMBERS.findall(entry.name) for entry in (a, b)]
    name_score = 2 * _string_similarity(*parts) + _string_similarity(a.name, b.name)
    return name_score + (numbers[0] == numbers[1]) + (a.shape == b.shape) + 0.5 * (a.kind == b.kind)


def _string_similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_MAX_NAMES_SHOWN])) + more
