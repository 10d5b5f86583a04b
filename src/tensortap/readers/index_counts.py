"""Count what a run holds from the columns of its index, with numpy: for runs of any length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.formats.index import nonfinite_counts
from tensortap.formats.index_columns import IndexColumns
from tensortap.formats.run_layout import CACHE_FOLDER, INTERNAL_FOLDER

# How stored statistics without NaN and Inf end, which need not be parsed; lists are of version 0.1.
_ALL_FINITE = ('"nan": 0, "inf": 0}', ", 0, 0]")


def count_columns(path: Path) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Counts by field, the byte where the last value of each file ends, and problems of the index."""
    columns = IndexColumns(path / INTERNAL_FOLDER, path / INTERNAL_FOLDER / CACHE_FOLDER)
    times = columns.plain["time"]
    known = times[times > 0]
    counts = {
        "steps": distinct_numbers(columns, "step"),
        "ranks": distinct_numbers(columns, "rank"),
        "records": len(columns),
        "names": len(columns.coded["name"].texts),
        "nbytes": int(columns.plain["nbytes"].sum()),
        "started": float(known.min()) if len(known) else None,
        **_count_nonfinite(columns),
    }
    return counts, file_ends(columns), list(columns.problems)


def distinct_numbers(columns: IndexColumns, name: str) -> tuple[int, ...]:
    """The distinct steps or ranks, sorted; a record merged from several counts for each."""
    merged_column = columns.coded[f"odd_{name}"]
    is_plain = np.array([text is None for text in merged_column.texts], bool)
    plain = (
        columns.plain[name][is_plain[merged_column.codes]]
        if len(merged_column.codes)
        else columns.plain[name]
    )
    merged = (json.loads(text) for text in merged_column.texts if text is not None)
    merged_numbers = {
        number for entry in merged for number in (entry if isinstance(entry, list) else [entry])
    }
    return tuple(sorted({*np.unique(plain).tolist(), *merged_numbers}))


def _count_nonfinite(columns: IndexColumns) -> dict[str, int]:
    column = columns.coded["statistics"]
    occurrences = np.bincount(column.codes, minlength=len(column.texts)).tolist()
    written = [
        (count, text) for count, text in zip(occurrences, column.texts, strict=True) if text is not None
    ]
    nonfinite = [
        (count, *nonfinite_counts(json.loads(text)))
        for count, text in written
        if not text.endswith(_ALL_FINITE)
    ]
    return {
        "known": sum(count for count, _ in written),
        "nan": sum(count for count, nan, _ in nonfinite if nan),
        "inf": sum(count for count, _, inf in nonfinite if inf),
    }


def file_ends(columns: IndexColumns) -> dict[str, int]:
    """The byte where the last value of each file ends."""
    files = columns.coded["file"]
    last_bytes = np.zeros(len(files.texts), np.int64)
    np.maximum.at(last_bytes, files.codes, columns.plain["start"] + columns.plain["length"])
    return dict(zip(files.texts, last_bytes.tolist(), strict=True))
