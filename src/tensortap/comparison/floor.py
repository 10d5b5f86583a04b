"""How noisy each value is by itself: measured from twins of a run, or taken from the number type."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tensortap.comparison.entries import Entry
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.noise import LIMIT as LIMIT
from tensortap.comparison.noise import OWN as OWN
from tensortap.comparison.noise import ROUNDING as ROUNDING
from tensortap.comparison.noise import Noise as Noise
from tensortap.comparison.noise import analytic as analytic
from tensortap.comparison.noise import joined as joined
from tensortap.comparison.noise import of_each
from tensortap.core.errors import CorruptRunError

SCHEMA = "tensortap.floor/1"
# What calibration by harmless runs may make of the limit.
_LEAST_LIMIT, _MOST_LIMIT, _MARGIN = 2.0, 12.0, 1.5
# What rounding makes of a whole array, of the most that it makes of one number.
_ROUNDED = 0.4
# The noise of a few numbers may be nothing by luck: they have at least that of what came before them.
_FEW = 256
# So is how far two right ways are apart in a column of few rows.
_FEW_ROWS, _LUCK = 16, 4.0

Key = tuple[str, int, int, int]  # name, step, call, rank


@dataclass(frozen=True, slots=True)
class Floor:
    """The noise of every value of a run.

    >>> floor = tt.floor(model, batch)
    >>> floor.save("floor.json")
    >>> tt.compare_runs(a, b, floor=tt.Floor.load("floor.json"))
    """

    noise: dict[Key, Noise] = field(default_factory=dict)
    limit: float = LIMIT
    twins: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # twins that could not be made, and why
    _loosest: dict[str, Noise] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for (name, *_), noise in self.noise.items():
            self._loosest[name] = joined(self._loosest.get(name), noise)

    @property
    def is_measured(self) -> bool:
        return bool(self.noise)

    @property
    def names(self) -> Collection[str]:
        """What was measured, at any step."""
        return self._loosest.keys()

    def of(self, entry: Entry, *, dtype: str = "", depth: int = 1) -> Noise:
        """The noise of a value: measured at that step and call, else the loosest of its name, else analytic,
        by the lowest precision on its way (`dtype`) and the layers before it (`depth`)."""
        if not self.noise:
            return analytic(dtype or entry.dtype, depth)
        key = entry.name, entry.first_step, entry.call, entry.first_rank
        found = self.noise.get(key) or self._loosest.get(entry.name)
        if found is None:
            return analytic(dtype or entry.dtype, depth)
        return found if found.limit == self.limit else replace(found, limit=self.limit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        rows = [[*key, *_numbers(noise)] for key, noise in self.noise.items()]
        told = {"schema": SCHEMA, "limit": self.limit, "twins": self.twins, "skipped": self.skipped}
        Path(path).write_text(json.dumps({**told, "noise": rows}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Floor:
        """Read what `save` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} does not exist; make one with tt.floor(...).save({str(path)!r})")
        try:
            told = json.loads(Path(path).read_text(encoding="utf-8"))
            if told["schema"] != SCHEMA:
                raise ValueError(f"its schema is {told['schema']!r}")
            noise = {
                (str(name), int(step), int(call), int(rank)): _noise(*numbers)
                for name, step, call, rank, *numbers in told["noise"]
            }
            return cls(noise, float(told["limit"]), tuple(told["twins"]), tuple(told["skipped"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRunError(
                f"{path} is not a floor ({error}); make one with tt.floor(...).save({str(path)!r})"
            ) from None

    @classmethod
    def from_runs(cls, runs: Sequence[Any], *, executor: Executor | None = None) -> Floor:
        """The noise between runs that should be the same: each against the first.

        With three and more, the limit is calibrated: each must lie within the noise of the others."""
        from tensortap.comparison.repeats import floor_of_runs

        return floor_of_runs(runs, executor)

    def __repr__(self) -> str:
        twins = ", ".join(self.twins) or "nothing: analytic"
        return f"<floor of {len(self.noise)} values from {twins}; limit {self.limit:.3g}>"


def _numbers(noise: Noise) -> list[Any]:
    return [noise.relative_l2, noise.row, noise.column, noise.source, noise.flips, noise.own]


def _noise(l2: float, row: float, column: float, source: str, flips: int, own: Any) -> Noise:
    return Noise(l2, row, column, source, flips=flips, own=tuple(own) if own else None)


class _Size(NamedTuple):
    """How many numbers a value has, in how many rows, and of which type."""

    numbers: int
    rows: int
    dtype: str

    @property
    def luck(self) -> float:
        return 1 + _LUCK / max(self.rows, 1) if self.rows < _FEW_ROWS else 1.0


class Gathered:
    """What the twins of a run differ by, value by value; the values themselves are not kept. `is_alone`: what
    a value is made of was given, so that it has no noise but its own."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self._is_alone = is_alone
        self._noise: dict[str, dict[Key, Noise]] = {}
        self._sizes: dict[Key, _Size] = {}
        self._reshaped: set[str] = set()

    @property
    def twins(self) -> tuple[str, ...]:
        return tuple(self._noise)

    def add(self, twin: str, entry: Entry, found: Metrics, share: float = 1.0) -> None:
        """What one value of a twin differs by, and the share of it that is noise; of a few numbers all is, as
        it may be little by luck. One that has another shape, or a NaN, is no twin there."""
        key = entry.name, entry.first_step, entry.call, entry.first_rank
        noise = self._noise.setdefault(twin, {})
        if found.reason or found.disagreeing or found.is_opaque:
            self._reshaped.add(entry.name)
            return
        self._sizes[key] = _Size(found.count, math.prod(entry.shape[:-1]), entry.dtype)
        flips = found.mismatches if found.is_discrete else 0
        share = share if found.count >= _FEW else 1.0
        size = share * found.relative_l2, share * found.row, share * found.column
        made = Noise(*size, twin, flips=flips)
        noise[key] = joined(noise.get(key), made)

    def drop(self, twins: Iterable[str]) -> None:
        """Twins that were only there to calibrate."""
        for twin in twins:
            self._noise.pop(twin, None)

    def floor(self, skipped: Iterable[str] = (), limit: float | None = None) -> Floor:
        twins = tuple(one for one in self.twins if one != OWN)
        whole = self._over(twins)
        for key, noise in (self._over([OWN]) if OWN in self._noise else {}).items():
            if key in whole:
                # Another right way rounds elsewhere, in some row by all that rounding can do; and rounding
                # alone is no more than rounding and all that came in.
                size = self._sizes[key]
                least = ROUNDING.get(size.dtype, 0.0)
                own = noise.relative_l2, max(noise.row, least), max(noise.column, least) * size.luck
                most = whole[key].relative_l2, whole[key].row, whole[key].column * size.luck
                whole[key] = replace(whole[key], own=of_each(min, own, most))
        return Floor(whole, limit or LIMIT, twins, tuple(skipped))

    def calibrated(self) -> float:
        """The limit at which every twin lies within the noise of the others, with a margin."""
        worst = 0.0
        for twin, noise in self._noise.items():
            others = self._over([one for one in self.twins if one != twin])
            worst = max([worst, *(_ratio(mine, others[key]) for key, mine in noise.items() if key in others)])
        return min(max(_MARGIN * worst, _LEAST_LIMIT), _MOST_LIMIT)

    def ratio_of(self, twin: str, others: Sequence[str]) -> float:
        """How far one twin lies beyond the noise of others, at worst."""
        whole = self._over(others)
        mine = self._noise.get(twin, {})
        return max((_ratio(noise, whole[key]) for key, noise in mine.items() if key in whole), default=0.0)

    def _over(self, twins: Sequence[str]) -> dict[Key, Noise]:
        """The larger noise of these twins, never below the rounding of the type."""
        whole: dict[Key, Noise] = {}
        for twin in twins:
            for key, noise in self._noise[twin].items():
                whole[key] = joined(whole.get(key), noise)
        return self._lifted(whole)

    def _lifted(self, whole: dict[Key, Noise]) -> dict[Key, Noise]:
        before = Noise(0.0, 0.0, 0.0, "")
        lifted = {}
        for key, noise in whole.items():
            count, _, dtype = self._sizes[key]
            least = ROUNDING.get(dtype, 0.0)
            if count < _FEW:
                least = max(least, self._of_few(noise, dtype, before.relative_l2))
            elif key[0] in self._reshaped:
                # The twins that tell most of its noise had another shape: it has that of what came before.
                noise = joined(replace(before, source=noise.source), noise)
            elif dtype in ROUNDING:
                before = replace(noise, flips=0)
            least = least if count < _FEW else _ROUNDED * least
            lifted[key] = Noise(
                max(noise.relative_l2, least),
                max(noise.row, least),
                max(noise.column, least),
                noise.source,
                flips=noise.flips,
            )
        return lifted

    def _of_few(self, noise: Noise, dtype: str, before: float) -> float:
        """That a few numbers differ by little is luck, unless it is as little as their type can: a loss in
        single precision above a model in half."""
        usual = analytic(dtype).relative_l2
        return min(usual, before) if self._is_alone and noise.relative_l2 <= usual else before


def _ratio(noise: Noise, floor: Noise) -> float:
    pairs = zip(_numbers(noise)[:3], _numbers(floor)[:3], strict=True)
    return max((x / y if y else math.inf if x else 0.0) for x, y in pairs)
