"""The parts of a trace file as a reader finds them, of ours and of others with the same three datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.formats.hdf5.schema import (
    COMPANIONS,
    ITERATIONS,
    POSITIONS,
    RANKS,
    SHAPES,
    VERSION,
    has_padding,
    is_companion,
    is_dataset,
    is_text,
    name_of,
    part_of,
)
from tensortap.formats.hdf5.values import Array, Form, restore

_Reading = Callable[["StoredPart", slice], list[Any]]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One dataset of a name, and how many of its rows are whole."""

    key: str
    form: Form
    count: int
    shape: tuple[int, ...]
    first: Any
    last: Any

    def row(self, name: str) -> list[str]:
        """For a table."""
        steps = str(self.first) if self.count < 2 else f"{self.first} .. {self.last}"
        sizes = "x".join(map(str, self.shape[1:]))
        return [name, str(self.count), steps if self.count else "", self.form.dtype or self.form.kind, sizes]


def find_parts(file: Any) -> dict[str, list[StoredPart]]:
    """Every name with its parts, the first one first."""
    is_ours = VERSION in file.attrs
    found: dict[str, list[StoredPart]] = {}
    for key in sorted(_keys(file, is_ours), key=part_of):
        name = name_of(key) if is_ours else key
        found.setdefault(name, []).append(_part(file, key))
    return found


def _keys(file: Any, is_ours: bool) -> list[str]:
    if is_ours:
        # A commit that was cut short may leave a name in two tables, of which either would do.
        return [key for key in dict.fromkeys(file) if not is_companion(key) and key + ITERATIONS in file]
    keys: list[str] = []
    file.visititems(lambda key, found: keys.append(key) if is_dataset(found) else None)
    return [key for key in keys if key + ITERATIONS in keys]


def _part(file: Any, key: str) -> StoredPart:
    values, iterations = file[key], file[key + ITERATIONS]
    # A commit may have come between reading the one and the other.
    count = min(len(file[key + suffix]) for suffix in ("", *COMPANIONS) if key + suffix in file)
    ends = [_numbers(iterations, slice(row, row + 1))[0] for row in (0, count - 1)] if count else [None, None]
    return StoredPart(key, _form(values), count, (count, *values.shape[1:]), *ends)


def _form(values: Any) -> Form:
    facts = {name: str(values.attrs[name]) for name in ("kind", "framework", "dtype") if name in values.attrs}
    if "kind" not in facts:
        return Form("text") if is_text(values) else Form("numbers", "numpy", str(values.dtype))
    return Form(facts["kind"], facts["framework"], facts["dtype"])  # type: ignore[arg-type]


class Rows:
    """The values of a name in their order, whichever part they lie in."""

    def __init__(self, file: Any, parts: list[StoredPart]) -> None:
        self._file, self._parts = file, parts
        self._places = _places(file, parts) if len(parts) > 1 else None

    def values(self, rows: slice) -> list[Any]:
        return self._gathered(rows, self._values_of)

    def steps(self, rows: slice) -> list[Any]:
        return self._gathered(rows, lambda part, within: _numbers(self._file[part.key + ITERATIONS], within))

    def ranks(self, rows: slice) -> list[Any]:
        return self._gathered(rows, self._ranks_of)

    def _gathered(self, rows: slice, read: _Reading) -> list[Any]:
        if self._places is None:
            return _span(self._parts[0], range(self._parts[0].count)[rows], read)
        wanted = self._places[rows]
        found: list[Any] = [None] * len(wanted)
        for number, part in enumerate(self._parts):
            (here,) = np.nonzero(wanted[:, 0] == number)
            within = wanted[here, 1]
            if len(here):
                low, high = int(within.min()), int(within.max()) + 1
                together = _span(part, range(low, high), read)
                for place, row in zip(here.tolist(), within.tolist(), strict=True):
                    found[place] = together[row - low]
        return found

    def _values_of(self, part: StoredPart, rows: slice) -> list[Any]:
        array = self._file[part.key][rows]
        if part.form.framework == "python" and part.form.kind == "numbers":
            return list(np.asarray(array).tolist())
        shapes = self._file[part.key + SHAPES][rows] if part.key + SHAPES in self._file else None
        if shapes is None:
            return [restore(row, part.form) for row in array]
        cut = (row[tuple(map(slice, shape))] for row, shape in zip(array, shapes, strict=True))
        return [restore(row, part.form) for row in cut]

    def _ranks_of(self, part: StoredPart, rows: slice) -> list[Any]:
        if part.key + RANKS not in self._file:
            return [0] * len(range(part.count)[rows])
        return _numbers(self._file[part.key + RANKS], rows)


def _span(part: StoredPart, rows: range, read: _Reading) -> list[Any]:
    """Evenly spaced rows in one reading; the library goes forwards only."""
    if not rows:
        return []
    if rows.step < 0:
        return _span(part, rows[::-1], read)[::-1]
    return read(part, slice(rows.start, rows.stop, rows.step))


def _places(file: Any, parts: list[StoredPart]) -> Array:
    """For each value: the part and the row in it. The first part has what the others left."""
    total = sum(part.count for part in parts)
    later = [file[part.key + POSITIONS][: part.count] for part in parts[1:]]
    highest = max((int(positions[-1]) + 1 for positions in later if len(positions)), default=0)
    places = np.full((max(total, highest), 2), -1, np.int64)
    for number, positions in enumerate(later, 1):
        places[positions] = np.stack([np.full(len(positions), number), np.arange(len(positions))], 1)
    free = np.flatnonzero(places[:, 0] < 0)[: parts[0].count]
    places[free] = np.stack([np.zeros(len(free), np.int64), np.arange(len(free))], 1)
    whole: Array = places[places[:, 0] >= 0]
    return whole


def _numbers(dataset: Any, rows: slice) -> list[Any]:
    """A number for each row, or a tuple where several values were stacked."""
    array = dataset[rows]
    if array.ndim == 1:
        return list(array.tolist())
    padding = dataset.fillvalue if has_padding(dataset) else None
    return [_tuple(row, padding) for row in array]


def _tuple(row: Array, padding: Any) -> tuple[Any, ...]:
    if row.ndim > 1:
        inner = (_tuple(one, padding) for one in row)
        return tuple(one for one in inner if one)
    if padding is None:
        return tuple(row.tolist())
    filled = np.flatnonzero(row != padding)
    return tuple(row[: filled[-1] + 1].tolist()) if len(filled) else ()
