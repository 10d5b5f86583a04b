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
    mine, others = _first_by_name(a), _first_by_name(b)
    if not mine or not others:
        return []
    common = [name for name in mine if name in others]
    if common:
        are = "is" if len(common) == 1 else "are"
        told = f"no value has a partner, although {_list_names(common)} {are} on both sides"
        return [f"{told}: the map, the step, the rank or the call tells them apart"]
    told = f"no name is on both sides: A has {_list_names(list(mine))}, B has {_list_names(list(others))}"
    if are_guessed:
        return [told]
    near = _nearest_names(mine, others)
    nearby = f"nearest is {near[0][0]!r} to {near[0][1]!r}"
    return [f"{told}; {nearby}. A map says what belongs together, such as\n{suggest_rules(near)}"]


def _first_by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Every name once, with the first value of it."""
    found: dict[str, Entry] = {}
    for entry in entries:
        found.setdefault(entry.name, entry)
    return found


def _nearest_names(a: dict[str, Entry], b: dict[str, Entry]) -> list[tuple[str, str]]:
    """Of each sort of name in A the nearest in B, the nearest of all first; there always is one."""
    found = []
    others = _distinct_names(b)
    for name, entry in _distinct_names(a).items():
        likeness, other = max(
            (_entry_similarity(entry, one), place) for place, one in enumerate(others.values())
        )
        found.append((likeness, name, list(others)[other]))
    return [
        (name, other)
        for _, name, other in sorted(found, key=lambda one: one[0], reverse=True)[:_MAX_NAMES_SHOWN]
    ]


def _distinct_names(names: dict[str, Entry]) -> dict[str, Entry]:
    """One name of those that differ in their numbers alone."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(_NUMBERS.sub("*", name), name)
    return {name: names[name] for name in list(found.values())[:_MAX_DISTINCT_NAMES]}


def _entry_similarity(one: Entry, other: Entry) -> float:
    """By the last part of the name above all, its whole, its numbers, and what it holds."""
    parts = [entry.name.rpartition(".")[2] for entry in (one, other)]
    numbers = [_NUMBERS.findall(entry.name) for entry in (one, other)]
    told = 2 * _string_similarity(*parts) + _string_similarity(one.name, other.name)
    return told + (numbers[0] == numbers[1]) + (one.shape == other.shape) + 0.5 * (one.kind == other.kind)


def _string_similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_MAX_NAMES_SHOWN])) + more
