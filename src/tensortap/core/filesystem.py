"""The file system: replace a file as a whole, list a folder that may be gone, find the working directory."""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident


def replace_file(path: Path, content: bytes) -> None:
    """Write a draft, then rename it: readers see the old file or the new one, never part of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.tmp")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Its entries by name; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def working_directory() -> str:
    """The current folder; empty if it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""
