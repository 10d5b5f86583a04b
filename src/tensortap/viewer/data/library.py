"""The runs below the given folders, addressed by opaque ids, never by path."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tensortap.core.errors import NoRunError, TensortapError
from tensortap.readers.listing import RunFinder, RunSummary
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.data.dataset import TRACE_SUFFIXES
from tensortap.viewer.web.responses import DAMAGED_FILE_ERRORS, NotFoundError

_MAX_DEPTH = 4  # levels of folders below a root
_MAX_OPEN_RUNS = 16  # runs whose index stays in memory
_MIN_PREFIX = 4


class ListedRun(NamedTuple):
    """What is kept of a run for the list; `health` is None until it was computed."""

    summary: RunSummary
    health: dict[str, Any] | None = None


class RunLibrary:
    """Only runs below a root can be opened."""

    def __init__(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        self.roots = [_check_root(Path(root)) for root in roots]
        self._finder = RunFinder(self.roots, suffixes=TRACE_SUFFIXES, max_depth=_MAX_DEPTH)
        self._paths: dict[str, Path] = {}
        self._open_runs: OrderedDict[str, CachedRun] = OrderedDict()
        self.listed_runs: dict[str, ListedRun] = {}  # by run_id
        self._lock = threading.RLock()
        self.rescan()

    def rescan(self) -> bool:
        """Scan the roots for runs; returns whether any appeared or disappeared."""
        paths = {id_of_path(path): path for path in self._finder}
        with self._lock:
            has_changed = paths.keys() != self._paths.keys()
            self._paths = paths
        return has_changed

    @property
    def run_ids(self) -> list[str]:
        """Full ids, newest run last."""
        return sorted(self._paths, key=lambda run_id: (self._paths[run_id].name, str(self._paths[run_id])))

    def path(self, prefix: str) -> Path:
        return self._paths[self.resolve_id(prefix)]

    def resolve_id(self, prefix: str) -> str:
        run_id = match_prefix(prefix, self._paths)
        if run_id is None:
            raise NotFoundError(f"no run {prefix!r}; there are {len(self._paths)}, and / lists them")
        return run_id

    def short_id(self, run_id: str) -> str:
        return shortest_prefix(run_id, self._paths)

    def open_run(self, prefix: str) -> CachedRun:
        """The run, opened at first use and again when it was replaced."""
        run_id = self.resolve_id(prefix)
        with self._lock:
            run = self._open_runs.get(run_id)
            if run is None or run.is_replaced:
                run = self._open_runs[run_id] = CachedRun(self._paths[run_id], run_id)
                while len(self._open_runs) > _MAX_OPEN_RUNS:
                    self._open_runs.popitem(last=False)
            self._open_runs.move_to_end(run_id)
        return run

    def is_open(self, run_id: str) -> bool:
        return run_id in self._open_runs

    @property
    def open_runs(self) -> list[CachedRun]:
        with self._lock:
            return list(self._open_runs.values())

    def id_at(self, path: str) -> str | None:
        """The id of the run at a path; None if it is not in the library."""
        run_id = id_of_path(Path(path))
        return run_id if run_id in self._paths else None

    def folder(self, path: Path) -> str:
        """The folder of a run, relative to the parent of its root."""
        for root in self.roots:
            if root == path:
                return ""
            if root in path.parents:
                return str(path.parent.relative_to(root.parent))
        return str(path.parent)


def id_of_path(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path.absolute()), digest_size=8).hexdigest()


def match_prefix(prefix: str, ids: Iterable[str]) -> str | None:
    """The id with this prefix; None if there is none, or more than one."""
    matches = (
        [candidate for candidate in ids if candidate.startswith(prefix)] if len(prefix) >= _MIN_PREFIX else []
    )
    return matches[0] if len(matches) == 1 else None


def shortest_prefix(full_id: str, ids: Iterable[str]) -> str:
    others = [other for other in ids if other != full_id]
    for length in range(_MIN_PREFIX, len(full_id)):
        if not any(other.startswith(full_id[:length]) for other in others):
            return full_id[:length]
    return full_id


def try_open_run(library: RunLibrary, run_id: str) -> CachedRun | str:
    """The run, or a message why it cannot be opened."""
    try:
        return library.open_run(run_id)
    except DAMAGED_FILE_ERRORS as error:
        return describe_error(error)


def describe_error(error: BaseException) -> str:
    """The message of an error a user understands, else its type."""
    has_message = isinstance(error, (TensortapError, OSError, ValueError)) and str(error)
    return str(error) if has_message else f"it cannot be read: {type(error).__name__}"


def _check_root(root: Path) -> Path:
    if not root.exists():
        raise NoRunError(f"{root} does not exist; give a run, a folder of runs, or an HDF5 trace")
    if root.is_file() and root.suffix.lower() not in TRACE_SUFFIXES:
        raise NoRunError(f"{root} is neither a run nor an HDF5 trace ({', '.join(TRACE_SUFFIXES)})")
    return root.absolute()
