"""Two sides without a pair by name: what is nearest to what, and the rules to begin with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from tensortap.comparison.entries import Entry
from tensortap.comparison.likeness import suggest_rules

_MAX_NAMES_SHOWN = 3
_MAX_DISTINCT_NAMES = 100  # names of a side that differ in more than their numbers
_NUMBERS = re.compile(r"\d+")


def unmatched_hints(a: Sequence[Entry], b: Sequence[Entry], *, are_guessed: bool) -> list[str]:
    """What is said of sides that share no name; with `are_guessed` there are rules already."""
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
    """Every name once, with the first value of it."""
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    return first


def _nearest_names(a: dict[str, Entry], b: dict[str, Entry]) -> list[tuple[str, str]]:
    """Of each sort of name in A the nearest in B, the nearest of all first; there always is one."""
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
    """One name of those that differ in their numbers alone."""
    by_shape: dict[str, str] = {}
    for name in names:
        by_shape.setdefault(_NUMBERS.sub("*", name), name)
    return {name: names[name] for name in list(by_shape.values())[:_MAX_DISTINCT_NAMES]}


def _entry_similarity(a: Entry, b: Entry) -> float:
    """By the last part of the name above all, its whole, its numbers, and what it holds."""
    parts = [entry.name.rpartition(".")[2] for entry in (a, b)]
    numbers = [_NUMBERS.findall(entry.name) for entry in (a, b)]
    name_score = 2 * _string_similarity(*parts) + _string_similarity(a.name, b.name)
    return name_score + (numbers[0] == numbers[1]) + (a.shape == b.shape) + 0.5 * (a.kind == b.kind)


def _string_similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_MAX_NAMES_SHOWN])) + more
