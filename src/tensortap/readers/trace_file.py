"""A trace in an HDF5 file, read lazily, also while it is being written: its names and their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tensortap.core.errors import CorruptRunError, NoRunError, UnknownNameError
from tensortap.core.patterns import closest_names, matches_pattern, natural_sort_key
from tensortap.core.record import Series
from tensortap.formats.hdf5.reader import DatasetRows, StoredDataset, find_datasets
from tensortap.formats.hdf5.schema import load_filters, open_file
from tensortap.render import html
from tensortap.render.text import format_table

T = TypeVar("T")
_SHOWN = 20
_ATTEMPTS = 8
# What h5py raises when a commit came between two of its reads.
_TORN_READ_ERRORS = (OSError, KeyError, RuntimeError, ValueError)


class TraceFile:
    """The names in a trace file and their values; `refresh` looks for what was written since.

    >>> trace = tt.TraceFile("trace.h5")
    >>> trace.names
    >>> trace.load("forward.x").values      # all of them, with their steps and ranks
    >>> trace["forward.x"][-1]              # one of them; the others are not read
    >>> trace.filter("layers.*.scores")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._patterns: tuple[str, ...] = ()
        self._parts: dict[str, list[StoredDataset]] = {}
        self.refresh()

    @property
    def names(self) -> list[str]:
        """Every name once; numbers in names sort as numbers."""
        return sorted(self._parts, key=natural_sort_key)

    def refresh(self) -> int:
        """Look again; return how many values there are. A file that has been replaced is read anew."""
        parts_by_name = self._read(find_datasets)
        self._parts = {name: parts for name, parts in parts_by_name.items() if self._selects(name)}
        return len(self)

    def filter(self, path: str) -> TraceFile:
        """The names that a pattern in the grammar of `tt.capture` selects, now and after a refresh."""
        narrowed = TraceFile.__new__(TraceFile)
        narrowed.path, narrowed._patterns = self.path, (*self._patterns, path)
        narrowed._parts = {name: parts for name, parts in self._parts.items() if matches_pattern(path, name)}
        return narrowed

    def load(self, name: str) -> Series:
        """All values of that name with their steps and ranks, as they were when they were traced: torch
        tensors where they were torch tensors, else numpy arrays and Python's own."""
        return self[name].series(slice(None))

    def __getitem__(self, name: str) -> TracedValues:
        if name not in self._parts:
            raise UnknownNameError(self._describe_unknown(name))
        return TracedValues(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        """The number of values of all names."""
        return sum(part.count for parts in self._parts.values() for part in parts)

    def __repr__(self) -> str:
        return "\n".join([self._headline(), format_table(self._table())])

    def _repr_html_(self) -> str:
        return html.table(self._table(), self._headline())

    def _headline(self) -> str:
        return f"trace {self.path}: {len(self)} values of {len(self._parts)} names"

    def _table(self) -> list[list[str]]:
        names = self.names
        rows = [part.row(name) for name in names[:_SHOWN] for part in self._parts[name]]
        more = [[f"... {len(names) - _SHOWN} more", *[""] * 4]] if len(names) > _SHOWN else []
        return [["name", "values", "iterations", "dtype", "shape"], *rows, *more]

    def _selects(self, name: str) -> bool:
        return all(matches_pattern(pattern, name) for pattern in self._patterns)

    def _describe_unknown(self, name: str) -> str:
        near = closest_names(name, self._parts)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"no values of {name!r} in {self.path}; {hint}names lists all {len(self._parts)}"

    def _read(self, action: Callable[[Any], T]) -> T:
        """Run on a newly opened file: the HDF5 library never re-reads tables it has cached."""
        if not self.path.is_file():
            problem = "is a folder" if self.path.is_dir() else "does not exist"
            raise NoRunError(f"{self.path} {problem}; give the HDF5 file of a trace")
        for attempt in range(_ATTEMPTS):
            try:
                with open_file(self.path) as file:
                    return action(file)
            except _TORN_READ_ERRORS as error:
                if attempt == _ATTEMPTS - 1:
                    raise CorruptRunError(f"{self.path} cannot be read as HDF5: {_reason(error)}") from error
                load_filters()
        raise AssertionError("unreachable")


class TracedValues:
    """All values of one name, read on demand: `[i]` is a value, `[i:j]` a Series."""

    def __init__(self, trace: TraceFile, name: str) -> None:
        self.name = name
        self._trace = trace

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dataset: the number of values, then the largest size of each axis."""
        return self._parts[0].shape

    @property
    def dtype(self) -> str:
        """The type that the values had when they were traced."""
        return self._parts[0].form.dtype

    @property
    def steps(self) -> list[Any]:
        return self._trace._read(lambda file: self._rows(file).steps(slice(None)))

    @property
    def iterations(self) -> list[Any]:
        return self.steps

    @property
    def ranks(self) -> list[Any]:
        return self._trace._read(lambda file: self._rows(file).ranks(slice(None)))

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return self.series(position)
        row = range(len(self))[position]
        return self._trace._read(lambda file: self._rows(file).values(slice(row, row + 1)))[0]

    def series(self, rows: slice) -> Series:
        """Those values with their steps and ranks."""
        return self._trace._read(lambda file: self._series(file, rows))

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __repr__(self) -> str:
        return f"<{self.name!r} in {self._trace.path}: {len(self)} values, {self.dtype} {list(self.shape)}>"

    @property
    def _parts(self) -> list[StoredDataset]:
        return self._trace._parts[self.name]

    def _series(self, file: Any, rows: slice) -> Series:
        all_rows = self._rows(file)
        return Series(self.name, all_rows.values(rows), all_rows.steps(rows), all_rows.ranks(rows))

    def _rows(self, file: Any) -> DatasetRows:
        return DatasetRows(file, self._parts)


def _reason(error: Exception) -> str:
    text = str(error.args[0] if error.args else error)
    if "filter" in text:
        return f"{text}; a filter may be missing, so: pip install hdf5plugin"
    return text
