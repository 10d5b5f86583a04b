"""The index of a run: one line of JSON per record, appended when the value is safe; the truth of a run."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import astuple
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from tensortap.core.record import Placement, Record, Site
from tensortap.frameworks.base import Description

VERSION = 1
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
_HEADER = json.dumps({"tensortap_index": VERSION, "columns": COLUMNS}).encode() + b"\n"


class IndexWriter:
    """Appends rows, one `write` each: a killed process loses none that was acknowledged."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = os.fstat(self._fd).st_size
        if self._size == 0:
            self.append(_HEADER)

    def append(self, row: bytes) -> None:
        written = 0
        try:
            written = os.write(self._fd, row)
        finally:
            if written < len(row):
                self._restore()
        if written < len(row):
            raise OSError(28, "no space left for the index")
        self._size += written

    def close(self) -> None:
        os.close(self._fd)

    def _restore(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)


def row_start(record: Record, framework: str, description: Description, nbytes: int) -> str:
    """The part of a row that is known before the value is written."""
    return (
        f'[{quoted(record.name)},"{record.kind}",{_numbers(record.step)},{_numbers(record.rank)},'
        f"{record.call},{record.order},{record.time:.6f},{_described(framework, description)},{nbytes}"
    )


@lru_cache(maxsize=4096)
def _described(framework: str, description: Description) -> str:
    shape = ",".join(map(str, description.shape))
    what = f"{quoted(description.type)},{quoted(description.dtype)}"
    return f'{quoted(framework)},{what},"{shape}",{quoted(description.device)}'


def row_end(
    file: str,
    suffix: str,
    start: int,
    length: int,
    offset: int | None,
    checksum: str | None,
    facts: str,
) -> bytes:
    """The rest: where the value lies now."""
    sum_text = "null" if checksum is None else f'"{checksum}"'
    at = "null" if offset is None else offset
    return f',{quoted(file)},"{suffix}",{start},{length},{at},{sum_text},{facts}]\n'.encode()


def facts(record: Record, statistics: tuple[Any, ...] | None) -> str:
    """Site, placement and statistics, as they stand in a row."""
    if record.placement is None and statistics is None:
        return f"{_site(record.site)},null,null"
    return f"{_site(record.site)},{_placement(record.placement)},{json.dumps(statistics)}"


def read_rows(path: Path, start: int = 0) -> tuple[list[list[Any]], int, list[str]]:
    """Rows from byte `start` on, where the last whole line ends, and what was damaged."""
    with open(path, "rb") as stream:
        stream.seek(start)
        data = stream.read()
    data = data[: data.rfind(b"\n") + 1]
    end = start + len(data)
    body = data[data.find(b"\n") + 1 :] if start == 0 else data
    try:
        return json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]"), end, []
    except ValueError:
        return _read_damaged(body, path.name, end)


def _read_damaged(body: bytes, name: str, end: int) -> tuple[list[list[Any]], int, list[str]]:
    rows, problems = [], []
    for number, line in enumerate(body.splitlines(), 2):
        try:
            row = json.loads(line)
            if not isinstance(row, list) or len(row) != len(COLUMNS):
                raise ValueError("not a row")
        except ValueError:
            problems.append(f"line {number} of {name} is damaged")
        else:
            rows.append(row)
    return rows, end, problems


def index_files(own: Path) -> Iterator[Path]:
    return iter(sorted(own.glob("index-*.jsonl")))


def site_from(text: str) -> Site:
    file, line, function, depth, callers = text.split("\t")
    return Site(function, file, int(line), int(depth), tuple(callers.split(" <- ")) if callers else ())


def placement_from(fields: list[Any]) -> Placement:
    return Placement(*(tuple(part) for part in fields))


def _numbers(number: int | tuple[int, ...]) -> str:
    return f"{number}" if type(number) is int else json.dumps(number)


def _site(site: Site | None) -> str:
    if site is None:
        return "null"
    return str(
        quoted(f"{site.file}\t{site.line}\t{site.function}\t{site.depth}\t{' <- '.join(site.callers)}")
    )


def _placement(placement: Placement | None) -> str:
    return "null" if placement is None else json.dumps(astuple(placement))
