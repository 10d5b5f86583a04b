"""A slice as text, `[0, :3]`: read by us, so that nothing else can be in it."""

from __future__ import annotations

import re
from types import EllipsisType

Index = int | slice | EllipsisType | None
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_MOST_PARTS = 32


def parse_slice(text: str) -> tuple[Index, ...]:
    """What stands between the brackets, as Python would index with it."""
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]")):
        raise _wrong(text)
    parts = [part.strip() for part in body[1:-1].split(",")]
    if len(parts) > 1 and not parts[-1]:  # a trailing comma
        parts.pop()
    if len(parts) > _MOST_PARTS or parts.count("...") > 1:
        raise _wrong(text)
    return tuple(_part(part, text) for part in parts)


def _part(part: str, text: str) -> Index:
    if part == "...":
        return ...
    if part == "None":
        return None
    if ":" not in part:
        return _number(part, text)
    bounds = [one.strip() for one in part.split(":")]
    if len(bounds) > 3:
        raise _wrong(text)
    numbers = [_number(one, text) if one else None for one in bounds]
    if len(numbers) == 3 and (numbers[2] or 1) < 1:
        raise ValueError(f"the slice {text!r} goes backwards, or nowhere; a step is 1 or more")
    return slice(*numbers)


def _number(part: str, text: str) -> int:
    if not _NUMBER.fullmatch(part):
        raise _wrong(text)
    return int(part)


def _wrong(text: str) -> ValueError:
    return ValueError(f"{text[:80]!r} is no slice; write numbers, colons and '...' such as '[0, :3]'")
