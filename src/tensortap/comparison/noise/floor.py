"""The noise floor of a run: measured from reruns, loaded from a file, or typical for the dtype."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tensortap.comparison.matching.match import match
from tensortap.comparison.sides.entry import Entry, Side
from tensortap.comparison.sides.load import check_executor, load_side
from tensortap.comparison.values.measure import measure_pairs
from tensortap.comparison.values.metrics import Metrics
from tensortap.comparison.values.noise import (
    DEFAULT_LIMIT,
    INTRINSIC_ROUNDING,
    UNIT_ROUNDOFF,
    Noise,
    analytic_noise,
    map_levels,
    max_noise,
)
from tensortap.core.errors import CorruptRunError
from tensortap.core.record import Record

SCHEMA = "tensortap.floor/1"
# Bounds of a calibrated limit.
_MIN_LIMIT, _MAX_LIMIT, _MARGIN = 2.0, 12.0, 1.5
# Relative L2 rounding error of an array, as a share of the unit roundoff.
_ROUNDING_SHARE = 0.4
# Small arrays may show no noise by chance: they get at least that of the values before them.
_SMALL_SIZE = 256
# So may columns with few rows, which get some slack.
_FEW_ROWS, _COLUMN_SLACK = 16, 4.0

EntryKey = tuple[str, int, int, int]  # name, step, call, rank


def entry_key(entry: Entry) -> EntryKey:
    return entry.name, entry.first_step, entry.call, entry.first_rank


@dataclass(frozen=True, slots=True)
class Floor:
    """The noise of every value of a run.

    >>> floor = tt.floor(model, batch)
    >>> floor.save("floor.json")
    >>> tt.compare_runs(a, b, floor=tt.Floor.load("floor.json"))
    """

    noise: dict[EntryKey, Noise] = field(default_factory=dict)
    limit: float = DEFAULT_LIMIT
    twins: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # reruns that failed, and why
    _loosest: dict[str, Noise] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for (name, *_), noise in self.noise.items():
            self._loosest[name] = max_noise(self._loosest.get(name), noise)

    @property
    def is_measured(self) -> bool:
        return bool(self.noise)

    @property
    def names(self) -> Collection[str]:
        """Names of the measured values, of any step."""
        return self._loosest.keys()

    def of(self, entry: Entry, *, dtype: str = "", depth: int = 1) -> Noise:
        """The noise of a value: measured at its step and call, else the largest of its name, else analytic
        (from the lowest precision before it, `dtype`, and the number of layers, `depth`)."""
        if not self.noise:
            return analytic_noise(dtype or entry.dtype, depth)
        noise = self.noise.get(entry_key(entry)) or self._loosest.get(entry.name)
        if noise is None:
            return analytic_noise(dtype or entry.dtype, depth)
        return noise if noise.limit == self.limit else replace(noise, limit=self.limit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the floor as JSON."""
        rows = [[*key, *_noise_to_row(noise)] for key, noise in self.noise.items()]
        header = {"schema": SCHEMA, "limit": self.limit, "twins": self.twins, "skipped": self.skipped}
        Path(path).write_text(json.dumps({**header, "noise": rows}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Floor:
        """Read what `save` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} does not exist; make one with tt.floor(...).save({str(path)!r})")
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document["schema"] != SCHEMA:
                raise ValueError(f"its schema is {document['schema']!r}")
            noise = {
                (str(name), int(step), int(call), int(rank)): _noise_from_row(*row)
                for name, step, call, rank, *row in document["noise"]
            }
            return cls(noise, float(document["limit"]), tuple(document["twins"]), tuple(document["skipped"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRunError(
                f"{path} is not a floor ({error}); make one with tt.floor(...).save({str(path)!r})"
            ) from None

    @classmethod
    def from_runs(cls, runs: Sequence[Any], *, executor: Executor | None = None) -> Floor:
        """The noise between runs that should be equal: each against the first.

        With three or more, the limit is calibrated so that each lies within the noise of the others."""
        return measure_floor_from_runs(runs, executor)

    def __repr__(self) -> str:
        twins = ", ".join(self.twins) or "nothing: analytic"
        return f"<floor of {len(self.noise)} values from {twins}; limit {self.limit:.3g}>"


def _noise_to_row(noise: Noise) -> list[Any]:
    return [noise.relative_l2, noise.row, noise.column, noise.source, noise.flips, noise.intrinsic]


def _noise_from_row(l2: float, row: float, column: float, source: str, flips: int, intrinsic: Any) -> Noise:
    return Noise(l2, row, column, source, flips=flips, intrinsic=tuple(intrinsic) if intrinsic else None)


class _ArraySize(NamedTuple):
    """Number of elements and rows of a value, and its dtype."""

    elements: int
    rows: int
    dtype: str

    @property
    def column_slack(self) -> float:
        return 1 + _COLUMN_SLACK / max(self.rows, 1) if self.rows < _FEW_ROWS else 1.0


class NoiseMeasurements:
    """Differences between a run and its reruns, per value; the values themselves are not kept.

    `is_intrinsic`: the inputs of every module were given, so that values have no noise but their own."""

    def __init__(self, *, is_intrinsic: bool = False) -> None:
        self._is_intrinsic = is_intrinsic
        self._noise: dict[str, dict[EntryKey, Noise]] = {}
        self._sizes: dict[EntryKey, _ArraySize] = {}
        self._reshaped: set[str] = set()

    @property
    def reruns(self) -> tuple[str, ...]:
        return tuple(self._noise)

    def add(self, rerun: str, entry: Entry, metrics: Metrics, share: float = 1.0) -> None:
        """Add the difference of one value; `share` of it is noise, for small arrays all of it.

        A value of another shape, or with another NaN, is not measured."""
        key = entry_key(entry)
        noise = self._noise.setdefault(rerun, {})
        if metrics.reason or metrics.disagreeing or metrics.is_opaque:
            self._reshaped.add(entry.name)
            return
        self._sizes[key] = _ArraySize(metrics.count, math.prod(entry.shape[:-1]), entry.dtype)
        flips = metrics.mismatches if metrics.is_discrete else 0
        share = share if metrics.count >= _SMALL_SIZE else 1.0
        levels = share * metrics.relative_l2, share * metrics.row, share * metrics.column
        measured = Noise(*levels, rerun, flips=flips)
        noise[key] = max_noise(noise.get(key), measured)

    def drop(self, reruns: Iterable[str]) -> None:
        """Drop reruns, such as those that only calibrate the limit."""
        for rerun in reruns:
            self._noise.pop(rerun, None)

    def floor(self, skipped: Iterable[str] = (), limit: float | None = None) -> Floor:
        reruns = tuple(rerun for rerun in self.reruns if rerun != INTRINSIC_ROUNDING)
        noise_by_key = self._combine_noise(reruns)
        for key, noise in (
            self._combine_noise([INTRINSIC_ROUNDING]) if INTRINSIC_ROUNDING in self._noise else {}
        ).items():
            if key in noise_by_key:
                # Another correct implementation may round some row by the full unit roundoff; and intrinsic
                # noise is never larger than the total.
                size = self._sizes[key]
                roundoff = UNIT_ROUNDOFF.get(size.dtype, 0.0)
                intrinsic = (
                    noise.relative_l2,
                    max(noise.row, roundoff),
                    max(noise.column, roundoff) * size.column_slack,
                )
                bound = (
                    noise_by_key[key].relative_l2,
                    noise_by_key[key].row,
                    noise_by_key[key].column * size.column_slack,
                )
                noise_by_key[key] = replace(noise_by_key[key], intrinsic=map_levels(min, intrinsic, bound))
        return Floor(noise_by_key, limit or DEFAULT_LIMIT, reruns, tuple(skipped))

    def calibrate_limit(self) -> float:
        """The limit at which every rerun lies within the noise of the others, with a margin."""
        worst = 0.0
        for rerun, noise in self._noise.items():
            noise_of_others = self._combine_noise([other for other in self.reruns if other != rerun])
            worst = max(
                [
                    worst,
                    *(
                        _worst_ratio(own, noise_of_others[key])
                        for key, own in noise.items()
                        if key in noise_of_others
                    ),
                ]
            )
        return min(max(_MARGIN * worst, _MIN_LIMIT), _MAX_LIMIT)

    def worst_ratio_to(self, rerun: str, other_reruns: Sequence[str]) -> float:
        """The largest ratio of a rerun's noise to that of others."""
        floor = self._combine_noise(other_reruns)
        own = self._noise.get(rerun, {})
        return max(
            (_worst_ratio(noise, floor[key]) for key, noise in own.items() if key in floor), default=0.0
        )

    def _combine_noise(self, reruns: Sequence[str]) -> dict[EntryKey, Noise]:
        """The largest noise of these reruns per value, at least the rounding of its dtype."""
        combined: dict[EntryKey, Noise] = {}
        for rerun in reruns:
            for key, noise in self._noise[rerun].items():
                combined[key] = max_noise(combined.get(key), noise)
        return self._apply_lower_bounds(combined)

    def _apply_lower_bounds(self, combined: dict[EntryKey, Noise]) -> dict[EntryKey, Noise]:
        preceding = Noise(0.0, 0.0, 0.0, "")
        bounded = {}
        for key, noise in combined.items():
            count, _, dtype = self._sizes[key]
            lower_bound = UNIT_ROUNDOFF.get(dtype, 0.0)
            if count < _SMALL_SIZE:
                lower_bound = max(lower_bound, self._bound_small_array(noise, dtype, preceding.relative_l2))
            elif key[0] in self._reshaped:
                # A rerun of another shape was not measured: use at least the noise of the value before.
                noise = max_noise(replace(preceding, source=noise.source), noise)
            elif dtype in UNIT_ROUNDOFF:
                preceding = replace(noise, flips=0)
            lower_bound = lower_bound if count < _SMALL_SIZE else _ROUNDING_SHARE * lower_bound
            bounded[key] = Noise(
                max(noise.relative_l2, lower_bound),
                max(noise.row, lower_bound),
                max(noise.column, lower_bound),
                noise.source,
                flips=noise.flips,
            )
        return bounded

    def _bound_small_array(self, noise: Noise, dtype: str, preceding: float) -> float:
        """The least noise of a small array: that of the value before it, unless its dtype explains less, like
        a float32 loss of a model in half precision."""
        typical = analytic_noise(dtype).relative_l2
        return min(typical, preceding) if self._is_intrinsic and noise.relative_l2 <= typical else preceding


def _worst_ratio(noise: Noise, floor: Noise) -> float:
    pairs = zip(_noise_to_row(noise)[:3], _noise_to_row(floor)[:3], strict=True)
    return max((x / y if y else math.inf if x else 0.0) for x, y in pairs)


def measure_floor_from_runs(runs: Sequence[Any], executor: Executor | None = None) -> Floor:
    """The floor measured between each run and the first; values of one run only are not measured."""
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


def check_limit(limit: Any) -> float:
    """The user's `limit=`, validated as a positive finite number."""
    if not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
        raise ValueError(
            f"limit is a number above 0: from how many times the noise on it counts; not {limit!r}"
        )
    return limit


def resolve_floor(floor: Any, base: Side, executor: Executor | None = None) -> Floor:
    """The user's `floor=` as a Floor: itself, loaded from a file, or measured from runs equal to the base."""
    if floor is None or isinstance(floor, Floor):
        return floor or Floor()
    if isinstance(floor, (str, os.PathLike)) and Path(floor).suffix == ".json":
        return Floor.load(floor)
    is_several = isinstance(floor, (list, tuple)) and not all(isinstance(run, Record) for run in floor)
    runs = list(floor) if is_several else [floor]
    return Floor.from_runs([base, *runs], executor=executor)
