"""A slice as text, `[0, :3]`: read by us, so that nothing else can be in it."""

from __future__ import annotations

import re
from types import EllipsisType

Index = int | slice | EllipsisType | None
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_MAX_PARTS = 32


def parse_slice(text: str) -> tuple[Index, ...]:
    """What stands between the brackets, as Python would index with it."""
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
