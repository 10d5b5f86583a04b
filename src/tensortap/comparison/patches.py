"""Two patches or the files of two programs side by side: which files differ, and in what."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Where = Literal["only in A", "only in B", "in both, not the same"]
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_NAME = re.compile(rb'^(?:\+\+\+|---) "?[ab]/(.*?)"?\t?$', re.MULTILINE)
_HEADER = re.compile(rb'"?a/.*? "?b/(.*?)"?$', re.MULTILINE)
_NEARBY = 2
_MOST_OF_ONE, _MOST_LINES = 3000, 15_000  # what is longer is not set side by side: that takes ever longer


@dataclass(frozen=True, slots=True)
class Change:
    """A file that the two do not have or change alike; `hunks` are the lines that tell how."""

    file: str
    where: Where
    added: int
    removed: int
    hunks: tuple[str, ...]


def changes(a: bytes, b: bytes) -> list[Change]:
    """Files that only one of them changes, or both differently."""
    one, other = _by_file(a), _by_file(b)
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return [_change(name, one.get(name), other.get(name)) for name in names]


def file_changes(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> list[Change]:
    """Files that only one program has, or both differently; of very many only the first are looked into."""
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    room = _MOST_LINES
    found = []
    for name in names:
        sides = _lines(a.get(name)), _lines(b.get(name))
        room -= max(map(len, sides))
        found.append(_file_change(name, a.get(name), b.get(name), room))
    return found


def _file_change(name: str, a: bytes | None, b: bytes | None, room: int) -> Change:
    where: Where = "only in A" if b is None else "only in B" if a is None else "in both, not the same"
    if any(b"\0" in side for side in (a, b) if side is not None):
        return Change(name, where, 0, 0, ("binary",))
    one, other = _lines(a), _lines(b)
    if a is not None and b is not None and _without_ends(one) == _without_ends(other):
        return Change(name, where, 0, 0, ("only the ends of lines differ",))
    if room < 0 or max(len(one), len(other)) > _MOST_OF_ONE:
        return Change(name, where, 0, 0, (f"{len(one):,} lines and {len(other):,}",))
    lines = list(difflib.unified_diff(one, other, n=_NEARBY, lineterm=""))[2:]
    return Change(name, where, *_counts(lines), tuple(lines))


def _lines(content: bytes | None) -> list[str]:
    """The last of a file that ends as it should is no line of its own."""
    text = (content or b"").decode(errors="backslashreplace")
    return text.removesuffix("\n").split("\n") if text else []


def _without_ends(lines: list[str]) -> list[str]:
    return [line.rstrip("\r") for line in lines]


def _by_file(patch: bytes) -> dict[str, bytes]:
    parts = _FILE.split(patch)[1:]
    return {_file_of(part): part for part in parts}


def _file_of(part: bytes) -> str:
    found = _NAME.findall(part) or _HEADER.findall(part.partition(b"\n")[0])
    return found[-1].decode(errors="backslashreplace") if found else "?"


def _change(name: str, a: bytes | None, b: bytes | None) -> Change:
    one, other = _body(a), _body(b)
    if b is None or a is None:
        where: Where = "only in A" if b is None else "only in B"
        return Change(name, where, *_counts(one or other), tuple(one or other))
    if max(len(one), len(other)) > _MOST_OF_ONE:
        return Change(name, "in both, not the same", *_counts(other), ("too many lines to set side by side",))
    between = difflib.unified_diff(one, other, "A", "B", n=_NEARBY, lineterm="")
    return Change(name, "in both, not the same", *_counts(other), tuple(between))


def _body(part: bytes | None) -> list[str]:
    """The hunks, without the lines before them; a binary change as one line."""
    if part is None:
        return []
    lines = part.decode(errors="backslashreplace").splitlines()
    if any(line.startswith("GIT binary patch") for line in lines):
        digest = hashlib.blake2b(part, digest_size=6).hexdigest()
        return [f"binary, {len(part):,} bytes of patch, {digest}"]
    start = next((at for at, line in enumerate(lines) if line.startswith("@@")), len(lines))
    return lines[start:] or lines[1:]


def _counts(lines: list[str]) -> tuple[int, int]:
    """Added and removed; what is before the first hunk is not there."""
    added = sum(line.startswith("+") for line in lines)
    return added, sum(line.startswith("-") for line in lines)
