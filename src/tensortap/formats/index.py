"""The index of a run: one JSON line per record, appended once the value is stored; the source of truth."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from time import monotonic
from typing import Any

from tensortap.core.errors import UnknownFormatError
from tensortap.core.record import Placement, Record, Site
from tensortap.frameworks.base import Description

INDEX_VERSION = 1
_CHECK_INTERVAL = 0.0001  # seconds: a check costs as much as the row
COLUMNS = (
    "name",
    "kind",
    "step",
    "rank",
    "call",
    "order",
    "time",
    "framework",
    "type",
    "dtype",
    "shape",
    "device",
    "nbytes",
    "file",
    "suffix",
    "start",
    "length",
    "offset",
    "checksum",
    "site",
    "placement",
    "statistics",
)
_HEADER = json.dumps({"tensortap_index": INDEX_VERSION, "columns": COLUMNS}).encode() + b"\n"
_STRING_COLUMNS = {"name", "kind", "framework", "type", "dtype", "shape", "device", "file", "suffix"}
_INTEGER_COLUMNS = {"call", "order", "nbytes", "start", "length"}
_OPTIONAL_COLUMNS: dict[str, type | tuple[type, ...]] = {
    "offset": int,
    "checksum": str,
    "site": str,
    "placement": list,
    "statistics": (dict, list),  # a list in runs of version 0.1
}
_LIST_POSITIONS = (6, 7)  # of the NaN and Inf counts in such a list


class IndexWriter:
    """Appends rows, one `write` each: a killed process loses none that was acknowledged."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._next_look = 0.0
        size = os.fstat(self._fd).st_size
        if size == 0:
            self.append(_HEADER)
        elif os.pread(self._fd, 1, size - 1) != b"\n":
            self.append(b"\n")  # a killed writer left a partial line

    def append(self, row: bytes) -> None:
        now = monotonic()
        if now > self._next_look:
            self._check()
            self._next_look = now + _CHECK_INTERVAL
        written = os.write(self._fd, row)
        if written < len(row):
            self._truncate_partial_row(written)
            raise OSError(errno.ENOSPC, "no space left for the index")

    def _check(self) -> None:
        """Raise if the file was deleted: writes would succeed, and nobody would see them."""
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)

    def _truncate_partial_row(self, written: int) -> None:
        """Remove a partial row, unless another process has appended after it."""
        with contextlib.suppress(OSError):
            end = os.lseek(self._fd, 0, os.SEEK_CUR)
            if os.fstat(self._fd).st_size == end:
                os.ftruncate(self._fd, end - written)


def format_row_start(record: Record, framework: str, description: Description, nbytes: int) -> str:
    """The part of a row that is known before the value is written."""
    step, rank = record.step, record.rank
    if type(step) is not int or type(rank) is not int:
        step, rank = _format_numbers(step), _format_numbers(rank)  # type: ignore[assignment]
    return (
        f'[{quoted(record.name)},"{record.kind}",{step},{rank},{record.call},{record.order},{record.time:.6f},'
        f"{_format_description(framework, description)},{nbytes}"
    )


@lru_cache(maxsize=4096)
def _format_description(framework: str, description: Description) -> str:
    shape = ",".join(map(str, description.shape))
    what = f"{quoted(description.type)},{quoted(description.dtype)}"
    return f'{quoted(framework)},{what},"{shape}",{quoted(description.device)}'


def format_row_end(
    file: str,
    suffix: str,
    start: int,
    length: int,
    offset: int | None,
    checksum: str | None,
    facts: str,
) -> str:
    """The rest: where the value is stored."""
    sum_text = "null" if checksum is None else f'"{checksum}"'
    at = "null" if offset is None else offset
    return f',{quoted(file)},"{suffix}",{start},{length},{at},{sum_text},{facts}]\n'


def format_facts(record: Record, statistics: dict[str, Any] | None) -> str:
    """Site, placement and statistics, as JSON cells."""
    if record.site is None and record.placement is None and statistics is None:
        return "null,null,null"
    if record.placement is None and statistics is None:
        return f"{_format_site(record.site)},null,null"
    return f"{_format_site(record.site)},{_format_placement(record.placement)},{json.dumps(statistics)}"


