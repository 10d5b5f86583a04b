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


def resolve_floor(floor: Any, base: Side, executor: Executor | None = None) -> Floor:
    """A floor that a user gave: itself, its file, or runs that should be the same as the base."""
    if floor is None or isinstance(floor, Floor):
        return floor or Floor()
    if isinstance(floor, (str, os.PathLike)) and Path(floor).suffix == ".json":
        return Floor.load(floor)
    is_several = isinstance(floor, (list, tuple)) and not all(isinstance(run, Record) for run in floor)
    runs = list(floor) if is_several else [floor]
    return Floor.from_runs([base, *runs], executor=executor)
