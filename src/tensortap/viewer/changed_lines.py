"""Which lines of code one run has otherwise than the other, as far as the two runs keep their code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tensortap.comparison.sides.provenance import Change

_HUNK_HEADER = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class ChangedBlock(NamedTuple):
    """Lines that follow each other, by their numbers in the file as the program ran it; `text` is what was
    taken and added. Where lines were only taken away, it is the line they stood after."""

    file: str
    first: int
    last: int
    text: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


def blocks_only_in(patch: bytes, other_patch: bytes) -> list[ChangedBlock]:
    """What one patch changes, and the other does not change alike."""
    known = {(block.file, block.text) for block in _parse_patch(other_patch)}
    return [block for block in _parse_patch(patch) if (block.file, block.text) not in known]


def blocks_of_changes(changes: Iterable[Change], *, is_new: bool) -> list[ChangedBlock]:
    """Of files that were set side by side: as they are in B, or else as they were in A."""
    side = "+" if is_new else "-"
    with_hunks = [change for change in changes if change.hunks and change.hunks[0].startswith("@@")]
    return [block for change in with_hunks for block in _parse_hunks(change.file, change.hunks, side)]


def _parse_patch(patch: bytes) -> list[ChangedBlock]:
    blocks: list[ChangedBlock] = []
    file, lines = "", list[str]()
    for line in [*patch.decode("utf-8", "replace").splitlines(), "diff --git "]:
        if line.startswith("diff --git "):
            blocks += _parse_hunks(file, lines, "+") if file else []
            file, lines = "", []
        elif line.startswith("+++ ") and not lines:
            file = _file_name(line)
        elif line.startswith("@@") or lines:
            lines.append(line)
    return blocks


def _file_name(line: str) -> str:
    name = line[4:].partition("\t")[0].strip('"')
    return "" if name == "/dev/null" else name.removeprefix("b/")


def _parse_hunks(file: str, lines: Iterable[str], side: str) -> Iterator[ChangedBlock]:
    """Runs of changed lines; what stands around them is not changed."""
    at, first, text = 0, 0, list[str]()
    for line in [*lines, "@@"]:
        if line[:1] in ("+", "-"):
            first = first if text else at
            text.append(line)
            at += line[0] == side
            continue
        if text:
            yield ChangedBlock(file, min(first, max(at - 1, 1)), max(at - 1, 1), tuple(text))
            text = []
        header = _HUNK_HEADER.match(line)
        if header:
            at = int(header[2 if side == "+" else 1])
        else:
            at += not line.startswith("\\")
