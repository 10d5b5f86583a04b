"""The runs below folders, and a summary of each: origin, size and state; reads no values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from tensortap.core.errors import NoRunError, TensortapError
from tensortap.formats.index import COLUMNS, nonfinite_counts, read_rows
from tensortap.formats.run_layout import (
    CACHE_FOLDER,
    ENVIRONMENT_FILE,
    INTERNAL_FOLDER,
    MODEL_FILE,
    PACKS_FOLDER,
)

MAX_FOLDERS = 20_000
MAX_DEPTH = 8
_SKIPPED_FOLDERS = {"node_modules", "site-packages", "__pycache__"}


class RunFinder:
    """Iterates over the runs below folders; `problems` lists what the latest iteration skipped, and why.

    >>> for path in RunFinder(["runs"]): Run(path)

    Files with one of the `suffixes`, such as traces, count as runs too.
    """

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        *,
        suffixes: tuple[str, ...] = (),
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._suffixes, self._max_depth = suffixes, max_depth
        self._folders = [self._check(Path(folder)) for folder in folders]
        self.problems: list[str] = []
        self._visited = 0

    def __iter__(self) -> Iterator[Path]:
        self.problems, self._visited = [], 0
        seen: set[tuple[int, int]] = set()
        for folder in self._folders:
            for run in self._walk(folder, 0):
                identity = _file_identity(run)
                if identity is not None and identity not in seen:
                    seen.add(identity)
                    yield run

    def _check(self, folder: Path) -> Path:
        if not folder.is_dir() and not self._is_single_file(folder):
            problem = "is a file, not a folder" if folder.exists() else "does not exist"
            raise NoRunError(f"{folder} {problem}; give a run, or a folder that holds runs")
        return folder

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        # Path.is_dir would raise without permission to list the folder.
        if os.path.isdir(folder / INTERNAL_FOLDER) or self._is_single_file(folder):
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
        for child in self._children(folder):
            if depth < self._max_depth or self._is_single_file(child):
                yield from self._walk(child, depth + 1)
            else:
                self.problems.append(
                    f"{child} lies deeper than {self._max_depth} folders and was not looked at"
                )

    def _children(self, folder: Path) -> list[Path]:
        """The subfolders to look at, and the files that are runs."""
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if self._is_candidate(entry)]
        except OSError as error:
            self.problems.append(f"{folder} cannot be looked at: {(error.strerror or str(error)).lower()}")
            return []
        return [folder / name for name in sorted(names)]

    def _is_candidate(self, entry: os.DirEntry[str]) -> bool:
        if self._is_single_file(entry):
            return True
        is_skipped = entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS
        return not is_skipped and entry.is_dir(follow_symlinks=False)

    def _is_single_file(self, path: Path | os.DirEntry[str]) -> bool:
        return path.name.lower().endswith(self._suffixes) and path.is_file()


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


State = Literal["finished", "writing", "cut off", "damaged"]
_SHORT_INDEX = 1 << 20  # bytes; a longer index is counted by column
_ZIP_END, _ZIP_END_SIZE = b"PK\5\6", 22


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`steps` and `ranks` are sorted; `nan` and `inf` count the records that hold one, among the `known`
    records whose statistics were written or computed before."""

    path: Path
    state: State = "finished"
    problems: tuple[str, ...] = ()
    started: float | None = None
    command: str = ""
    commit: str = ""
    branch: str = ""
    is_dirty: bool | None = None
    model: str = ""
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    records: int = 0
    names: int = 0
    nbytes: int = 0
    nan: int = 0
    inf: int = 0
    known: int = 0
    modified: float | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """The summary as JSON."""
        steps = self.steps
        return {
            "path": str(self.path),
            "name": self.path.name,
            "state": self.state,
            "problems": list(self.problems),
            "started": self.started,
            "modified": self.modified,
            "command": self.command,
            "commit": self.commit,
            "branch": self.branch,
            "dirty": self.is_dirty,
            "model": self.model,
            "tags": dict(self.tags),
            "steps": {"first": steps[0], "last": steps[-1], "count": len(steps)} if steps else None,
            "ranks": list(self.ranks),
            "records": self.records,
            "names": self.names,
            "bytes": self.nbytes,
            "health": {"nan": self.nan, "inf": self.inf, "known": self.known},
        }


def summarize_run(path: Path, being_written: Set[Path] = frozenset()) -> RunSummary:
    """Summarize a run; one that cannot be read is reported as damaged, never raised."""
    facts, problems = _read_facts(path)
    try:
        counts, ends, index_problems = _count(path)
    except (TensortapError, OSError) as error:
        return RunSummary(path, "damaged", (*problems, str(error)), **facts)
    problems += [*index_problems, *describe_lost_files(path, ends)]
    state: State = "damaged" if problems else _final_state(path)
    if facts["started"] is None:
        facts["started"] = counts["started"]
    summary = RunSummary(path, state, tuple(problems), **{**counts, **facts})
    return mark_being_written(summary, being_written)


def mark_being_written(summary: RunSummary, being_written: Set[Path]) -> RunSummary:
    """The summary with its state as of now; it may have been made before `being_written` was looked up."""
    is_written = bool(being_written) and summary.path.resolve() in being_written
    return replace(summary, state="writing") if is_written and summary.state != "damaged" else summary


