"""Files of values that a run has lost: they are gone, or end before a value that the index lists."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def ends_of(cells: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Where the last value of each file ends."""
    found: dict[str, int] = {}
    for file, start, length in zip(cells["file"], cells["start"], cells["length"], strict=True):
        found[file] = max(found.get(file, 0), start + length)
    return found


def lost_files(path: Path, ends: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each; a file that leads out of the run is not looked for."""
    folders: dict[str, dict[str, int] | None] = {}
    for file, wanted in ends.items():
        folder, _, name = file.rpartition("/")
        if not name or os.path.isabs(file) or ".." in folder.split("/"):
            continue
        if folder not in folders:
            folders[folder] = _lengths(os.path.join(path, folder))
        lengths = folders[folder]
        there = -1 if lengths is None else lengths.get(name, -1)
        if there < wanted:
            yield f"{file} {_told(there, wanted, may_be_read=lengths is not None)}"


def _told(there: int, wanted: int, *, may_be_read: bool) -> str:
    if not may_be_read:
        return "may not be read"
    return "is gone" if there < 0 else f"ends at byte {there:,} of {wanted:,}"


def _lengths(folder: str) -> dict[str, int] | None:
    """Of all files at once: a look at each by itself takes longer than a list of short runs may. None where
    the folder may not be read."""
    try:
        with os.scandir(folder) as entries:
            return dict(filter(None, map(_length, entries)))
    except PermissionError:
        return None
    except OSError:
        return {}


def _length(entry: os.DirEntry[str]) -> tuple[str, int] | None:
    try:
        return entry.name, entry.stat().st_size
    except OSError:
        return None
