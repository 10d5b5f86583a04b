"""What a session may request of a job: validated against a closed list, so that no code can come in.

Slices such as `[0, :3]` have their own parser for the same reason.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Literal, NamedTuple, get_args

from tensortap.core.errors import RefusedError
from tensortap.core.patterns import parse_pattern
from tensortap.live.conditions_language import Condition, parse_condition
from tensortap.sources.function_names import split_function_path

Then = Literal["tell", "send", "dump"]
_MAX_PATTERNS, _MAX_PATTERN_LENGTH = 64, 500
_MAX_COUNT = 1 << 40


@dataclass(frozen=True)
class Request:
    """A requested tap. Equal requests of several sessions share one tap."""

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


def parse_request(meta: dict[str, Any]) -> Request:
    """The request in a frame's meta; raises for anything outside of the closed list."""
    keep, then = _check_str(meta, "keep"), meta.get("then", "tell")
    if keep.startswith("["):
        parse_slice(keep)
    elif keep not in ("", "stats"):
        raise ValueError(f"keep is {keep[:80]!r}; give 'stats' or a slice such as '[0, :3]'")
    if then not in get_args(Then):
        raise ValueError(f"then is {str(then)[:80]!r}; give {', '.join(map(repr, get_args(Then)))}")
    condition = _check_str(meta, "condition")
    patterns = parse_condition(condition).patterns if condition else _check_patterns(meta.get("patterns"))
    for pattern in patterns:
        refuse_import(pattern)
    return Request(patterns, keep, parse_count(meta, "every", 1) or 1, condition, then)


def parse_count(meta: dict[str, Any], key: str, default: int | None) -> int | None:
    number = meta.get(key, default)
    if number is None:
        return None
    if type(number) is not int or not 1 <= number <= _MAX_COUNT:
        raise ValueError(f"{key} is {str(number)[:80]}; give a whole number from 1 on")
    return number


def refuse_import(pattern: str) -> None:
    """Refuse functions of modules that the job has not imported, because importing one runs its code."""
    for alternative in parse_pattern(pattern).alternatives:
        path = split_function_path(alternative)
        if path is not None and path[0] not in sys.modules:
            raise RefusedError(
                f"{pattern!r} is of the Python module {path[0]!r}, which the job has not imported; "
                "a session can look, it cannot make the job import"
            )


def _check_patterns(patterns: Any) -> tuple[str, ...]:
    is_sound = type(patterns) is list and 0 < len(patterns) <= _MAX_PATTERNS
    if not is_sound or not all(
        type(pattern) is str and 0 < len(pattern) <= _MAX_PATTERN_LENGTH for pattern in patterns
    ):
        raise ValueError(f"patterns are 1 to {_MAX_PATTERNS} texts of at most {_MAX_PATTERN_LENGTH} letters")
    return tuple(patterns)


def _check_str(meta: dict[str, Any], key: str) -> str:
    text = meta.get(key) or ""
    if type(text) is not str or len(text) > 1000:
        raise ValueError(f"{key} is a text of at most 1000 letters")
    return text


Index = int | slice | EllipsisType | None
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_MAX_PARTS = 32


def parse_slice(text: str) -> tuple[Index, ...]:
    """The index tuple that Python would use for these brackets."""
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]")):
        raise _slice_error(text)
    parts = [part.strip() for part in body[1:-1].split(",")]
    if len(parts) > 1 and not parts[-1]:  # a trailing comma
        parts.pop()
    if len(parts) > _MAX_PARTS or parts.count("...") > 1:
        raise _slice_error(text)
    return tuple(_parse_part(part, text) for part in parts)


def _parse_part(part: str, text: str) -> Index:
    if part == "...":
        return ...
    if part == "None":
        return None
    if ":" not in part:
        return _parse_int(part, text)
    bounds = [bound.strip() for bound in part.split(":")]
    if len(bounds) > 3:
        raise _slice_error(text)
    numbers = [_parse_int(bound, text) if bound else None for bound in bounds]
    if len(numbers) == 3 and (numbers[2] or 1) < 1:
        raise ValueError(f"the slice {text!r} goes backwards, or nowhere; a step is 1 or more")
    return slice(*numbers)


def _parse_int(part: str, text: str) -> int:
    if not _NUMBER.fullmatch(part):
        raise _slice_error(text)
    return int(part)


def _slice_error(text: str) -> ValueError:
    return ValueError(f"{text[:80]!r} is no slice; write numbers, colons and '...' such as '[0, :3]'")


class CatalogEntry(NamedTuple):
    """A site in the catalog, with its dtype and shape where they are known."""

    name: str
    kind: str
    module_class: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