def last_modified(path: Path) -> float | None:
    """When the index, the packs or the single file were last written; None if there is nothing."""
    own = path / INTERNAL_FOLDER
    packs = [own / PACKS_FOLDER / name for name in _list_names(own / PACKS_FOLDER)]
    times = [time for file in (*_index_files(own), *packs) if (time := _modification_time(file)) is not None]
    return max(times) if times else _modification_time(path)


def _modification_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _read_facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Facts from the metadata files, and what is wrong with them; a missing file is no problem."""
    problems: list[str] = []
    runtime, git = (_read_json(path / f"{name}.json", problems) for name in ("runtime_info", "git_info"))
    own = path / INTERNAL_FOLDER
    model, environment = (_read_json(own / name, problems) for name in (MODEL_FILE, ENVIRONMENT_FILE))
    project = _dict_or_empty(git.get("project_git_info"))
    status = project.get("status")
    facts = {
        "command": str(_dict_or_empty(runtime.get("command")).get("full_command") or ""),
        "commit": str(project.get("commit_id") or ""),
        "branch": str(project.get("branch") or ""),
        "is_dirty": None if status is None else status != "clean",
        "model": str(model.get("class") or ""),
        "started": _parse_timestamp(runtime.get("timestamp")),
        "modified": last_modified(path),
        "tags": _dict_or_empty(environment.get("tags")),
    }
    return facts, problems


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return _dict_or_empty(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_timestamp(timestamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError):
        return None


def _count(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Counts by field, the byte where the last value of each file ends, and problems of the index."""
    try:
        counts, ends, problems = _count_by_row(path) if _has_short_index(path) else _count_by_column(path)
    except (TypeError, ValueError, AttributeError):  # a cell of a wrong type: the columns report which
        counts, ends, problems = _count_by_column(path)
    cached = _cached_nonfinite_counts(path)
    counts["known"] += len(cached)
    counts["nan"] += sum(bool(nan) for nan, _ in cached)
    counts["inf"] += sum(bool(inf) for _, inf in cached)
    return counts, ends, problems


def _count_by_column(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    # Imported lazily: listing short runs takes less time than importing numpy.
    from tensortap.readers.index_counts import count_columns

    return count_columns(path)


def _has_short_index(path: Path) -> bool:
    own = path / INTERNAL_FOLDER
    return (
        not (own / CACHE_FOLDER / "columns.npz").exists()
        and sum(_file_size(index) for index in _index_files(own)) < _SHORT_INDEX
    )


def _count_by_row(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    rows: list[list[Any]] = []
    problems: list[str] = []
    for index in _index_files(path / INTERNAL_FOLDER):
        index_rows, _, index_problems = read_rows(index)
        rows, problems = rows + index_rows, problems + index_problems
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    cells: dict[str, Sequence[Any]] = dict(zip(COLUMNS, columns, strict=True))
    nonfinite = [nonfinite_counts(cell) for cell in cells["statistics"] if cell is not None]
    counts = {
        "steps": _distinct_cells(cells["step"]),
        "ranks": _distinct_cells(cells["rank"]),
        "records": len(rows),
        "names": len(set(cells["name"])),
        "nbytes": sum(cells["nbytes"]),
        "started": min((time for time in cells["time"] if time > 0), default=None),
        "known": len(nonfinite),
        "nan": sum(bool(nan) for nan, _ in nonfinite),
        "inf": sum(bool(inf) for _, inf in nonfinite),
    }
    return counts, file_ends_from_cells(cells), problems


def _distinct_cells(cells: Sequence[Any]) -> tuple[int, ...]:
    """The distinct steps or ranks, sorted; a record merged from several counts for each."""
    plain = {cell for cell in cells if not isinstance(cell, list)}
    return tuple(sorted({*plain, *(number for cell in cells if isinstance(cell, list) for number in cell)}))


def _cached_nonfinite_counts(path: Path) -> list[tuple[int, int]]:
    """NaN and Inf counts of the values in the statistics cache, skipping damaged lines."""
    try:
        lines = (path / INTERNAL_FOLDER / CACHE_FOLDER / "statistics.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    counts_by_key = {}
    for line in lines:
        try:
            key, statistics = json.loads(line)
            counts_by_key[key] = nonfinite_counts(statistics)
        except (ValueError, TypeError, IndexError):
            continue
    return list(counts_by_key.values())


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _final_state(path: Path) -> State:
    """Finished if the writer closed everything: packs have a directory, and the index ends with a newline."""
    own = path / INTERNAL_FOLDER
    packs = [own / PACKS_FOLDER / name for name in _list_names(own / PACKS_FOLDER) if name.endswith(".npz")]
    are_packs_complete = all(_tail(pack, _ZIP_END_SIZE)[:4] == _ZIP_END for pack in packs)
    return (
        "finished"
        if are_packs_complete and all(_tail(index, 1) == b"\n" for index in _index_files(own))
        else "cut off"
    )


def _index_files(own: Path) -> list[Path]:
    """Like `index_files`, without the cost of a glob."""
    names = (name for name in _list_names(own) if name.startswith("index-") and name.endswith(".jsonl"))
    return [own / name for name in sorted(names)]


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _tail(path: Path, length: int) -> bytes:
    try:
        with open(path, "rb") as stream:
            stream.seek(-length, os.SEEK_END)
            return stream.read()
    except OSError:  # shorter than that, or not readable
        return b""


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
