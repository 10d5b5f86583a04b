"""Select runs by a query over their summaries."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.readers.listing import RunSummary
from tensortap.readers.query.parser import parse_query

Array = np.ndarray[Any, Any]
_ATTRIBUTE_OF_FIELD = {"since": "started", "before": "started", "captures": "records"}


class RunTable:
    """String and number columns, a row per run."""

    def __init__(self, runs: list[RunSummary]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        values = [run.path.name if field == "name" else getattr(run, field, "") for run in self._runs]
        return np.arange(len(values)), [value if isinstance(value, str) else "" for value in values]

    def numbers(self, field: str) -> Array | None:
        values = [getattr(run, _ATTRIBUTE_OF_FIELD.get(field, field), None) for run in self._runs]
        values = [len(value) if isinstance(value, tuple) else value for value in values]
        return np.array([value if isinstance(value, int | float) else np.nan for value in values], np.float64)


def filter_runs(runs: list[RunSummary], query: str) -> list[RunSummary]:
    """The runs that match a query such as `command:train.py steps>100 nan:0`."""
    mask = parse_query(query).mask(RunTable(runs))
    return [run for run, is_selected in zip(runs, mask.tolist(), strict=True) if is_selected]
