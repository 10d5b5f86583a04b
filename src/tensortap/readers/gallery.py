"""Find the runs below folders, without following links and within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tensortap.core.errors import NoRunError
from tensortap.formats.run_layout import INTERNAL_FOLDER

MAX_FOLDERS = 20_000
MAX_DEPTH = 8
_SKIPPED_FOLDERS = {"node_modules", "site-packages", "__pycache__"}


class RunFinder:
    """Iterates over the runs below folders; `problems` lists what was skipped, and why.

    >>> for path in Gallery(["runs"]): Run(path)
    """

    def __init__(self, folders: list[str | os.PathLike[str]]) -> None:
        self._folders = [_check_folder(Path(folder)) for folder in folders]
        self.problems: list[str] = []
        self._visited = 0

    def __iter__(self) -> Iterator[Path]:
        seen: set[tuple[int, int]] = set()
        for folder in self._folders:
            for run in self._walk(folder, 0):
                status = run.stat()
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield run

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        if os.path.isdir(
            folder / INTERNAL_FOLDER
        ):  # Path.is_dir raises without permission to list the folder
            yield folder
            return
        if self._visited >= MAX_FOLDERS:
            if self._visited == MAX_FOLDERS:
                self.problems.append(
                    f"more than {MAX_FOLDERS:,} folders: {folder} and later were not looked at"
                )
            self._visited += 1
            return
        self._visited += 1
        for subfolder in self._subfolders(folder):
            if depth < MAX_DEPTH:
                yield from self._walk(subfolder, depth + 1)
            else:
                self.problems.append(
                    f"{subfolder} lies deeper than {MAX_DEPTH} folders and was not looked at"
                )

    def _subfolders(self, folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            self.problems.append(f"{folder} cannot be looked at: {(error.strerror or str(error)).lower()}")
            return []
        return [
            folder / name
            for name in sorted(names)
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS
        ]


def _check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoRunError(f"{folder} {problem}; give a run, or a folder that holds runs")
    return folder
