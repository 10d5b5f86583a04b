"""Datasets: a run directory or an HDF5 trace as columns and values, and the source lines of its modules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensortap.comparison.sides.entry import module_of, numeric_operand
from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import CorruptRunError, UntrustedFileError
from tensortap.formats import serializers
from tensortap.formats.index import parse_site
from tensortap.formats.run_layout import nested_dict
from tensortap.kernels.statistics import Statistics
from tensortap.readers.query.tables import Array, IndexTable
from tensortap.readers.run import Run

_MAX_OPAQUE_BYTES = 16 << 20  # larger values that are not arrays are not shown
TRACE_SUFFIXES = (".h5", ".hdf5")
_FORWARD_KINDS = ("output", "input", "grad_output", "grad_input")


class Dataset(Protocol):
    """One row per record; `refresh` appends new ones."""

    type: str

    def __len__(self) -> int: ...

    def refresh(self) -> int: ...

    def texts(self, field: str) -> tuple[Array, list[Any]] | None: ...

    def numbers(self, field: str) -> Array | None: ...

    def operand(self, row: int) -> Operand | None:
        """The array of a row; None for a value that is not numeric."""

    def value(self, row: int) -> Any:
        """The value of a row that is not an array; loading it runs no code from the file."""

    def facts(self, row: int) -> dict[str, Any]: ...

    def stored_statistics(self, start: int) -> dict[int, Statistics]: ...

    def metadata(self) -> dict[str, Any]: ...

    @property
    def problems(self) -> list[str]: ...


class RunDataset:
    type = "run"

    def __init__(self, path: Path) -> None:
        self.run = Run(path)
        self._query_table = IndexTable(self.run.columns)
        self._metadata: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.run)

    def refresh(self) -> int:
        return self.run.refresh()

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        return self._query_table.texts(field)

    def numbers(self, field: str) -> Array | None:
        return self._query_table.numbers(field)

    def operand(self, row: int) -> Operand | None:
        stored = self.run[row]
        bits = stored.bits
        if bits is not None:
            self._check_not_truncated(stored.file, row)
            return Operand(bits, stored.dtype)
        return numeric_operand(self.value(row))

    def value(self, row: int) -> Any:
        """Pickles are untrusted even in the user's own runs: they can only build numbers and strings."""
        stored, plain = self.run[row], self.run.columns.plain
        start, length = int(plain["start"][row]), int(plain["length"][row])
        if length > _MAX_OPAQUE_BYTES:
            return f"<{stored.type} of {length >> 20} MB, which is not shown>"
        try:
            data = self._read_bytes(stored.file, start, length)
            return serializers.read(stored.suffix, data, stored.name, is_trusted=False)
        except UntrustedFileError:
            return f"<{stored.type}, which only Python may open: run.load({stored.name!r})>"

    def facts(self, row: int) -> dict[str, Any]:
        stored = self.run[row]
        site, placement = stored.site, stored.placement
        return {
            "type": stored.type,
            "framework": stored.framework,
            "device": stored.device,
            "file": stored.file,
            "checksum": stored.checksum,
            "steps_of": stored.step,
            "site": self.code.site(stored.name, stored.kind)
            if site is None
            else {
                name: getattr(site, name) for name in ("file", "line", "function", "callers", "depth", "tree")
            },
            "placement": None
            if placement is None
            else {
                name: getattr(placement, name) for name in ("mesh", "coordinate", "parts", "shape", "offset")
            },
        }

    def stored_statistics(self, start: int) -> dict[int, Statistics]:
        column = self.run.columns.coded["statistics"]
        statistics_of_code = [_parse_statistics(text) for text in column.texts]
        if not any(statistics_of_code):
            return {}
        rows = enumerate(column.codes[start:].tolist(), start)
        return {row: statistics for row, code in rows if (statistics := statistics_of_code[code]) is not None}

    @cached_property
    def code(self) -> ModuleCode:
        return ModuleCode(self.metadata())

    def metadata(self) -> dict[str, Any]:
        if self._metadata is None:
            self._metadata = self._read_metadata()
        return self._metadata

    def _read_metadata(self) -> dict[str, Any]:
        metadata, damaged = self.run.readable_metadata()
        return {**metadata, **({"problem": "; ".join(damaged.values())} if damaged else {})}

    @property
    def problems(self) -> list[str]:
        return self.run.problems

    def _check_not_truncated(self, file: str, row: int) -> None:
        """Reading a memory map beyond the end of its truncated file kills the process (SIGBUS)."""
        plain, path = self.run.columns.plain, self.run.path / file
        offset, nbytes = int(plain["offset"][row]), int(plain["nbytes"][row])
        if offset >= 0 and path.is_file() and path.stat().st_size < offset + nbytes:
            raise CorruptRunError(
                f"{path} has become shorter than a value that reaches to byte {offset + nbytes}; the run was "
                "cut off, or is being written anew"
            )

    def _read_bytes(self, file: str, start: int, length: int) -> bytes:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise CorruptRunError(f"the index names {file!r}, which lies outside the run; it is not read")
        with open(self.run.path / file, "rb") as stream:
            stream.seek(start)
            return stream.read(length)


