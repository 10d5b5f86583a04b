"""Select runs by a query over their summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensortap.readers.listing import RunSummary
from tensortap.readers.query.parser import parse_query

Array = np.ndarray[Any, Any]
_ATTRIBUTE_OF_FIELD = {"captures": "records"}


class RunTable:
    """String and number columns, a row per run. A bare word is looked for in `names`, by default the names of
    the folders."""

    def __init__(self, runs: Sequence[RunSummary], names: Sequence[str] | None = None) -> None:
        self._runs = runs
        self._names = [run.path.name for run in runs] if names is None else names

    def __len__(self) -> int:
        return len(self._runs)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        if field == "name":
            values = list(self._names)
        elif field == "tag":
            values = [" ".join(f"{key}={value}" for key, value in run.tags.items()) for run in self._runs]
        else:
            values = [getattr(run, field, "") for run in self._runs]
        return np.arange(len(values)), [value if isinstance(value, str) else "" for value in values]

    def numbers(self, field: str) -> Array | None:
        if field in ("since", "before"):
            values = [run.modified if run.started is None else run.started for run in self._runs]
        else:
            values = [getattr(run, _ATTRIBUTE_OF_FIELD.get(field, field), None) for run in self._runs]
        values = [len(value) if isinstance(value, tuple) else value for value in values]
        return np.array([value if isinstance(value, int | float) else np.nan for value in values], np.float64)


def filter_runs(runs: list[RunSummary], query: str) -> list[RunSummary]:
    """The runs that match a query such as `command:train.py steps>100 nan:0`."""
    return [runs[index] for index in matching_runs(runs, query)]


def matching_runs(runs: Sequence[RunSummary], query: str, names: Sequence[str] | None = None) -> list[int]:
    """Positions of the runs that match a query; a bare word is looked for in `names`."""
    positions: list[int] = np.flatnonzero(parse_query(query).mask(RunTable(runs, names))).tolist()
    return positions
