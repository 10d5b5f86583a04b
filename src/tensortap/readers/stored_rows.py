"""Records of a run as display rows, from their statistics: no array is loaded, torch is not needed."""

from __future__ import annotations

from dataclasses import replace

from tensortap.core.errors import TensortapError
from tensortap.core.record import Record
from tensortap.readers.stored import StoredRecord
from tensortap.render.value_rows import ValueRow, value_row

UNREADABLE = "cannot be read"  # start of the note of a row without its value
_SMALL = 4096  # bytes: a number, or a few of them


def display_row(record: StoredRecord) -> ValueRow:
    """The display row of a record; if it cannot be read, the note says why."""
    row = ValueRow(record.name, record.kind, record.step, record.rank, record.call)
    try:
        stats = record.statistics
        if stats is None:
            return _non_array_row(record, row)
    except (TensortapError, OSError, ValueError) as error:
        return replace(row, dtype=record.dtype or record.type, note=f"{UNREADABLE}: {error}")
    note = "absolute values" if record.dtype.startswith("complex") else "" if stats.count else "empty"
    return replace(
        row,
        dtype=record.dtype,
        shape=record.shape,
        device=record.device,
        low=stats.min,
        high=stats.max,
        mean=stats.mean,
        sigma=stats.std,
        nan=stats.nan,
        inf=stats.inf,
        count=stats.count,
        note=note,
    )


def _non_array_row(record: StoredRecord, row: ValueRow) -> ValueRow:
    """A small value is loaded, since it may be a number; a larger one is shown by its class."""
    if record.nbytes <= _SMALL and record.framework == "python":
        return value_row(Record(row.name, record.load(), row.kind, row.step, row.rank, row.call))
    return replace(row, dtype=record.dtype or record.type, shape=record.shape if record.dtype else None)