def _parse_statistics(text: str | None) -> Statistics | None:
    """Statistics of an index cell; None where it is empty or malformed."""
    return None if text is None else Statistics.from_stored(json.loads(text))


def format_site(text: str | None) -> str:
    """`model.py:212 forward`, for a table cell."""
    if text is None:
        return ""
    try:
        site = parse_site(text)
    except ValueError:
        return text.replace("\t", " ")
    return f"{site.file.rpartition('/')[2]}:{site.line} {site.function}"


class TraceDataset:
    """The values of an HDF5 trace, sorted by name."""

    type = "trace"

    def __init__(self, path: Path) -> None:
        from tensortap.readers.trace_file import TraceFile  # imported lazily: h5py is optional

        self.trace = TraceFile(path)
        self._file_stamp = self._stamp()
        self.positions: list[tuple[str, int]] = []
        self._columns: dict[str, Array] = {}
        self._texts: dict[str, tuple[Array, list[str]]] = {}
        self._read_columns()

    def __len__(self) -> int:
        return len(self.positions)

    def refresh(self) -> int:
        """Reads all again: rows are sorted by name, so new ones are inserted in between."""
        stamp = self._stamp()
        if stamp == self._file_stamp:
            return 0
        before, self._file_stamp = len(self), stamp
        self.trace.refresh()
        self._read_columns()
        return abs(len(self) - before) or 1  # the same number of rows may be other rows

    def _stamp(self) -> tuple[int, int]:
        status = self.trace.path.stat()
        return status.st_mtime_ns, status.st_size

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        return self._texts.get(field)

    def numbers(self, field: str) -> Array | None:
        return self._columns.get({"since": "time", "before": "time"}.get(field, field))

    def operand(self, row: int) -> Operand | None:
        return numeric_operand(self.value(row))

    def value(self, row: int) -> Any:
        name, position = self.positions[row]
        return self.trace[name][position]

    def facts(self, row: int) -> dict[str, Any]:
        fields_of_a_run = ("type", "framework", "device", "file", "checksum", "site", "placement")
        return {**dict.fromkeys(fields_of_a_run), "file": self.trace.path.name, "type": "traced"}

    def stored_statistics(self, start: int) -> dict[int, Statistics]:
        return {}

    def metadata(self) -> dict[str, Any]:
        return {}

    @property
    def problems(self) -> list[str]:
        return []

    def _read_columns(self) -> None:
        names, codes, steps, ranks, dtypes, shapes, sizes = list(self.trace.names), [], [], [], [], [], []
        self.positions = []
        for code, name in enumerate(names):
            traced = self.trace[name]
            count, shape = len(traced), ",".join(map(str, traced.shape[1:]))
            self.positions += [(name, position) for position in range(count)]
            codes += [code] * count
            steps += [_first_number(step) for step in traced.steps]
            ranks += [_first_number(rank) for rank in traced.ranks]
            dtypes += [traced.dtype] * count
            shapes += [shape] * count
            sizes += [int(np.prod(traced.shape[1:])) * _itemsize(traced.dtype)] * count
        self._texts = {
            "name": (np.array(codes, np.int64), names),
            "kind": (np.zeros(len(codes), np.int64), ["value"]),
            "dtype": factorize(dtypes),
            "shape": factorize(shapes),
            "site": (np.zeros(len(codes), np.int64), [None]),  # type: ignore[list-item]
            "type": (np.zeros(len(codes), np.int64), ["traced"]),
        }
        zeros = np.zeros(len(codes), np.int64)
        self._columns = {"step": np.array(steps, np.int64), "rank": np.array(ranks, np.int64), "call": zeros}
        self._columns |= {"order": np.arange(len(codes)), "nbytes": np.array(sizes, np.int64)}
        self._columns["time"] = np.zeros(len(codes))


