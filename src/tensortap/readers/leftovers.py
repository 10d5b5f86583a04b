"""What nobody needs any more in folders of runs: drafts of dead writers, caches, old launches, empty runs."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensortap.formats.index import index_files
from tensortap.formats.run_layout import CACHE, LAUNCHES, OWN, PACKS

Kind = Literal["draft", "cache", "launch", "empty run", "socket"]
KINDS: tuple[Kind, ...] = ("draft", "cache", "launch", "empty run", "socket")
_DRAFTS = (
    re.compile(r"(\d+)-\d+-\d+\.tmp"),  # of a value
    re.compile(r"\..+\.(\d+)-\d+\.tmp"),  # of metadata
    re.compile(r"model\.(\d+)\.tmp"),
    re.compile(r"columns\.(\d+)\.npz"),  # of the cache
)
_JUST_NOW = 60.0  # seconds: what was touched since may belong to a writer on another machine
_OLD_LAUNCH = 3600.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that may go, as it was when it was seen; `mark` tells whether it is still the same."""

    kind: Kind
    path: Path
    nbytes: int
    modified: float
    mark: tuple[int, int]

    def remove(self) -> bool:
        """Delete it, unless it has changed or is gone; whether it was deleted."""
        again = leftover(self.kind, self.path)
        if again is None or again.mark != self.mark:
            return False
        if self.kind == "empty run" and not _is_empty(self.path):
            return False
        try:
            _remove_folder(self.path) if self.kind == "empty run" else os.unlink(self.path)
        except OSError:
            return False
        return True


def leftover(kind: Kind, path: Path) -> Leftover | None:
    """A file or an empty run; never a link."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return None
    nbytes = sum(one.st_size for one in _contents(path)) if stat.S_ISDIR(found.st_mode) else found.st_size
    return Leftover(kind, path, nbytes, found.st_mtime, (found.st_ino, found.st_mtime_ns))


def leftovers_of_run(run: Path, being_written: Iterable[Path] = ()) -> Iterator[Leftover]:
    """Of a run that nobody writes: one that is written, or was a moment ago, has none."""
    own = run / OWN
    if run.resolve() in set(being_written) or own.is_symlink() or _was_touched(own):
        return
    if _is_empty(run):
        yield from _known("empty run", [run])
        return
    yield from _known("draft", [path for folder in (run, own) for path in _drafts(folder)])
    if not (own / CACHE).is_symlink():
        yield from _known("draft", _drafts(own / CACHE))
        yield from _known("cache", [path for path in _files(own / CACHE) if _writer(path.name) is None])


def leftovers_beside(folder: Path) -> Iterator[Leftover]:
    """Where the ranks of launches met, long after they have."""
    meeting = folder / LAUNCHES
    if meeting.is_dir() and not meeting.is_symlink():
        old = time.time() - _OLD_LAUNCH
        yield from (one for one in _known("launch", _files(meeting)) if one.modified < old)


def _known(kind: Kind, paths: Iterable[Path]) -> Iterator[Leftover]:
    yield from filter(None, (leftover(kind, path) for path in paths))


def _drafts(folder: Path) -> list[Path]:
    """Whose writer has ended; a number that now is another process's keeps the file for another day."""
    return [path for path in _files(folder) if _is_dead(_writer(path.name)) and not _is_recent(path)]


def _writer(name: str) -> int | None:
    found = filter(None, (pattern.fullmatch(name) for pattern in _DRAFTS))
    return next((int(match[1]) for match in found), None)


def _is_dead(process: int | None) -> bool:
    if process is None:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _is_empty(run: Path) -> bool:
    """Nothing but our own folder, and in it no record and no fact."""
    if [entry.name for entry in _entries(run)] != [OWN]:
        return False
    own = run / OWN
    known = {index.name for index in index_files(own)} | {CACHE, PACKS}
    if any(entry.name not in known or entry.is_symlink() for entry in _entries(own)):
        return False
    has_rows = any(index.read_bytes().count(b"\n") > 1 for index in index_files(own))
    return not has_rows and not _entries(own / PACKS)


def _was_touched(own: Path) -> bool:
    return any(_is_recent(path) for path in (own, *index_files(own), *(own / PACKS).glob("*.npz")))


def _is_recent(path: Path) -> bool:
    try:
        return path.lstat().st_mtime > time.time() - _JUST_NOW
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if entry.is_file(follow_symlinks=False)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _contents(folder: Path) -> list[os.stat_result]:
    return [entry.stat() for entry in _below(folder) if entry.is_file(follow_symlinks=False)]


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    for entry in _entries(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path))


def _remove_folder(run: Path) -> None:
    """From the inside out; a folder that has got something new since cannot be removed, and stays."""
    for entry in reversed(list(_below(run))):
        os.rmdir(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    os.rmdir(run)
