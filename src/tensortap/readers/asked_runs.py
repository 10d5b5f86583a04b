"""Runs as a query sees them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.readers.glance import Glance
from tensortap.readers.query import parse

Array = np.ndarray[Any, Any]
_OTHER_NAMES = {"since": "started", "before": "started", "captures": "records"}


class AskedRuns:
    """Texts and numbers of every run."""

    def __init__(self, runs: list[Glance]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def texts(self, field: str) -> tuple[Array, list[Any]] | None:
        told = [run.path.name if field == "name" else getattr(run, field, "") for run in self._runs]
        return np.arange(len(told)), [text if isinstance(text, str) else "" for text in told]

    def numbers(self, field: str) -> Array | None:
        told = [getattr(run, _OTHER_NAMES.get(field, field), None) for run in self._runs]
        told = [len(one) if isinstance(one, tuple) else one for one in told]
        return np.array([one if isinstance(one, int | float) else np.nan for one in told], np.float64)


def runs_where(runs: list[Glance], query: str) -> list[Glance]:
    """Those that a query means: `command:train.py steps>100 nan:0`."""
    mask = parse(query).mask(AskedRuns(runs))
    return [run for run, is_meant in zip(runs, mask.tolist(), strict=True) if is_meant]
