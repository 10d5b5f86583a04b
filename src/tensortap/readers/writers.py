"""Runs with an active writer on this machine, from the open files in /proc."""

from __future__ import annotations

import os
from pathlib import Path

from tensortap.formats.run_layout import INTERNAL_FOLDER

_INDEX = f"/{INTERNAL_FOLDER}/index-"


def runs_being_written() -> set[Path]:
    """Run folders whose index a process holds open; processes of other users and machines are not visible."""
    return {Path(file.rpartition(_INDEX)[0]) for file in _open_files() if _INDEX in file}


def _open_files() -> set[str]:
    paths: set[str] = set()
    for pid in _list_folder("/proc"):
        if pid.isdigit():
            descriptors = f"/proc/{pid}/fd"
            paths.update(_read_link(f"{descriptors}/{number}") for number in _list_folder(descriptors))
    return paths


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # another user's, one that has just ended, or a system without /proc
        return []


def _read_link(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
