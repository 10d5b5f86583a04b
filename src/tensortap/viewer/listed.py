"""The list of runs as a query sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_STRING_FIELDS = {
    "state": "state",
    "command": "command",
    "commit": "commit",
    "branch": "branch",
    "model": "model",
}
_NUMERIC_FIELDS = {"captures": "captures", "nbytes": "bytes", "since": "modified", "before": "modified"}


class RunListTable:
    """Each run is a row; a bare word looks at its name, folder, command and model together."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        if field == "name":
            parts = ("folder", "name", "command", "model", "branch", "commit")
            cells = ["/".join(str(run[part]) for part in parts) for run in self._runs]
        elif field == "tag":
            cells = [" ".join(f"{key}={value}" for key, value in run["tags"].items()) for run in self._runs]
        elif field in _STRING_FIELDS:
            cells = [str(run[_STRING_FIELDS[field]]) for run in self._runs]
        else:
            return None
        return np.arange(len(cells)), cells

    def numbers(self, field: str) -> Array | None:
        if field == "steps":
            return np.array([run["steps"]["count"] for run in self._runs], np.float64)
        if field in ("nan", "inf"):
            return np.array([run["health"][field] for run in self._runs], np.float64)
        if field not in _NUMERIC_FIELDS:
            return None
        values = [run[_NUMERIC_FIELDS[field]] for run in self._runs]
        return np.array([np.nan if value is None else value for value in values], np.float64)
