"""The noise between runs that should be the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from tensortap.comparison.asked import check_executor
from tensortap.comparison.floor import Floor, NoiseMeasurements
from tensortap.comparison.match import match
from tensortap.comparison.measuring import measure_pairs
from tensortap.comparison.sides import Side, load_side


def measure_floor_from_runs(runs: Sequence[Any], executor: Executor | None = None) -> Floor:
    """Each run against the first; what only one of them has is without noise of its own."""
    check_executor(executor)
    if len(runs) < 2:
        raise ValueError(f"a floor needs at least 2 runs that should be the same, not {len(runs)}")
    saved = [run for run in runs if isinstance(run, (str, os.PathLike)) and Path(run).suffix == ".json"]
    if saved:
        raise ValueError(f"{saved[0]} is a saved floor, which is given alone; several are of runs")
    base, *others = [load_side(run) for run in runs]
    measurements = NoiseMeasurements()
    skipped = [
        problem
        for number, other in enumerate(others)
        for problem in _add_repeat(measurements, base, other, number, executor)
    ]
    if not measurements.reruns:
        raise ValueError(f"{base.label} has no value in common with the other runs; give runs of one program")
    limit = measurements.calibrate_limit() if len(measurements.reruns) > 1 else None
    return measurements.floor(skipped, limit)


def _add_repeat(
    measurements: NoiseMeasurements, base: Side, other: Side, number: int, executor: Executor | None
) -> list[str]:
    rerun = "repeat" if not number else f"repeat {number + 1}"
    pairs = [(pair.a, pair.b) for pair in match(base, other).pairs]
    unread = 0
    for (entry, _), measurement in zip(pairs, measure_pairs(pairs, executor), strict=True):
        if isinstance(measurement, str):
            unread += 1
        else:
            measurements.add(rerun, entry, measurement)
    return [f"{rerun}: {unread} values could not be read"] if unread else []
