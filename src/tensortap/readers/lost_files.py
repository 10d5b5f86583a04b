"""Value files that a run has lost: they are missing, or end before a value that the index lists."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def file_ends_from_cells(cells: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The byte where the last value of each file ends."""
    ends: dict[str, int] = {}
    for file, start, length in zip(cells["file"], cells["start"], cells["length"], strict=True):
        ends[file] = max(ends.get(file, 0), start + length)
    return ends


def describe_lost_files(path: Path, ends: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each lost file; paths that lead out of the run are ignored."""
    lengths_by_folder: dict[str, dict[str, int] | None] = {}
    for file, expected in ends.items():
        folder, _, name = file.rpartition("/")
        if not name or os.path.isabs(file) or ".." in folder.split("/"):
            continue
        if folder not in lengths_by_folder:
            lengths_by_folder[folder] = _file_lengths(os.path.join(path, folder))
        lengths = lengths_by_folder[folder]
        actual = -1 if lengths is None else lengths.get(name, -1)
        if actual < expected:
            yield f"{file} {_describe_loss(actual, expected, is_readable=lengths is not None)}"


def _describe_loss(actual: int, expected: int, *, is_readable: bool) -> str:
    if not is_readable:
        return "may not be read"
    return "is gone" if actual < 0 else f"ends at byte {actual:,} of {expected:,}"


def _file_lengths(folder: str) -> dict[str, int] | None:
    """The length of each file, from one scandir: opening each is too slow for a list of short runs. None if
    the folder is not readable."""
    try:
        with os.scandir(folder) as entries:
            return dict(filter(None, map(_entry_length, entries)))
    except PermissionError:
        return None
    except OSError:
        return {}


def _entry_length(entry: os.DirEntry[str]) -> tuple[str, int] | None:
    try:
        return entry.name, entry.stat().st_size
    except OSError:
        return None
