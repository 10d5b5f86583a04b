"""The runs below the folders that were named: found again and again, known by an id that is never a path."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tensortap.core.errors import NoRunError, TensortapError
from tensortap.formats.run_layout import OWN
from tensortap.viewer.books import TRACE_SUFFIXES
from tensortap.viewer.problems import DAMAGED_FILE_ERRORS, NotFoundError
from tensortap.viewer.stock import CachedRun

_MAX_DEPTH = 4  # folders below a root
_MAX_FOLDER_ENTRIES = 5000
_MAX_OPEN_RUNS = 16  # runs whose index is held
_MIN_PREFIX = 4


class RunLibrary:
    """Only what lies below a root can be asked for."""

    def __init__(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        self.roots = [_check_root(Path(root)) for root in roots]
        self._paths: dict[str, Path] = {}
        self._stocks: OrderedDict[str, CachedRun] = OrderedDict()
        self.remembered: dict[str, tuple[float, dict[str, Any]]] = {}  # rows of the list, as they last were
        self._lock = threading.RLock()
        self.look()

    def look(self) -> bool:
        """Look for runs; whether any came or went."""
        found = {id_of_path(path): path for root in self.roots for path in _find_runs(root, _MAX_DEPTH)}
        with self._lock:
            has_changed = found.keys() != self._paths.keys()
            self._paths = found
        return has_changed

    @property
    def identities(self) -> list[str]:
        """The full ids, the newest run last."""
        return sorted(self._paths, key=lambda one: (self._paths[one].name, str(self._paths[one])))

    def path(self, prefix: str) -> Path:
        return self._paths[self.identity(prefix)]

    def identity(self, prefix: str) -> str:
        found = match_prefix(prefix, self._paths)
        if found is None:
            raise NotFoundError(f"no run {prefix!r}; there are {len(self._paths)}, and / lists them")
        return found

    def short(self, identity: str) -> str:
        return shortest_prefix(identity, self._paths)

    def stock(self, prefix: str) -> CachedRun:
        """The run, opened when first asked for."""
        identity = self.identity(prefix)
        with self._lock:
            stock = self._stocks.get(identity)
            if stock is None or stock.is_replaced:
                stock = self._stocks[identity] = CachedRun(self._paths[identity], identity)
                while len(self._stocks) > _MAX_OPEN_RUNS:
                    self._stocks.popitem(last=False)
            self._stocks.move_to_end(identity)
        return stock

    def is_open(self, identity: str) -> bool:
        return identity in self._stocks

    @property
    def opened(self) -> list[CachedRun]:
        with self._lock:
            return list(self._stocks.values())

    def identity_at(self, path: str) -> str | None:
        """The id of the run at a path, if it is one of ours."""
        identity = id_of_path(Path(path))
        return identity if identity in self._paths else None

    def folder(self, path: Path) -> str:
        """Where it lies, seen from its root."""
        for root in self.roots:
            if root == path:
                return ""
            if root in path.parents:
                return str(path.parent.relative_to(root.parent))
        return str(path.parent)


def id_of_path(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path.absolute()), digest_size=8).hexdigest()


def match_prefix(prefix: str, known: Iterable[str]) -> str | None:
    """The one that begins so; None where there is none, or more than one."""
    found = [one for one in known if one.startswith(prefix)] if len(prefix) >= _MIN_PREFIX else []
    return found[0] if len(found) == 1 else None


def shortest_prefix(identity: str, known: Iterable[str]) -> str:
    others = [one for one in known if one != identity]
    for length in range(_MIN_PREFIX, len(identity)):
        if not any(one.startswith(identity[:length]) for one in others):
            return identity[:length]
    return identity


def try_open_run(library: RunLibrary, identity: str) -> CachedRun | str:
    """The run, or why it cannot be opened."""
    try:
        return library.stock(identity)
    except DAMAGED_FILE_ERRORS as error:
        return describe_error(error)


def describe_error(error: BaseException) -> str:
    """In words; an error that has none is at least named."""
    is_told = isinstance(error, (TensortapError, OSError, ValueError)) and str(error)
    return str(error) if is_told else f"it cannot be read: {type(error).__name__}"


def _find_runs(path: Path, depth: int) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if (path / OWN).is_dir():
        yield path
        return
    for entry in _scan_folder(path):
        name = entry.name
        if entry.is_file() and name.lower().endswith(TRACE_SUFFIXES):
            yield Path(entry.path)
        elif depth and not name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from _find_runs(Path(entry.path), depth - 1)


def _scan_folder(path: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; one that cannot be read holds nothing."""
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda entry: entry.name)[-_MAX_FOLDER_ENTRIES:]
    except OSError:
        return []


def _check_root(root: Path) -> Path:
    if not root.exists():
        raise NoRunError(f"{root} does not exist; give a run, a folder of runs, or an HDF5 trace")
    if root.is_file() and root.suffix.lower() not in TRACE_SUFFIXES:
        raise NoRunError(f"{root} is neither a run nor an HDF5 trace ({', '.join(TRACE_SUFFIXES)})")
    return root.absolute()
