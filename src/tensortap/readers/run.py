"""A run on disk, read lazily: which records it holds, what they are, and their values."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Container, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.core.errors import CorruptRunError, NoRunError, UnknownNameError
from tensortap.core.paths import nearest, parse, sort_key
from tensortap.core.record import Kind, Series
from tensortap.formats.columns import Columns
from tensortap.formats.run_layout import CACHE, MODEL, OWN
from tensortap.formats.table import size_words, table_html, table_text
from tensortap.metadata.sources import CODE, SOURCES, kept_files
from tensortap.readers.asked import Asked
from tensortap.readers.query import parse as parse_query
from tensortap.readers.statistics_cache import StatisticsCache
from tensortap.readers.stored import Stored
from tensortap.readers.values import Values

_SHOWN = 20
_METADATA = ("runtime_info", "packages", "git_info")
_NOT_WHOLE = "{path} is not whole ({error}); the values of the run can still be read"


class Run:
    """The records of a run directory; readable while it is still being written.

    >>> run = tt.Run("experiments/20251028_143041")
    >>> run.names
    >>> run.load("layer1_output")
    >>> for stored in run.filter("layers.*.out", step=3): stored.statistics
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / OWN).is_dir():
            raise NoRunError(_no_run(self.path))
        own = self.path / OWN
        self._columns = Columns(own, own / CACHE)
        self._values = Values(self.path)
        self._statistics = StatisticsCache(own / CACHE)
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
            mask &= self._rows_like(path)
        if kind is not None:
            mask &= self._columns.coded["kind"].rows_with(kind)
        for column, wanted in (("step", step), ("rank", rank)):
            if wanted is not None:
                mask &= self._columns.plain[column] == wanted
        return self._narrowed(np.flatnonzero(mask) if self._rows is None else self._rows[mask[self._rows]])

    def query(self, text: str) -> Run:
        """The records that a query means, as on the page and the command line: words, and what they ask.

        >>> run.query("attn step>137 dtype:bf16 -rank:0")

        Of statistics, those count that were written with the values (`stats=True`).
        """
        rows = np.flatnonzero(parse_query(text).mask(Asked(self._columns)))
        return self._narrowed(rows if self._rows is None else np.intersect1d(rows, self._rows))

    @property
    def columns(self) -> Columns:
        """The index as it lies in memory, of all records; for readers that ask many at once."""
        return self._columns

    @property
    def names(self) -> list[str]:
        """Every name once; numbers in names sort as numbers."""
        column = self._columns.coded["name"]
        codes = column.codes if self._rows is None else column.codes[self._rows]
        return sorted((column.texts[code] for code in np.unique(codes)), key=sort_key)

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
    ) -> Stored:
        """The record that `load` would read."""
        found = self._named(name)
        wanted = {
            key: number
            for key, number in (("step", step), ("rank", rank), ("call", call))
            if number is not None
        }
        if wanted:
            found = [one for one in found if all(_is_at(getattr(one, key), at) for key, at in wanted.items())]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UnknownNameError(self._unknown(name, wanted))
        # By time, because forked processes of one rank write an index each.
        return min(reversed(found), key=lambda one: (_first(one.rank), -one.time))

    def series(self, name: str) -> Series:
        """All values of that name, in the order of steps."""
        found = sorted(self._named(name), key=lambda one: (_first(one.step), one.order, _first(one.rank)))
        if not found:
            raise UnknownNameError(self._unknown(name, {}))
        values = [one.load() for one in found]
        return Series(name, values, [one.step for one in found], [one.rank for one in found])

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
        return {name: read() for name, read in self._facts().items()}

    def readable_metadata(self) -> tuple[dict[str, Any], dict[str, str]]:
        """As much of `metadata` as can be read, and of each part that cannot what is wrong with it."""
        told: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for name, read in self._facts().items():
            try:
                told[name] = read()
            except (CorruptRunError, OSError) as error:
                told[name] = b"" if name == "patch" else {}
                problems[name] = str(error)
        return told, problems

    def _facts(self) -> dict[str, Callable[[], Any]]:
        patch = self.path / "project.patch"
        return {
            **{name: partial(_json, self.path / f"{name}.json") for name in _METADATA},
            "environment": partial(_json, self.path / OWN / "environment.json"),
            "model": partial(_json, self.path / OWN / MODEL),
            "patch": lambda: patch.read_bytes() if patch.exists() else b"",
        }

    def sources(self) -> dict[str, bytes]:
        """The files of a program that no repository keeps, as they were."""
        path = self.path / OWN / CODE / SOURCES
        try:
            return kept_files(path)
        except tarfile.TarError as error:
            raise CorruptRunError(_NOT_WHOLE.format(path=path, error=error)) from None

    def __len__(self) -> int:
        return len(self._columns) if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[Stored]:
        for row in range(len(self)) if self._rows is None else self._rows:
            yield self._stored(int(row))

    def __getitem__(self, position: int) -> Stored:
        row = range(len(self))[position]
        return self._stored(row if self._rows is None else int(self._rows[row]))

    def __contains__(self, name: str) -> bool:
        return bool(self._named(name))

    def __repr__(self) -> str:
        return "\n".join([self._headline(), table_text(self._table())])

    def _repr_html_(self) -> str:
        return table_html(self._headline(), self._table())

    def _headline(self) -> str:
        names, nbytes = len(self.names), sum(one.nbytes for one in self) if len(self) < 10_000 else None
        size = f", {size_words(nbytes)}" if nbytes is not None else ""
        damaged = f", {len(self.problems)} damaged" if self.problems else ""
        return f"run {self.path}: {len(self)} records of {names} names{size}{damaged}"

    def _table(self) -> list[list[str]]:
        head = ["name", "step", "rank", "dtype", "shape", "size", "file"]
        rows = [self[position].row() for position in range(min(len(self), _SHOWN))]
        more = [[f"... {len(self) - _SHOWN} more", *[""] * 6]] if len(self) > _SHOWN else []
        return [head, *rows, *more]

    def _stored(self, row: int) -> Stored:
        return Stored(row, self._columns, self._values, self._statistics)

    def _named(self, name: str) -> list[Stored]:
        rows = self._columns.coded["name"].rows_of(name)
        if self._rows is not None:
            rows = np.intersect1d(rows, self._rows)
        return [self._stored(row) for row in rows.tolist()]

    def _rows_like(self, path: str) -> np.ndarray[Any, Any]:
        """A mask of the records that a path selects; a name that exists means itself, however it reads."""
        names, pattern = self._columns.coded["name"], parse(path)
        if names.is_text(path):
            return names.rows_with(path)
        if pattern.excludes:
            return ~self._rows_like(path.removeprefix("!"))
        if pattern.call is not None:
            found = self._rows_like(pattern.body)
            found &= self._columns.plain["call"] == pattern.call
            return found
        return names.rows_like(path)

    def _narrowed(self, rows: np.ndarray[Any, Any]) -> Run:
        narrowed = Run.__new__(Run)
        narrowed.__dict__.update({key: cell for key, cell in self.__dict__.items() if key != "metadata"})
        narrowed._rows = rows
        return narrowed

    def _unknown(self, name: str, wanted: dict[str, int]) -> str:
        if name in self:
            these = ", ".join(f"{key}={number}" for key, number in wanted.items())
            return f"{name!r} has no record with {these}; filter({name!r}) lists what it has"
        near = nearest(name, self.names)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"no record {name!r} in {self.path}; {hint}names lists all {len(self.names)}"


def _first(number: int | tuple[int, ...]) -> int:
    return number if isinstance(number, int) else number[0]


def _is_at(place: int | tuple[int, ...], number: int) -> bool:
    """One that was merged from several steps or ranks is of each."""
    return place == number if isinstance(place, int) else number in place


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(_NOT_WHOLE.format(path=path, error=error)) from None
    if not isinstance(found, dict):
        raise CorruptRunError(_NOT_WHOLE.format(path=path, error="it holds no facts"))
    return found


def _no_run(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist; give the folder that init() made"
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{OWN}"))
    if inside:
        return f"{path} is not a run but holds {len(inside)}: {', '.join(inside[-3:])}; give one of them"
    return f"{path} is not a run directory: it has no {OWN} folder; give the folder that init() made"
