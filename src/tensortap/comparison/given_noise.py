"""What a user gives to measure differences by: a floor, and from how many times it on they count."""

from __future__ import annotations

import math
import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from tensortap.comparison.entries import Side
from tensortap.comparison.floor import Floor
from tensortap.core.record import Record


def check_limit(limit: Any) -> float:
    """A limit that a user gave; refused where nothing can be measured by it."""
    if not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
        raise ValueError(
            f"limit is a number above 0: from how many times the noise on it counts; not {limit!r}"
        )
    return limit


def resolve_floor(given: Any, base: Side, executor: Executor | None = None) -> Floor:
    """A floor that a user gave: itself, its file, or runs that should be the same as the base."""
    if given is None or isinstance(given, Floor):
        return given or Floor()
    if isinstance(given, (str, os.PathLike)) and Path(given).suffix == ".json":
        return Floor.load(given)
    is_several = isinstance(given, (list, tuple)) and not all(isinstance(one, Record) for one in given)
    runs = list(given) if is_several else [given]
    return Floor.from_runs([base, *runs], executor=executor)
