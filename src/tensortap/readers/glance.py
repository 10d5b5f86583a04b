"""A run at a glance: what it is, how large, whether it is whole; nothing is read but its index and facts."""

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
from tensortap.formats.run_layout import CACHE, MODEL, OWN, PACKS
from tensortap.readers.lost_files import ends_of, lost_files

State = Literal["finished", "writing", "cut off", "damaged"]
_SHORT = 1 << 20  # bytes of index that are read row by row
_NAN, _INF = 6, 7  # where the counts stand in a row of statistics
_ZIP_END, _ZIP_END_SIZE = b"PK\5\6", 22


@dataclass(frozen=True, slots=True)
class Glance:
    """`steps` and `ranks` in order; `nan` and `inf` count the records that hold one, of the `known` ones
    whose statistics were written or asked for before."""

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


def glance(path: Path, being_written: Iterable[Path] = ()) -> Glance:
    """Look at a run; one that cannot be read is told as damaged, never raised."""
    told, problems = _facts(path)
    try:
        counts, ends, damaged = _counted(path)
    except (TensortapError, OSError) as error:
        return Glance(path, "damaged", (*problems, str(error)), **told)
    problems += [*damaged, *lost_files(path, ends)]
    is_written = path.resolve() in set(being_written)
    state: State = "damaged" if problems else "writing" if is_written else _ended(path)
    if told["started"] is None:
        told["started"] = counts["started"]
    return Glance(path, state, tuple(problems), **{**counts, **told})


def _facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What the files beside the values tell; one that is not there tells nothing."""
    problems: list[str] = []
    runtime, git = (_json(path / f"{name}.json", problems) for name in ("runtime_info", "git_info"))
    model = _json(path / OWN / MODEL, problems) if (path / OWN / MODEL).exists() else {}
    project = _dict(git.get("project_git_info"))
    status = project.get("status")
    told = {
        "command": str(_dict(runtime.get("command")).get("full_command") or ""),
        "commit": str(project.get("commit_id") or ""),
        "branch": str(project.get("branch") or ""),
        "is_dirty": None if status is None else status != "clean",
        "model": str(model.get("class") or ""),
        "started": _moment(runtime.get("timestamp")),
    }
    return told, problems


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return _dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}


def _dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _moment(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def _counted(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Counts, where the last value of each file ends, and what is damaged in the index."""
    try:
        counts, ends, damaged = _counted_by_row(path) if _is_short(path) else _counted_by_column(path)
    except (TypeError, ValueError, AttributeError):  # a cell of a wrong type: columns tell which
        counts, ends, damaged = _counted_by_column(path)
    asked = list(_asked_before(path))
    counts["known"] += len(asked)
    counts["nan"] += sum(bool(row[_NAN]) for row in asked)
    counts["inf"] += sum(bool(row[_INF]) for row in asked)
    return counts, ends, damaged


def _counted_by_column(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    # Here, because a list of short runs takes less time than importing numpy.
    from tensortap.readers.column_counts import counted

    return counted(path)


def _is_short(path: Path) -> bool:
    own = path / OWN
    return not (own / CACHE / "columns.npz").exists() and sum(_length(one) for one in _indexes(own)) < _SHORT


def _counted_by_row(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    rows: list[list[Any]] = []
    damaged: list[str] = []
    for index in _indexes(path / OWN):
        found, _, problems = read_rows(index)
        rows, damaged = rows + found, damaged + problems
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    cells: dict[str, Sequence[Any]] = dict(zip(COLUMNS, columns, strict=True))
    told = [row for row in cells["statistics"] if row is not None]
    counts = {
        "steps": _numbers(cells["step"]),
        "ranks": _numbers(cells["rank"]),
        "records": len(rows),
        "names": len(set(cells["name"])),
        "nbytes": sum(cells["nbytes"]),
        "started": min((time for time in cells["time"] if time > 0), default=None),
        "known": len(told),
        "nan": sum(bool(row[_NAN]) for row in told),
        "inf": sum(bool(row[_INF]) for row in told),
    }
    return counts, ends_of(cells), damaged


def _numbers(cells: Sequence[Any]) -> tuple[int, ...]:
    """Each once; a record that was merged from several counts for all of them."""
    plain = {cell for cell in cells if not isinstance(cell, list)}
    return tuple(sorted({*plain, *(one for cell in cells if isinstance(cell, list) for one in cell)}))


def _asked_before(path: Path) -> Iterator[list[Any]]:
    """The rows of the statistics cache; a damaged line is passed over."""
    try:
        lines = (path / OWN / CACHE / "statistics.jsonl").read_bytes().splitlines()
    except OSError:
        return
    found = {}
    for line in lines:
        try:
            key, row = json.loads(line)
            found[key] = row[: _INF + 1]
        except (ValueError, TypeError):
            continue
    yield from (row for row in found.values() if len(row) > _INF)


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _ended(path: Path) -> State:
    """Whether the writer said farewell: packs have their directory, and the index ends with a whole line."""
    own = path / OWN
    packs = [own / PACKS / name for name in _names(own / PACKS) if name.endswith(".npz")]
    is_whole = all(_tail(pack, _ZIP_END_SIZE)[:4] == _ZIP_END for pack in packs)
    return "finished" if is_whole and all(_tail(one, 1) == b"\n" for one in _indexes(own)) else "cut off"


def _indexes(own: Path) -> list[Path]:
    """As `index_files`, without what a glob costs."""
    names = (name for name in _names(own) if name.startswith("index-") and name.endswith(".jsonl"))
    return [own / name for name in sorted(names)]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _tail(path: Path, length: int) -> bytes:
    try:
        with open(path, "rb") as stream:
            stream.seek(-length, os.SEEK_END)
            return stream.read()
    except OSError:  # shorter than that, or not ours to read
        return b""
