"""A cache of computed statistics, beside the index."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.kernels.statistics import Statistics, statistics


class StatisticsCache:
    """An append-only JSONL file of `[key, row]`; for a read-only run nothing is cached on disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "statistics.jsonl"
        self._cached: dict[str, Statistics] | None = None

    def get(self, key: str, bits: Callable[[], np.ndarray[Any, Any]], dtype: str) -> Statistics:
        cached = self._load()
        if key not in cached:
            cached[key] = statistics(bits(), dtype)
            self._append(key, list(astuple(cached[key])))
        return cached[key]

    def _load(self) -> dict[str, Statistics]:
        if self._cached is None:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
            self._cached = dict(filter(None, map(_parse_line, lines)))
        return self._cached

    def _append(self, key: str, row: list[Any]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(fd, json.dumps([key, row]).encode() + b"\n")
            finally:
                os.close(fd)


def _parse_line(line: bytes) -> tuple[str, Statistics] | None:
    """The entry of a line, or None if it is damaged; its statistics are computed again."""
    try:
        key, row = json.loads(line)
        return str(key), Statistics(*row)
    except (ValueError, TypeError):
        return None
