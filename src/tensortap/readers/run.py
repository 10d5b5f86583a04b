"""A run on disk, read lazily: which records it holds, what they are, and their values."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Container, Iterator
from functools import cached_property, partial
from operator import index
from pathlib import Path
from typing import Any, overload

import numpy as np

from tensortap.core.errors import CorruptRunError, NoRunError, UnknownNameError
from tensortap.core.patterns import closest_names, natural_sort_key, parse_pattern
from tensortap.core.record import Kind, Series, first_number
from tensortap.formats.index_columns import IndexColumns
from tensortap.formats.run_layout import CACHE_FOLDER, ENVIRONMENT_FILE, INTERNAL_FOLDER, MODEL_FILE
from tensortap.metadata.source_archive import CODE_FOLDER, SOURCES_FILE, read_archive
from tensortap.readers.query.parser import parse_query
from tensortap.readers.query.tables import IndexTable
from tensortap.readers.stored_record import StatisticsCache, StoredRecord, ValueReader
from tensortap.render import html
from tensortap.render.text import format_nbytes, format_table

_SHOWN = 20
_METADATA = ("runtime_info", "packages", "git_info")
_UNREADABLE = "{path} is not whole ({error}); the values of the run can still be read"


class Run:
    """The records of a run directory; readable while it is still being written.

    >>> run = tt.Run("experiments/20251028_143041")
    >>> run.names
    >>> run.load("layer1_output")
    >>> for stored in run.filter("layers.*.out", step=3): stored.statistics
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / INTERNAL_FOLDER).is_dir():
            raise NoRunError(_describe_no_run(self.path))
        own = self.path / INTERNAL_FOLDER
        self._columns = IndexColumns(own, own / CACHE_FOLDER)
        self._values = ValueReader(self.path)
        self._statistics = StatisticsCache(own / CACHE_FOLDER)
        self._rows: np.ndarray[Any, Any] | None = None

    def filter(
        self,
        path: str | None = None,
        *,
        step: int | None = None,
        rank: int | None = None,
        kind: Kind | None = None,
    ) -> Run:
        """The records that match all that is given, as of now.

        `path` is a name, or a pattern in the grammar of `tt.capture`. It is held against names alone, so
        `*` may stand for a parameter too, and a class for nothing:

        >>> run.filter("layers.*.attn")       # and its parts: layers.0.attn[1]
        >>> run.filter("layers.0-5.attn.in")  # the inputs
        >>> run.filter("**.attn@2")           # the third call in each step
        >>> run.filter("!**.grad")            # everything but
        """
        mask = np.ones(len(self._columns), bool)
        if path is not None:
            mask &= self._mask_matching(path)
        if kind is not None:
            mask &= self._columns.coded["kind"].mask_equal(kind)
        for column, wanted in (("step", step), ("rank", rank)):
            if wanted is not None:
                mask &= self._columns.plain[column] == wanted
        return self._select_rows(np.flatnonzero(mask) if self._rows is None else self._rows[mask[self._rows]])

    def query(self, text: str) -> Run:
        """The records that a query means, as on the page and the command line: words, and what they ask.

        >>> run.query("attn step>137 dtype:bf16 -rank:0")

        Of statistics, those count that were written with the values (`stats=True`).
        """
        rows = np.flatnonzero(parse_query(text).mask(IndexTable(self._columns)))
        return self._select_rows(rows if self._rows is None else np.intersect1d(rows, self._rows))

    @property
    def columns(self) -> IndexColumns:
        """The in-memory index of all records, also of those filtered out; for bulk readers."""
        return self._columns

    @property
    def names(self) -> list[str]:
        """Every name once; numbers in names sort as numbers."""
        column = self._columns.coded["name"]
        codes = column.codes if self._rows is None else column.codes[self._rows]
        return sorted((column.texts[code] for code in np.unique(codes)), key=natural_sort_key)

    def load(
        self,
        name: str,
        *,
        step: int | None = None,
        rank: int | None = None,
        call: int | None = None,
        trust: bool = False,
    ) -> Any:
        """The latest value of that name, of the lowest rank that has it; `call=0` is the first of the name
        in its step. Nothing is copied before it is touched; writing to it changes no file, but shows in
        what this `Run` loads later."""
        return self.find(name, step=step, rank=rank, call=call).load(trust=trust)

    def find(
        self, name: str, *, step: int | None = None, rank: int | None = None, call: int | None = None
    ) -> StoredRecord:
        """The record that `load` would read."""
        records = self._records_named(name)
        wanted = {
            key: number
            for key, number in (("step", step), ("rank", rank), ("call", call))
            if number is not None
        }
        if wanted:
            records = [
                record
                for record in records
                if all(_includes(getattr(record, key), number) for key, number in wanted.items())
            ]
        if len(records) == 1:
            return records[0]
        if not records:
            raise UnknownNameError(self._describe_unknown(name, wanted))
        # By time, because forked processes of one rank write an index each.
        return min(reversed(records), key=lambda record: (first_number(record.rank), -record.time))

    def series(self, name: str) -> Series:
        """All values of that name, in the order of steps."""
        records = sorted(
            self._records_named(name),
            key=lambda record: (first_number(record.step), record.order, first_number(record.rank)),
        )
        if not records:
            raise UnknownNameError(self._describe_unknown(name, {}))
        values = [record.load() for record in records]
        return Series(name, values, [record.step for record in records], [record.rank for record in records])

    def cells(self, *, without: Container[str] = ()) -> dict[str, list[Any]]:
        """Every fact of every record, as a list for each column of the index; texts of some need not be."""
        return self._columns.cells(self._rows, without)

    @property
    def is_narrowed(self) -> bool:
        """Whether these are some records of a run, chosen by `filter`."""
        return self._rows is not None

    def refresh(self) -> int:
        """Look for records that were written since; return how many there are."""
        return self._columns.refresh()

    @property
    def problems(self) -> list[str]:
        """Lines of the index that are damaged; all others are readable."""
        return list(self._columns.problems)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Facts beside values: `runtime_info`, `packages`, `git_info`, `environment`, `model`, `patch`."""
        return {name: read() for name, read in self._metadata_readers().items()}

    def readable_metadata(self) -> tuple[dict[str, Any], dict[str, str]]:
        """As much of `metadata` as can be read, and of each part that cannot what is wrong with it."""
        metadata: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for name, read in self._metadata_readers().items():
            try:
                metadata[name] = read()
            except (CorruptRunError, OSError) as error:
                metadata[name] = b"" if name == "patch" else {}
                problems[name] = str(error)
        return metadata, problems

    def _metadata_readers(self) -> dict[str, Callable[[], Any]]:
        patch = self.path / "project.patch"
        return {
            **{name: partial(_read_json, self.path / f"{name}.json") for name in _METADATA},
            "environment": partial(_read_json, self.path / INTERNAL_FOLDER / ENVIRONMENT_FILE),
            "model": partial(_read_json, self.path / INTERNAL_FOLDER / MODEL_FILE),
            "patch": lambda: patch.read_bytes() if patch.exists() else b"",
        }

    def sources(self) -> dict[str, bytes]:
        """The files of a program that no repository keeps, as they were."""
        path = self.path / INTERNAL_FOLDER / CODE_FOLDER / SOURCES_FILE
        try:
            return read_archive(path) if path.is_file() else {}
        except tarfile.TarError as error:
            raise CorruptRunError(_UNREADABLE.format(path=path, error=error)) from None

    def __len__(self) -> int:
        return len(self._columns) if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[StoredRecord]:
        for row in range(len(self)) if self._rows is None else self._rows:
            yield self._record_at(int(row))

    @overload
    def __getitem__(self, key: str) -> Any: ...

    @overload
    def __getitem__(self, key: int) -> StoredRecord: ...

    def __getitem__(self, key: str | int) -> Any:
        """The value of a name, as `load` gives it, or the record at a position."""
        return self.load(key) if isinstance(key, str) else self._record_at_position(key)

    def _record_at_position(self, position: int) -> StoredRecord:
        try:
            row = range(len(self))[index(position)]
        except IndexError:
            raise IndexError(f"no record {position}; there are {len(self)}, counted from 0") from None
        except TypeError:
            raise TypeError(f"a run is read by a name or the number of a record, not {position!r}") from None
        return self._record_at(row if self._rows is None else int(self._rows[row]))

    def __contains__(self, name: str) -> bool:
        return bool(self._records_named(name))

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def __repr__(self) -> str:
        return "\n".join([self._headline(), format_table(self._table())])

    def _repr_html_(self) -> str:
        return html.table(self._table(), self._headline())

    def _headline(self) -> str:
        names, nbytes = len(self.names), sum(record.nbytes for record in self) if len(self) < 10_000 else None
        size = f", {format_nbytes(nbytes)}" if nbytes is not None else ""
        damaged = f", {len(self.problems)} damaged" if self.problems else ""
        return f"run {self.path}: {len(self)} records of {names} names{size}{damaged}"

    def _table(self) -> list[list[str]]:
        head = ["name", "step", "rank", "dtype", "shape", "size", "file"]
        rows = [self[position].row() for position in range(min(len(self), _SHOWN))]
        more = [[f"... {len(self) - _SHOWN} more", *[""] * 6]] if len(self) > _SHOWN else []
        return [head, *rows, *more]

    def _record_at(self, row: int) -> StoredRecord:
        return StoredRecord(row, self._columns, self._values, self._statistics)

    def _records_named(self, name: str) -> list[StoredRecord]:
        rows = self._columns.coded["name"].rows_equal(name)
        if self._rows is not None:
            rows = np.intersect1d(rows, self._rows)
        return [self._record_at(row) for row in rows.tolist()]

    def _mask_matching(self, path: str) -> np.ndarray[Any, Any]:
        """A boolean mask of the records that a pattern selects; a name that exists is taken literally."""
        names, pattern = self._columns.coded["name"], parse_pattern(path)
        if names.has_text(path):
            return names.mask_equal(path)
        if pattern.excludes:
            return ~self._mask_matching(path.removeprefix("!"))
        if pattern.call is not None:
            mask = self._mask_matching(pattern.body)
            mask &= self._columns.plain["call"] == pattern.call
            return mask
        return names.mask_matching(path)

    def _select_rows(self, rows: np.ndarray[Any, Any]) -> Run:
        narrowed = Run.__new__(Run)
        narrowed.__dict__.update(
            {key: attribute for key, attribute in self.__dict__.items() if key != "metadata"}
        )
        narrowed._rows = rows
        return narrowed

    def _describe_unknown(self, name: str, wanted: dict[str, int]) -> str:
        if name in self:
            conditions = ", ".join(f"{key}={number}" for key, number in wanted.items())
            return f"{name!r} has no record with {conditions}; filter({name!r}) lists what it has"
        near = closest_names(name, self.names)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"no record {name!r} in {self.path}; {hint}names lists all {len(self.names)}"


def _includes(step_or_rank: int | tuple[int, ...], number: int) -> bool:
    """Whether a record's step or rank is that number; a merged record has several."""
    return step_or_rank == number if isinstance(step_or_rank, int) else number in step_or_rank


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(_UNREADABLE.format(path=path, error=error)) from None
    if not isinstance(content, dict):
        raise CorruptRunError(_UNREADABLE.format(path=path, error="it holds no facts"))
    return content


def _describe_no_run(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist; give the folder that init() made"
    runs = sorted(entry.parent.name for entry in path.glob(f"*/{INTERNAL_FOLDER}"))
    if runs:
        return f"{path} is not a run but holds {len(runs)}: {', '.join(runs[-3:])}; give one of them"
    return (
        f"{path} is not a run directory: it has no {INTERNAL_FOLDER} folder; give the folder that init() made"
    )
