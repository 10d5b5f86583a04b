"""Medians of interleaved rounds, and a table of ratios with the limit each is held to."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ENOUGH_IDLE = 1.5  # processors: with fewer the clock says more of others than of two threads of ours


def medians(
    candidates: dict[str, Callable[[], object]], rounds: int, after: Callable[[], object] = int
) -> dict[str, float]:
    """Seconds per call. Each round runs every candidate once, so that noise meets all of them alike;
    `after` runs between two calls and is not measured."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():  # once for warmth
        call()
        after()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
                after()
    finally:
        gc.enable()
    return {name: statistics.median(series) for name, series in times.items()}


@dataclass
class Table:
    """Rows of (what, measured, limit); prints whether each holds."""

    title: str
    rows: list[tuple[str, float, float, str]] = field(default_factory=list)

    def add(self, what: str, measured: float, limit: float, unit: str = "x") -> None:
        self.rows.append((what, measured, limit, unit))
        state = "ok  " if measured <= limit else "OVER"
        print(f"{state} {what:<64} {measured:9.3g} {unit:<3} <= {limit:g}", flush=True)

    @property
    def over(self) -> list[str]:
        return [what for what, measured, limit, _ in self.rows if measured > limit]


def tell(what: str, measured: float, unit: str = "x") -> None:
    """A figure that is held to no limit."""
    print(f"     {what:<64} {measured:9.3g} {unit}", flush=True)


def finish(tables: Iterable[Table]) -> int:
    over = [what for table in tables for what in table.over]
    print(f"\n{'all within their limits' if not over else 'over: ' + '; '.join(over)}")
    return len(over)


def idle_processors(seconds: float = 2.0) -> float:
    """How many processors had nothing to do for a while."""
    before = _idle_ticks()
    time.sleep(seconds)
    return (_idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _idle_ticks() -> int:
    return int(Path("/proc/stat").read_text().split()[4])
