"""Names and the paths that select them: dotted parts, `*` for one part, `**` for any number."""

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

_DIGITS = re.compile(r"(\d+)")
_TOKEN = re.compile(r"\*\*|\*|\{[^{}]*\}")


def sort_key(name: str) -> list[tuple[int, int, str]]:
    """Numbers inside names sort as numbers: `layers.2` before `layers.10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part]


@lru_cache(maxsize=256)
def regex(path: str) -> str:
    """The path as a regular expression that never reaches across a line break."""
    parts, at = [], 0
    for token in _TOKEN.finditer(path):
        parts += [re.escape(path[at : token.start()]), _token_regex(token.group())]
        at = token.end()
    return "".join([*parts, re.escape(path[at:])])


def matches(path: str, name: str) -> bool:
    return re.fullmatch(regex(path), name) is not None


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look most like this one, for a message that helps."""
    return difflib.get_close_matches(name, list(known), count, cutoff=0.5)


def _token_regex(token: str) -> str:
    if token == "**":
        return r"[^\n]*"
    if token == "*":
        return r"[^.\n]*"
    return "(?:" + "|".join(regex(choice) for choice in token[1:-1].split(",")) + ")"
