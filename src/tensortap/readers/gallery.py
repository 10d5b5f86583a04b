"""The runs below folders: found without following links, within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tensortap.core.errors import NoRunError
from tensortap.formats.run_layout import OWN

MOST_FOLDERS = 20_000
DEEPEST = 8
_NEVER = {"node_modules", "site-packages", "__pycache__"}


class Gallery:
    """Walks folders for runs; `problems` tells what was not looked at, and why.

    >>> for path in Gallery(["runs"]): Run(path)
    """

    def __init__(self, folders: list[str | os.PathLike[str]]) -> None:
        self._folders = [_existing(Path(folder)) for folder in folders]
        self.problems: list[str] = []
        self._looked_at = 0

    def __iter__(self) -> Iterator[Path]:
        seen: set[tuple[int, int]] = set()
        for folder in self._folders:
            for run in self._below(folder, 0):
                found = run.stat()
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    yield run

    def _below(self, folder: Path, depth: int) -> Iterator[Path]:
        if os.path.isdir(folder / OWN):  # Path's would raise where the folder may not be looked into
            yield folder
            return
        if self._looked_at >= MOST_FOLDERS:
            if self._looked_at == MOST_FOLDERS:
                self.problems.append(
                    f"more than {MOST_FOLDERS:,} folders: {folder} and later were not looked at"
                )
            self._looked_at += 1
            return
        self._looked_at += 1
        for inside in self._folders_in(folder):
            if depth < DEEPEST:
                yield from self._below(inside, depth + 1)
            else:
                self.problems.append(f"{inside} lies deeper than {DEEPEST} folders and was not looked at")

    def _folders_in(self, folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            self.problems.append(f"{folder} cannot be looked at: {(error.strerror or str(error)).lower()}")
            return []
        return [folder / name for name in sorted(names) if not name.startswith(".") and name not in _NEVER]


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoRunError(f"{folder} {what}; give a run, or a folder that holds runs")
    return folder
