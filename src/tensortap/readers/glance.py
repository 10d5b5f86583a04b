"""The summary of a run: what it is, its size and state; reads only its index and metadata, no values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from tensortap.core.errors import TensortapError
from tensortap.formats.index import COLUMNS, read_rows
from tensortap.formats.run_layout import CACHE_FOLDER, INTERNAL_FOLDER, MODEL_FILE, PACKS_FOLDER
from tensortap.readers.lost_files import describe_lost_files, file_ends_from_cells

State = Literal["finished", "writing", "cut off", "damaged"]
_SHORT_INDEX = 1 << 20  # bytes; a longer index is counted by column
_NAN, _INF = 6, 7  # positions of the counts in a row of statistics
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


def summarize_run(path: Path, being_written: Iterable[Path] = ()) -> RunSummary:
    """Summarize a run; one that cannot be read is reported as damaged, never raised."""
    facts, problems = _read_facts(path)
    try:
        counts, ends, index_problems = _count(path)
    except (TensortapError, OSError) as error:
        return RunSummary(path, "damaged", (*problems, str(error)), **facts)
    problems += [*index_problems, *describe_lost_files(path, ends)]
    is_written = path.resolve() in set(being_written)
    state: State = "damaged" if problems else "writing" if is_written else _final_state(path)
    if facts["started"] is None:
        facts["started"] = counts["started"]
    return RunSummary(path, state, tuple(problems), **{**counts, **facts})


def _read_facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Facts from the metadata files, and what is wrong with them; a missing file is no problem."""
    problems: list[str] = []
    runtime, git = (_read_json(path / f"{name}.json", problems) for name in ("runtime_info", "git_info"))
    model = (
        _read_json(path / INTERNAL_FOLDER / MODEL_FILE, problems)
        if (path / INTERNAL_FOLDER / MODEL_FILE).exists()
        else {}
    )
    project = _dict_or_empty(git.get("project_git_info"))
    status = project.get("status")
    facts = {
        "command": str(_dict_or_empty(runtime.get("command")).get("full_command") or ""),
        "commit": str(project.get("commit_id") or ""),
        "branch": str(project.get("branch") or ""),
        "is_dirty": None if status is None else status != "clean",
        "model": str(model.get("class") or ""),
        "started": _parse_timestamp(runtime.get("timestamp")),
    }
    return facts, problems


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return _dict_or_empty(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
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
    cached = list(_cached_statistics(path))
    counts["known"] += len(cached)
    counts["nan"] += sum(bool(row[_NAN]) for row in cached)
    counts["inf"] += sum(bool(row[_INF]) for row in cached)
    return counts, ends, problems


def _count_by_column(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    # Imported lazily: listing short runs takes less time than importing numpy.
    from tensortap.readers.column_counts import count_columns

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
    statistics = [row for row in cells["statistics"] if row is not None]
    counts = {
        "steps": _distinct_cells(cells["step"]),
        "ranks": _distinct_cells(cells["rank"]),
        "records": len(rows),
        "names": len(set(cells["name"])),
        "nbytes": sum(cells["nbytes"]),
        "started": min((time for time in cells["time"] if time > 0), default=None),
        "known": len(statistics),
        "nan": sum(bool(row[_NAN]) for row in statistics),
        "inf": sum(bool(row[_INF]) for row in statistics),
    }
    return counts, file_ends_from_cells(cells), problems


def _distinct_cells(cells: Sequence[Any]) -> tuple[int, ...]:
    """The distinct steps or ranks, sorted; a record merged from several counts for each."""
    plain = {cell for cell in cells if not isinstance(cell, list)}
    return tuple(sorted({*plain, *(number for cell in cells if isinstance(cell, list) for number in cell)}))


def _cached_statistics(path: Path) -> Iterator[list[Any]]:
    """The rows of the statistics cache, skipping damaged lines."""
    try:
        lines = (path / INTERNAL_FOLDER / CACHE_FOLDER / "statistics.jsonl").read_bytes().splitlines()
    except OSError:
        return
    row_by_key = {}
    for line in lines:
        try:
            key, row = json.loads(line)
            row_by_key[key] = row[: _INF + 1]
        except (ValueError, TypeError):
            continue
    yield from (row for row in row_by_key.values() if len(row) > _INF)


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
