"""What statistics and differences cost, as ratios to reading the arrays once in the same run.

Reading is numpy's sum of the same bytes taken as float32, by one thread; of a pair, the sum of each."""

import argparse
import os
import statistics as middle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import ENOUGH_IDLE, Table, finish, idle_processors, tell
from rounds import Contestant, Entry, plain, race
from tensortap.kernels import native
from tensortap.kernels.differences import measure_differences
from tensortap.kernels.statistics import statistics

Array = np.ndarray[Any, Any]
MB = 1 << 20
table = Table("kernels")
rounds_of = {1: 31, 64: 15, 1024: 5}


def pair(megabytes: int) -> tuple[Array, Array]:
    """Numbers, and the same with a little noise: most of them are beyond the default tolerance."""
    draw = np.random.default_rng(0)
    a = draw.standard_normal(megabytes * MB // 4, np.float32)
    b = draw.standard_normal(a.size, np.float32)
    b *= np.float32(1e-4)
    b += a
    return a, b


def read(*arrays: Array) -> None:
    for array in arrays:
        array.view(np.float32).sum()


@contextmanager
def by_numpy(run: Callable[[], object]) -> Iterator[Entry]:
    library, native.library = native.library, None
    yield Entry(run)
    native.library = library


def compare(a: Array, b: Array, dtype: str = "float32", **options: Any) -> Callable[[], object]:
    return partial(measure_differences, a, dtype, b, dtype, **{"threads": 1, **options})


def full_reports() -> None:
    for size in (1, 64, 1024):
        a, b = pair(size)
        reading: Contestant = partial(plain, partial(read, a, b))
        full, ulps = partial(plain, compare(a, b)), partial(plain, compare(a, b, ulps=True))
        many = rounds_of[size], 20 if size == 1 else 1
        times = race({"read": reading, "full": full, "ulps": ulps}, *many)
        head = f"float32, {size} MB each, one thread"
        table.add(f"{head}: full report / read", times.ratio("full", "read"), 1.8)
        table.add(f"{head}: with ULPs / read", times.ratio("ulps", "read"), 3.0)
        b[:] = a  # in place: a third array may be more than there is room for
        times = race({"read": reading, "equal": full}, *many)
        table.add(f"{head}: equal arrays / read", times.ratio("equal", "read"), 1.5)


def other_types() -> None:
    a, b = pair(64)
    odd = a.copy()
    odd[::3] = np.nan
    brain = [array.view(np.uint16)[1::2].repeat(2) for array in (a, b)]
    half = [array.astype(np.float16).repeat(2) for array in (a, b)]
    times = race(
        {
            "read": partial(plain, partial(read, a, b)),
            "bfloat16": partial(plain, compare(*brain, "bfloat16")),
            "float16": partial(plain, compare(*half, "float16")),
            "odd": partial(plain, compare(odd, b)),
        },
        9,
    )
    table.add("bfloat16, 64 MB each, one thread: full report / read", times.ratio("bfloat16", "read"), 3.5)
    tell("float16, 64 MB each, one thread: full report / read", times.ratio("float16", "read"))
    tell("float32, 64 MB each, every third NaN: full report / read", times.ratio("odd", "read"))


def two_threads() -> None:
    """By the clock, which says nothing of us where others use the machine."""
    idle = idle_processors()
    a, b = pair(64)
    runs = {
        "read": partial(read, a, b),
        "full": compare(a, b, threads=2),
        "ulps": compare(a, b, threads=2, ulps=True),
    }
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(15):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            spent[name].append(time.perf_counter() - begin)
    # The least: on a busy machine the second thread waits for a processor.
    for name, what, limit in (("full", "full report", 1.2), ("ulps", "with ULPs", 2.0)):
        called, found = f"float32, 64 MB each, two threads: {what} / read", _least(spent, name)
        if idle >= ENOUGH_IDLE:
            table.add(called, found, limit)
        else:
            tell(f"{called} (not judged: {idle:.1f} processors idle)", found)


def _least(spent: dict[str, list[float]], name: str) -> float:
    return min(spent[name]) / min(spent["read"])


def small_pairs() -> None:
    a, b = (array[:1024].copy() for array in pair(1))
    run = compare(a, b)
    each = []
    for _ in range(15):
        begin = time.process_time()
        for _ in range(500):
            run()
        each.append((time.process_time() - begin) / 500)
    table.add("float32, 4 KB each: full report", middle.median(each) * 1e6, 40, "us")


def others() -> None:
    a, b = pair(64)
    same = a.copy()
    x, y, z = map(torch.from_numpy, (a, b, same))

    def failing() -> None:
        try:
            torch.testing.assert_close(x, y)
        except AssertionError:
            return
        raise RuntimeError("the arrays are equal")

    times = race(
        {
            "full": partial(plain, compare(a, b)),
            "numpy": partial(by_numpy, compare(a, b)),
            "numpy, equal": partial(by_numpy, compare(a, same)),
            "allclose": partial(plain, partial(np.allclose, a, b, atol=1.0)),
            "passing": partial(plain, partial(torch.testing.assert_close, x, z, atol=1.0, rtol=0.0)),
            "failing": partial(plain, failing),
        },
        5,
    )
    table.add("float32, 64 MB each: full report / np.allclose", times.ratio("full", "allclose"), 1.0)
    table.add("float32, 64 MB each: full report / failing assert_close", times.ratio("full", "failing"), 0.05)
    table.add("without the library: full report / np.allclose", times.ratio("numpy", "allclose"), 1.0)
    tell("without the library: equal arrays / np.allclose", times.ratio("numpy, equal", "allclose"))
    table.add(
        "without the library: full report / passing assert_close", times.ratio("numpy", "passing"), 0.25
    )


def one_array() -> None:
    for size in (1, 64):
        a, _ = pair(size)
        run = partial(statistics, a, "float32")
        times = race(
            {
                "read": partial(plain, partial(read, a)),
                "ours": partial(plain, run),
                "numpy": partial(by_numpy, run),
            },
            rounds_of[size],
            20 if size == 1 else 1,
        )
        table.add(f"float32, {size} MB: statistics / read", times.ratio("ours", "read"), 1.6)
        table.add(f"float32, {size} MB: without the library / read", times.ratio("numpy", "read"), 7.0)


def scratch() -> None:
    """What is held beside the arrays, whatever their size."""
    for size in (64, 1024):
        a, b = pair(size)
        runs = {
            "full report": lambda a, b: compare(a, b, ulps=True)(),
            "statistics": lambda a, b: statistics(a, "float32"),
        }
        for what, run in runs.items():
            run(a[:1024], b[:1024])  # tables that stay; no buffer of the size that is measured
            table.add(f"float32, {size} MB each: scratch of {what}", _peak(partial(run, a, b)) / MB, 2, "MiB")


def _peak(run: Callable[[], object]) -> float:
    """Bytes that the process had at most beyond what it had before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _status(what: str) -> int:
    """Of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


BENCHES = {
    bench.__name__: bench
    for bench in (full_reports, other_types, two_threads, small_pairs, others, one_array, scratch)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="bench", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--variant", help="for another processor: avx512, avx2 or plain")
    chosen = parser.parse_args()
    if not native.available:
        print(native.unavailable_reason)
        return 1
    if chosen.variant:
        native.library.choose(chosen.variant)
    torch.set_num_threads(1)
    print(f"     load of the machine {os.getloadavg()[0]:.1f}, on {os.cpu_count()} processors")
    for name in chosen.benches or BENCHES:
        BENCHES[name]()
    return finish([table])


if __name__ == "__main__":
    sys.exit(main())
