"""The datasets of a trace file as a reader finds them, ours and foreign ones with the same three datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.formats.hdf5.schema import (
    COMPANION_SUFFIXES,
    ITERATIONS,
    POSITIONS,
    RANKS,
    SHAPES,
    VERSION_ATTRIBUTE,
    decode_key,
    has_fill_value,
    is_companion,
    is_dataset,
    is_string_dataset,
    part_number,
)
from tensortap.formats.hdf5.values import Array, StoredForm, decode_cell

_RowReader = Callable[["StoredDataset", slice], list[Any]]


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """One dataset of a name, and how many of its rows are complete."""

    key: str
    form: StoredForm
    count: int
    shape: tuple[int, ...]
    first: Any
    last: Any

    def row(self, name: str) -> list[str]:
        """For a table."""
        steps = str(self.first) if self.count < 2 else f"{self.first} .. {self.last}"
        sizes = "x".join(map(str, self.shape[1:]))
        return [name, str(self.count), steps if self.count else "", self.form.dtype or self.form.kind, sizes]


def find_datasets(file: Any) -> dict[str, list[StoredDataset]]:
    """The datasets of every name, the first one first."""
    is_ours = VERSION_ATTRIBUTE in file.attrs
    by_name: dict[str, list[StoredDataset]] = {}
    for key in sorted(_value_keys(file, is_ours), key=part_number):
        name = decode_key(key) if is_ours else key
        by_name.setdefault(name, []).append(_open_dataset(file, key))
    return by_name


def _value_keys(file: Any, is_ours: bool) -> list[str]:
    if is_ours:
        # An interrupted commit may leave a name in two tables; either is valid.
        return [key for key in dict.fromkeys(file) if not is_companion(key) and key + ITERATIONS in file]
    keys: list[str] = []
    file.visititems(lambda key, node: keys.append(key) if is_dataset(node) else None)
    return [key for key in keys if key + ITERATIONS in keys]


def _open_dataset(file: Any, key: str) -> StoredDataset:
    values, iterations = file[key], file[key + ITERATIONS]
    # A commit may have happened between the two reads.
    count = min(len(file[key + suffix]) for suffix in ("", *COMPANION_SUFFIXES) if key + suffix in file)
    ends = (
        [_read_numbers(iterations, slice(row, row + 1))[0] for row in (0, count - 1)]
        if count
        else [None, None]
    )
    return StoredDataset(key, _read_form(values), count, (count, *values.shape[1:]), *ends)


def _read_form(values: Any) -> StoredForm:
    facts = {name: str(values.attrs[name]) for name in ("kind", "framework", "dtype") if name in values.attrs}
    if "kind" not in facts:
        return (
            StoredForm("text")
            if is_string_dataset(values)
            else StoredForm("numbers", "numpy", str(values.dtype))
        )
    return StoredForm(facts["kind"], facts["framework"], facts["dtype"])  # type: ignore[arg-type]


class DatasetRows:
    """The values of a name in order, across its datasets."""

    def __init__(self, file: Any, parts: list[StoredDataset]) -> None:
        self._file, self._parts = file, parts
        self._locations = _row_locations(file, parts) if len(parts) > 1 else None

    def values(self, rows: slice) -> list[Any]:
        return self._gather(rows, self._values_of)

    def steps(self, rows: slice) -> list[Any]:
        return self._gather(
            rows, lambda part, within: _read_numbers(self._file[part.key + ITERATIONS], within)
        )

    def ranks(self, rows: slice) -> list[Any]:
        return self._gather(rows, self._ranks_of)

    def _gather(self, rows: slice, read: _RowReader) -> list[Any]:
        if self._locations is None:
            return _read_range(self._parts[0], range(self._parts[0].count)[rows], read)
        locations = self._locations[rows]
        values: list[Any] = [None] * len(locations)
        for number, part in enumerate(self._parts):
            (here,) = np.nonzero(locations[:, 0] == number)
            within = locations[here, 1]
            if len(here):
                low, high = int(within.min()), int(within.max()) + 1
                together = _read_range(part, range(low, high), read)
                for position, row in zip(here.tolist(), within.tolist(), strict=True):
                    values[position] = together[row - low]
        return values

    def _values_of(self, part: StoredDataset, rows: slice) -> list[Any]:
        array = self._file[part.key][rows]
        if part.form.framework == "python" and part.form.kind == "numbers":
            return list(np.asarray(array).tolist())
        shapes = self._file[part.key + SHAPES][rows] if part.key + SHAPES in self._file else None
        if shapes is None:
            return [decode_cell(row, part.form) for row in array]
        cut = (row[tuple(map(slice, shape))] for row, shape in zip(array, shapes, strict=True))
        return [decode_cell(row, part.form) for row in cut]

    def _ranks_of(self, part: StoredDataset, rows: slice) -> list[Any]:
        if part.key + RANKS not in self._file:
            return [0] * len(range(part.count)[rows])
        return _read_numbers(self._file[part.key + RANKS], rows)


def _read_range(part: StoredDataset, rows: range, read: _RowReader) -> list[Any]:
    """Evenly spaced rows in one read; h5py only reads forwards."""
    if not rows:
        return []
    if rows.step < 0:
        return _read_range(part, rows[::-1], read)[::-1]
    return read(part, slice(rows.start, rows.stop, rows.step))


def _row_locations(file: Any, parts: list[StoredDataset]) -> Array:
    """For each value: the dataset and the row in it. The first dataset holds what the others do not."""
    total = sum(part.count for part in parts)
    later = [file[part.key + POSITIONS][: part.count] for part in parts[1:]]
    highest = max((int(positions[-1]) + 1 for positions in later if len(positions)), default=0)
    locations = np.full((max(total, highest), 2), -1, np.int64)
    for number, positions in enumerate(later, 1):
        locations[positions] = np.stack([np.full(len(positions), number), np.arange(len(positions))], 1)
    free = np.flatnonzero(locations[:, 0] < 0)[: parts[0].count]
    locations[free] = np.stack([np.zeros(len(free), np.int64), np.arange(len(free))], 1)
    located: Array = locations[locations[:, 0] >= 0]
    return located


def _read_numbers(dataset: Any, rows: slice) -> list[Any]:
    """One number per row, or a tuple if several values were stacked."""
    array = dataset[rows]
    if array.ndim == 1:
        return list(array.tolist())
    padding = dataset.fillvalue if has_fill_value(dataset) else None
    return [_strip_padding(row, padding) for row in array]


def _strip_padding(row: Array, padding: Any) -> tuple[Any, ...]:
    if row.ndim > 1:
        inner = (_strip_padding(inner_row, padding) for inner_row in row)
        return tuple(stripped for stripped in inner if stripped)
    if padding is None:
        return tuple(row.tolist())
    filled = np.flatnonzero(row != padding)
    return tuple(row[: filled[-1] + 1].tolist()) if len(filled) else ()