def open_dataset(path: Path) -> Dataset:
    return TraceDataset(path) if is_trace(path) else RunDataset(path)


def is_trace(path: Path) -> bool:
    return path.suffix.lower() in TRACE_SUFFIXES and not path.is_dir()


def factorize(cells: list[str]) -> tuple[Array, list[str]]:
    """The code of each cell, and the distinct strings that the codes stand for, as in pandas."""
    texts = list(dict.fromkeys(cells))
    codes = {text: code for code, text in enumerate(texts)}
    return np.fromiter(map(codes.__getitem__, cells), np.int64, len(cells)), texts


def _first_number(number: Any) -> int:
    while isinstance(number, (tuple, list)):
        number = number[0] if number else 0
    return int(number) if isinstance(number, (int, float)) else 0


def _itemsize(dtype: str) -> int:
    from tensortap.core.dtypes import DTYPE_TABLE

    return DTYPE_TABLE[dtype].itemsize if dtype in DTYPE_TABLE else 1


class LineRange(NamedTuple):
    file: str
    first: int
    last: int


class ForwardCode(NamedTuple):
    """Source lines of a module's forward() and of its class."""

    function: str
    forward: LineRange
    class_range: LineRange | None


class ModuleCode:
    """Source lines by module path, from the run's model metadata; empty if it has none."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        entries = nested_dict(metadata, "model").get("code")
        self._by_module = dict(_parse_code(entries if isinstance(entries, list) else []))

    def of_module(self, path: str) -> ForwardCode | None:
        return self._by_module.get(path)

    def ancestors(self, path: str) -> Iterator[ForwardCode]:
        """The code of the enclosing modules, nearest first."""
        while path:
            path = path.rpartition(".")[0]
            if path in self._by_module:
                yield self._by_module[path]

    def site(self, name: str, kind: Any) -> dict[str, Any] | None:
        """A substitute call site for a record: the forward() that produced or consumed it."""
        code = self.of_module(module_of(name, kind)) if kind in _FORWARD_KINDS else None
        return None if code is None else {**forward_site(code), "callers": [], "depth": 0, "tree": 0}


def forward_site(code: ForwardCode) -> dict[str, Any]:
    """A site that spans a function: `last` is its last line."""
    file, first, last = code.forward
    return {"file": file, "line": first, "last": last, "function": code.function}


def _parse_code(entries: list[Any]) -> Iterator[tuple[str, ForwardCode]]:
    """Skips malformed entries: the metadata is untrusted."""
    for entry in entries:
        forward = _parse_range(entry.get("forward")) if isinstance(entry, dict) else None
        if forward is not None:
            code = ForwardCode(str(entry.get("function", "")), forward, _parse_range(entry.get("class")))
            yield from ((path, code) for path in entry.get("modules") or () if isinstance(path, str))


def _parse_range(value: Any) -> LineRange | None:
    match value:
        case [str(file), int(first), int(last)]:
            return LineRange(file, first, last)
    return None
