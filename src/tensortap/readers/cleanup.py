"""Garbage in folders of runs: temporary files of dead writers, caches, old launches, empty runs."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensortap.core.filesystem import scan_folder
from tensortap.formats.index import index_files
from tensortap.formats.run_layout import CACHE_FOLDER, INTERNAL_FOLDER, LAUNCHES_FOLDER, PACKS_FOLDER

GarbageKind = Literal["draft", "cache", "launch", "empty run", "socket"]
GARBAGE_KINDS: tuple[GarbageKind, ...] = ("draft", "cache", "launch", "empty run", "socket")
_DRAFT_NAMES = (
    re.compile(r"(\d+)-\d+-\d+\.tmp"),  # of a value
    re.compile(r"\..+\.(\d+)-\d+\.tmp"),  # of metadata
    re.compile(r"model\.(\d+)\.tmp"),
    re.compile(r"columns\.(\d+)\.npz"),  # of the cache
)
_RECENT = 60.0  # seconds: what was modified since may belong to a writer on another machine
_OLD_LAUNCH = 3600.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file or an empty run that may be deleted; `change_token` tells whether it is still the same."""

    kind: GarbageKind
    path: Path
    nbytes: int
    modified: float
    change_token: tuple[int, int]

    def remove(self) -> bool:
        """Delete it unless it has changed or is gone; return whether it was deleted."""
        current = garbage_at(self.kind, self.path)
        if current is None or current.change_token != self.change_token:
            return False
        if self.kind == "empty run" and not _is_empty(self.path):
            return False
        try:
            _remove_folder(self.path) if self.kind == "empty run" else os.unlink(self.path)
        except OSError:
            return False
        return True


def garbage_at(kind: GarbageKind, path: Path) -> Garbage | None:
    """The file or empty run at that path as garbage; None if it is gone or a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return None
    nbytes = (
        sum(file_status.st_size for file_status in _stat_files_below(path))
        if stat.S_ISDIR(status.st_mode)
        else status.st_size
    )
    return Garbage(kind, path, nbytes, status.st_mtime, (status.st_ino, status.st_mtime_ns))


def find_garbage_in_run(run: Path, being_written: Iterable[Path] = ()) -> Iterator[Garbage]:
    """Garbage of a run; a run that is or was recently written has none."""
    own = run / INTERNAL_FOLDER
    if run.resolve() in set(being_written) or own.is_symlink() or _was_written_recently(own):
        return
    if _is_empty(run):
        yield from _existing("empty run", [run])
        return
    yield from _existing("draft", [path for folder in (run, own) for path in _drafts(folder)])
    if not (own / CACHE_FOLDER).is_symlink():
        yield from _existing("draft", _drafts(own / CACHE_FOLDER))
        yield from _existing(
            "cache", [path for path in _files(own / CACHE_FOLDER) if _writer_pid(path.name) is None]
        )


def find_old_launches(folder: Path) -> Iterator[Garbage]:
    """Rendezvous files of launches that started long ago."""
    launches = folder / LAUNCHES_FOLDER
    if launches.is_dir() and not launches.is_symlink():
        oldest_kept = time.time() - _OLD_LAUNCH
        yield from (
            garbage for garbage in _existing("launch", _files(launches)) if garbage.modified < oldest_kept
        )


def _existing(kind: GarbageKind, paths: Iterable[Path]) -> Iterator[Garbage]:
    yield from filter(None, (garbage_at(kind, path) for path in paths))


def _drafts(folder: Path) -> list[Path]:
    """Temporary files whose writer has exited; a reused pid keeps the file for now."""
    return [path for path in _files(folder) if _has_exited(_writer_pid(path.name)) and not _is_recent(path)]


def _writer_pid(name: str) -> int | None:
    matches = filter(None, (pattern.fullmatch(name) for pattern in _DRAFT_NAMES))
    return next((int(match[1]) for match in matches), None)


def _has_exited(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _is_empty(run: Path) -> bool:
    """Whether the run holds nothing but our own folder, without records and metadata."""
    if [entry.name for entry in scan_folder(run)] != [INTERNAL_FOLDER]:
        return False
    own = run / INTERNAL_FOLDER
    expected = {index.name for index in index_files(own)} | {CACHE_FOLDER, PACKS_FOLDER}
    if any(entry.name not in expected or entry.is_symlink() for entry in scan_folder(own)):
        return False
    has_rows = any(index.read_bytes().count(b"\n") > 1 for index in index_files(own))
    return not has_rows and not scan_folder(own / PACKS_FOLDER)


def _was_written_recently(own: Path) -> bool:
    return any(_is_recent(path) for path in (own, *index_files(own), *(own / PACKS_FOLDER).glob("*.npz")))


def _is_recent(path: Path) -> bool:
    try:
        return path.lstat().st_mtime > time.time() - _RECENT
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in scan_folder(folder) if entry.is_file(follow_symlinks=False)]


def _stat_files_below(folder: Path) -> list[os.stat_result]:
    return [entry.stat() for entry in _walk(folder) if entry.is_file(follow_symlinks=False)]


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    for entry in scan_folder(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _remove_folder(run: Path) -> None:
    """Delete depth-first; a folder that has gained a file since cannot be removed, and stays."""
    for entry in reversed(list(_walk(run))):
        os.rmdir(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    os.rmdir(run)