def read_rows(path: Path, start: int = 0) -> tuple[list[list[Any]], int, list[str]]:
    """Rows from byte `start` on, the end of the last complete line, and problems found."""
    with open(path, "rb") as stream:
        header = stream.readline()
        columns = _parse_header(header, path)
        stream.seek(max(start, len(header)))
        data = stream.read()
    if not header.endswith(b"\n"):
        return [], start, []
    body = data[: data.rfind(b"\n") + 1]
    begin = max(start, len(header))
    rows, problems = _parse(body, columns or COLUMNS, path.name, begin)
    if columns is None and start == 0:
        problems.insert(0, f"the header of {path.name} is damaged")
    return rows, begin + len(body), problems


def _parse_header(header: bytes, path: Path) -> Sequence[str] | None:
    """The columns in the header; None if it cannot be parsed."""
    try:
        known = json.loads(header)
        version, columns = known["tensortap_index"], known["columns"]
    except (ValueError, TypeError, KeyError):
        return None
    if version != INDEX_VERSION or not set(COLUMNS) <= set(columns):
        raise UnknownFormatError(
            f"{path} is an index of version {version}, this tensortap reads version {INDEX_VERSION}; "
            f"upgrade tensortap to read the run"
        )
    return tuple(columns)


def _parse(body: bytes, columns: Sequence[str], name: str, start: int) -> tuple[list[list[Any]], list[str]]:
    try:
        rows = json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    except ValueError:
        rows = None
    if rows is None or not _have_row_shape(rows, columns):
        return _parse_damaged(body, columns, name, start)
    return [_reorder_cells(row, columns) for row in rows] if columns != COLUMNS else rows, []


def _parse_damaged(
    body: bytes, columns: Sequence[str], name: str, at: int
) -> tuple[list[list[Any]], list[str]]:
    rows: list[list[Any]] = []
    problems = []
    for line in body.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if _have_row_shape([row], columns):
            rows.append(_reorder_cells(row, columns))
        elif not line.startswith(_HEADER[:19]):  # two concurrent writers each wrote a header
            problems.append(f"the line at byte {at} of {name} is damaged")
        at += len(line)
    return rows, problems


def _have_row_shape(rows: list[Any], columns: Sequence[str]) -> bool:
    return set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(columns)}


def has_valid_types(row: list[Any]) -> bool:
    """Whether each cell has its column's type; checked only after converting the columns has failed."""
    return all(_is_valid_cell(column, cell) for column, cell in zip(COLUMNS, row, strict=True))


def _is_valid_cell(column: str, cell: Any) -> bool:
    if column in _STRING_COLUMNS:
        return isinstance(cell, str)
    if column in _INTEGER_COLUMNS:
        return isinstance(cell, int) and abs(cell) < 1 << 63
    if column in _OPTIONAL_COLUMNS:
        return cell is None or isinstance(cell, _OPTIONAL_COLUMNS[column])
    return isinstance(cell, (int, float) if column == "time" else (int, list))


def _reorder_cells(row: list[Any], columns: Sequence[str]) -> list[Any]:
    """The known cells in our order: later versions may have added columns."""
    return row if columns == COLUMNS else [row[columns.index(column)] for column in COLUMNS]


def index_files(own: Path) -> Iterator[Path]:
    return iter(sorted(own.glob("index-*.jsonl")))


def parse_site(text: str) -> Site:
    file, line, function, depth, callers, *tree = text.split("\t")
    outwards = tuple(callers.split(" <- ")) if callers else ()
    return Site(function, file, int(line), int(depth), outwards, *map(int, tree[:1]))


def parse_placement(fields: list[Any]) -> Placement:
    return Placement(*(tuple(part) for part in fields))


def _format_numbers(number: int | tuple[int, ...]) -> str:
    """As JSON; a step may be a numpy integer."""
    return json.dumps([int(part) for part in number] if isinstance(number, tuple) else int(number))


def _format_site(site: Site | None) -> str:
    if site is None:
        return "null"
    file = site.file.replace("\t", " ")  # fields are separated by tabs
    tree = f"\t{site.tree}" if site.tree else ""
    callers = " <- ".join(site.callers)
    return str(quoted(f"{file}\t{site.line}\t{site.function}\t{site.depth}\t{callers}{tree}"))


def _format_placement(placement: Placement | None) -> str:
    return "null" if placement is None else json.dumps(astuple(placement))


def nonfinite_counts(statistics: dict[str, Any] | list[Any]) -> tuple[int, int]:
    """The NaN and Inf counts of stored statistics, without numpy."""
    if isinstance(statistics, dict):
        return statistics.get("nan", 0), statistics.get("inf", 0)
    nan, inf = _LIST_POSITIONS
    return statistics[nan], statistics[inf]
