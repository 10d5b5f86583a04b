"""What a session may ask of a job, checked word by word: a closed list, from which no code can come."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tensortap.core.errors import RefusedError
from tensortap.core.paths import parse_pattern
from tensortap.live.expressions import Condition, parse_condition
from tensortap.live.slices import Index, parse_slice
from tensortap.sources.named_functions import split

Then = Literal["tell", "send", "dump"]
_MOST_PATTERNS, _LONGEST_PATTERN = 64, 500
_MOST_EVERY = 1 << 40


@dataclass(frozen=True)
class Request:
    """A tap as it was asked for. Equal ones are one, however many sessions have them."""

    patterns: tuple[str, ...]
    keep: str = ""  # "", "stats", or a slice
    every: int = 1
    condition: str = ""
    then: Then = "tell"

    @property
    def index(self) -> tuple[Index, ...] | None:
        return parse_slice(self.keep) if self.keep.startswith("[") else None

    @property
    def parsed_condition(self) -> Condition:
        return parse_condition(self.condition)


def request_of(meta: dict[str, Any]) -> Request:
    """The request in a frame's meta; anything that is not on the list is refused."""
    keep, then = _text(meta, "keep"), meta.get("then", "tell")
    if keep.startswith("["):
        parse_slice(keep)
    elif keep not in ("", "stats"):
        raise ValueError(f"keep is {keep[:80]!r}; give 'stats' or a slice such as '[0, :3]'")
    if then not in get_args(Then):
        raise ValueError(f"then is {str(then)[:80]!r}; give {', '.join(map(repr, get_args(Then)))}")
    condition = _text(meta, "condition")
    patterns = parse_condition(condition).patterns if condition else _patterns(meta.get("patterns"))
    for pattern in patterns:
        refuse_import(pattern)
    return Request(patterns, keep, count_of(meta, "every", 1) or 1, condition, then)


def count_of(meta: dict[str, Any], key: str, default: int | None) -> int | None:
    number = meta.get(key, default)
    if number is None:
        return None
    if type(number) is not int or not 1 <= number <= _MOST_EVERY:
        raise ValueError(f"{key} is {str(number)[:80]}; give a whole number from 1 on")
    return number


def refuse_import(pattern: str) -> None:
    """A function of a module that the program has not imported: importing it would run its code."""
    for way in parse_pattern(pattern).alternatives:
        found = split(way)
        if found is not None and found[0] not in sys.modules:
            raise RefusedError(
                f"{pattern!r} is of the Python module {found[0]!r}, which the job has not imported; "
                "a session can look, it cannot make the job import"
            )


def _patterns(given: Any) -> tuple[str, ...]:
    is_sound = type(given) is list and 0 < len(given) <= _MOST_PATTERNS
    if not is_sound or not all(type(one) is str and 0 < len(one) <= _LONGEST_PATTERN for one in given):
        raise ValueError(f"patterns are 1 to {_MOST_PATTERNS} texts of at most {_LONGEST_PATTERN} letters")
    return tuple(given)


def _text(meta: dict[str, Any], key: str) -> str:
    text = meta.get(key) or ""
    if type(text) is not str or len(text) > 1000:
        raise ValueError(f"{key} is a text of at most 1000 letters")
    return text
