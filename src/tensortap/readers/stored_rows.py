"""The records of a run as rows for the eyes, by their statistics: arrays are not loaded, torch not needed."""

from __future__ import annotations

from dataclasses import replace

from tensortap.core.errors import TensortapError
from tensortap.core.record import Record
from tensortap.formats.rows import Row, row_of
from tensortap.readers.stored import Stored

UNREADABLE = "cannot be read"  # so begins the note of a row without its value
_SMALL = 4096  # bytes: a number, or a few of them


def stored_row(stored: Stored) -> Row:
    """The row of a record; one that cannot be read gives a row whose note says why."""
    row = Row(stored.name, stored.kind, stored.step, stored.rank, stored.call)
    try:
        found = stored.statistics
        if found is None:
            return _of_other(stored, row)
    except (TensortapError, OSError, ValueError) as error:
        return replace(row, dtype=stored.dtype or stored.type, note=f"{UNREADABLE}: {error}")
    note = "absolute values" if stored.dtype.startswith("complex") else "" if found.count else "empty"
    return replace(
        row,
        dtype=stored.dtype,
        shape=stored.shape,
        device=stored.device,
        low=found.min,
        high=found.max,
        mean=found.mean,
        sigma=found.std,
        nan=found.nan,
        inf=found.inf,
        count=found.count,
        note=note,
    )


def _of_other(stored: Stored, row: Row) -> Row:
    """A small one is read, for it may be a number; of a larger one the class is told."""
    if stored.nbytes <= _SMALL and stored.framework == "python":
        return row_of(Record(row.name, stored.load(), row.kind, row.step, row.rank, row.call))
    return replace(row, dtype=stored.dtype or stored.type, shape=stored.shape if stored.dtype else None)
