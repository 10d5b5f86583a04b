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
_CONTEXT_LINES = 2
_MAX_FILE_LINES, _MAX_LINES = 3000, 15_000  # what is longer is not set side by side: that takes ever longer


@dataclass(frozen=True, slots=True)
class Change:
    """A file that the two do not have or change alike; `hunks` are the lines that tell how."""

    file: str
    where: Where
    added: int
    removed: int
    hunks: tuple[str, ...]


def diff_patches(a: bytes, b: bytes) -> list[Change]:
    """Files that only one of them changes, or both differently."""
    a_files, b_files = _split_by_file(a), _split_by_file(b)
    names = [name for name in dict.fromkeys([*a_files, *b_files]) if a_files.get(name) != b_files.get(name)]
    return [_diff_patched_file(name, a_files.get(name), b_files.get(name)) for name in names]


def diff_files(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> list[Change]:
    """Files that only one program has, or both differently; of very many only the first are looked into."""
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    remaining_lines = _MAX_LINES
    changes = []
    for name in names:
        sides = _split_lines(a.get(name)), _split_lines(b.get(name))
        remaining_lines -= max(map(len, sides))
        changes.append(_diff_file(name, a.get(name), b.get(name), remaining_lines))
    return changes


def _diff_file(name: str, a: bytes | None, b: bytes | None, remaining_lines: int) -> Change:
    where: Where = "only in A" if b is None else "only in B" if a is None else "in both, not the same"
    if any(b"\0" in side for side in (a, b) if side is not None):
        return Change(name, where, 0, 0, ("binary",))
    a_lines, b_lines = _split_lines(a), _split_lines(b)
    if a is not None and b is not None and _without_line_ends(a_lines) == _without_line_ends(b_lines):
        return Change(name, where, 0, 0, ("only the ends of lines differ",))
    if remaining_lines < 0 or max(len(a_lines), len(b_lines)) > _MAX_FILE_LINES:
        return Change(name, where, 0, 0, (f"{len(a_lines):,} lines and {len(b_lines):,}",))
    lines = list(difflib.unified_diff(a_lines, b_lines, n=_CONTEXT_LINES, lineterm=""))[2:]
    return Change(name, where, *_count_changed_lines(lines), tuple(lines))


def _split_lines(content: bytes | None) -> list[str]:
    """The last of a file that ends as it should is no line of its own."""
    text = (content or b"").decode(errors="backslashreplace")
    return text.removesuffix("\n").split("\n") if text else []


def _without_line_ends(lines: list[str]) -> list[str]:
    return [line.rstrip("\r") for line in lines]


def _split_by_file(patch: bytes) -> dict[str, bytes]:
    parts = _FILE.split(patch)[1:]
    return {_patched_file(part): part for part in parts}


def _patched_file(part: bytes) -> str:
    names = _NAME.findall(part) or _HEADER.findall(part.partition(b"\n")[0])
    return names[-1].decode(errors="backslashreplace") if names else "?"


def _diff_patched_file(name: str, a: bytes | None, b: bytes | None) -> Change:
    a_lines, b_lines = _hunk_lines(a), _hunk_lines(b)
    if b is None or a is None:
        where: Where = "only in A" if b is None else "only in B"
        return Change(name, where, *_count_changed_lines(a_lines or b_lines), tuple(a_lines or b_lines))
    if max(len(a_lines), len(b_lines)) > _MAX_FILE_LINES:
        return Change(
            name,
            "in both, not the same",
            *_count_changed_lines(b_lines),
            ("too many lines to set side by side",),
        )
    between = difflib.unified_diff(a_lines, b_lines, "A", "B", n=_CONTEXT_LINES, lineterm="")
    return Change(name, "in both, not the same", *_count_changed_lines(b_lines), tuple(between))


def _hunk_lines(part: bytes | None) -> list[str]:
    """The hunks, without the lines before them; a binary change as one line."""
    if part is None:
        return []
    lines = part.decode(errors="backslashreplace").splitlines()
    if any(line.startswith("GIT binary patch") for line in lines):
        digest = hashlib.blake2b(part, digest_size=6).hexdigest()
        return [f"binary, {len(part):,} bytes of patch, {digest}"]
    start = next((at for at, line in enumerate(lines) if line.startswith("@@")), len(lines))
    return lines[start:] or lines[1:]


def _count_changed_lines(lines: list[str]) -> tuple[int, int]:
    """Added and removed; what is before the first hunk is not there."""
    added = sum(line.startswith("+") for line in lines)
    return added, sum(line.startswith("-") for line in lines)
