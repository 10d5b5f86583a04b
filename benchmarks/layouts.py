"""What it costs to find in what arrangement two arrays hold the same numbers, beside sorting one of them.

`python benchmarks/layouts.py [width]`: squares of 4096 x 4096 unless told otherwise; processor time."""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from harness import Table, finish, tell
from tensortap.comparison.diagnosis.symptoms import find_symptoms
from tensortap.comparison.layout.heads import find_head_order
from tensortap.comparison.layout.layouts import find_layout
from tensortap.comparison.sharding.infer import infer_placement

ROUNDS = 5
HEADS = 32
table = Table("layouts")


def pairs(width: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    x, other = (draw.standard_normal((width, width), np.float32) for _ in range(2))
    rows = x.reshape(8, width // 8, width)
    fine = x.reshape(4, 2, width // 8, width)
    return {
        "nothing in common": (x, other),
        "a transposition": (x, x.T.copy()),
        "its shape": (x, x.reshape(width // 2, -1)),
        "halves and turns of rotary heads": (x, _turned(x, width)),
        "padding": (x, np.pad(x, ((0, 64), (0, 64)))),
        "heads before tokens": (rows, _headed(rows)),
        "heads before tokens, nothing in common": (rows, _headed(other.reshape(rows.shape))),
        "five axes, nothing in common": (fine, _headed(other.reshape(fine.shape))),
    }


def _turned(x: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(x.reshape(width, HEADS, 2, -1).swapaxes(2, 3)).reshape(width, width)


def _headed(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(rows.reshape(*rows.shape[:-1], HEADS, -1), -2, -3))


def spent(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of processor time; each round runs every call once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(series) for name, series in times.items()}


def main() -> int:
    width = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    known = pairs(width)
    x, other = known["nothing in common"]
    rolled = np.roll(x.reshape(width, HEADS, -1), 1, 1).reshape(width, width)
    calls: dict[str, Callable[[], object]] = {"np.sort": lambda: np.sort(x, axis=None)}
    calls |= {name: lambda both=both: find_layout(*both) for name, both in known.items()}
    calls["heads in another order"] = lambda: find_head_order(x, rolled)
    calls["the shape of the difference, nothing in common"] = lambda: find_symptoms(x, other)
    calls["placing four pieces, shards"] = lambda: infer_placement(x, np.split(x, 4, 1))
    calls["placing four pieces, copies"] = lambda: infer_placement(x, [x] * 4)
    times = spent(calls)
    tell(f"np.sort of {width} x {width} float32", times["np.sort"], "s")
    for name in known:
        table.add(f"{name}: of np.sort", times[name] / times["np.sort"], 1.0)
    table.add("heads in another order: of np.sort", times["heads in another order"] / times["np.sort"], 1.0)
    for name in list(calls)[len(known) + 2 :]:
        tell(f"{name}: of np.sort", times[name] / times["np.sort"])
    return finish([table])


if __name__ == "__main__":
    sys.exit(main())
