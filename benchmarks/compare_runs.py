"""What comparing two runs costs beside reading them and the kernels, whether workers help, and what it holds.

`python benchmarks/compare_runs.py [records]`: two runs of 10,000 records of 64 KB unless told otherwise."""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tensortap as tt
from harness import Table, finish, tell
from tensortap.comparison.sides import side_of
from tensortap.kernels.along import norms_along
from tensortap.kernels.blocks import BLOCK
from tensortap.kernels.differences import differences
from tensortap.kernels.many import accounts

KB, MB = 1 << 10, 1 << 20
ROUNDS = 7
SHAPE, TOGETHER = (128, 128), 16  # 64 KB of float32
MIDDLE, MIDDLE_COUNT = (512, 512), 300  # 1 MB each
LARGE, LARGE_COUNT = (4096, 4096), 6  # 64 MB each
table = Table("comparing runs")


def write(path: Path, count: int, shape: tuple[int, ...], noise: float) -> None:
    """Values that differ in nearly every number, as two runs on two machines do."""
    draw, change = np.random.default_rng(0), np.random.default_rng(1)
    pool = [draw.standard_normal(shape, np.float32) for _ in range(min(count, 16))]
    moved = [value * (1 + noise * change.standard_normal(shape, np.float32)) for value in pool]
    sink = tt.RunDirectory(path)
    for number in range(count):
        name = f"layers.{number % 100}.part_{number // 100}"
        sink.write(tt.Record(name, moved[number % len(pool)], "output", order=number))
    sink.close()


def by_hand(a: Path, b: Path) -> None:
    """What someone would write who knows where every value lies: each pair read and measured by itself."""
    for x, y in pairs(a, b):
        differences(x, "float32", y, "float32", threads=1)
        for axis in (0, 1):
            norms_along(x, "float32", y, "float32", axis)


def in_groups(a: Path, b: Path) -> None:
    """Reading and kernels at their best: many pairs in one call."""
    waiting = [(x, "float32", y, "float32") for x, y in pairs(a, b)]
    for start in range(0, len(waiting), TOGETHER):
        accounts(waiting[start : start + TOGETHER])


def pairs(a: Path, b: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for one, other in zip(_places[a], _places[b], strict=True):
        yield _array(*one), _array(*other)


_places: dict[Path, list[tuple[np.memmap, int, tuple[int, ...]]]] = {}


def remember(path: Path) -> None:
    files: dict[str, np.memmap] = {}
    found = []
    for entry in side_of(path).entries:
        where = entry.reference
        mapped = files.setdefault(where.file, np.memmap(path / where.file, np.uint8, "r"))
        found.append((mapped, where.offset, where.shape))
    _places[path] = found


def _array(mapped: np.memmap, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(mapped, np.float32, int(np.prod(shape)), offset).reshape(shape)


def share(a: Path, b: Path) -> None:
    """Processor time, in turns; the machine has other things to do."""
    with ThreadPoolExecutor(1) as one:
        calls = {
            "by hand, one by one": lambda: by_hand(a, b),
            "kernels, many in one call": lambda: in_groups(a, b),
            "compare_runs, one worker": lambda: tt.compare_runs(a, b, executor=one),
        }
        spent: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                spent[name].append(_processor_time(call))
    hand, kernels, ours = spent.values()
    for name, series in spent.items():
        tell(f"{name}, each pair", statistics.median(series) / len(_places[a]) * 1e6, "us")
    # Measured by the calls that compare_runs makes: those one by one are slower, and would flatter it.
    table.add("share that is neither reading nor kernels", 1 - _ratio(kernels, ours), 0.2)
    tell("compare_runs / reading and kernels by hand, one by one", _ratio(ours, hand))


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(some, others, strict=True))


def scaling(a: Path, b: Path, what: str) -> None:
    """Wall time of two workers against one, in turns. Where others use the machine it says nothing."""
    idle = idle_processors()
    walls: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for workers, series in walls.items():
            with ThreadPoolExecutor(workers) as executor:
                begin = time.perf_counter()
                tt.compare_runs(a, b, executor=executor)
                series.append(time.perf_counter() - begin)
    # The least: a round that met others says more of them than of us.
    ratio = min(walls[2]) / min(walls[1])
    tell(f"{what}: one worker, on the wall clock", min(walls[1]), "s")
    name = f"{what}: two workers / one, on the wall clock"
    if idle < 1.5:
        tell(f"{name} (not judged: {idle:.1f} processors idle)", ratio)
    else:
        table.add(name, ratio, 0.8)


def idle_processors(seconds: float = 2.0) -> float:
    """How many processors had nothing to do for a while."""
    before = _idle_ticks()
    time.sleep(seconds)
    return (_idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _idle_ticks() -> int:
    return int(Path("/proc/stat").read_text().split()[4])


def _processor_time(call: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    call()
    return time.process_time() - begin


@contextmanager
def peak() -> Iterator[list[float]]:
    """The most memory of our own that was held meanwhile; mapped files are the system's to drop."""
    found, stop = [0.0], threading.Event()
    before = _own_memory()

    def watch() -> None:
        while not stop.wait(0.001):
            found[0] = max(found[0], _own_memory() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _own_memory() -> float:
    status = Path("/proc/self/status").read_text()
    return float(status.partition("RssAnon:")[2].split()[0]) * KB


def memory(a: Path, b: Path, workers: int) -> None:
    """In a process of its own: what others have freed would hide what is taken."""
    told = subprocess.run(
        [sys.executable, __file__, "--memory", str(workers), str(a), str(b)],
        capture_output=True,
        text=True,
        check=True,
    )
    print(told.stdout, end="")
    value = float(told.stdout.split()[-1])
    # One block: its numbers as float64, of both sides.
    table.add(f"large values, {workers} workers: blocks held per worker", value / workers, 3, "")


def _measure_memory(workers: int, a: str, b: str) -> None:
    with ThreadPoolExecutor(workers) as executor:
        tt.compare_runs(a, b, executor=executor, only="layers.0.*")  # imports, pools, the kernels
        with peak() as found:
            tt.compare_runs(a, b, executor=executor)
    tell(f"large values, {workers} workers: memory of our own", found[0] / MB, "MB")
    print(f"     in blocks {found[0] / (2 * 8 * BLOCK):.3f}")


def main(count: int) -> int:
    with tempfile.TemporaryDirectory(prefix="tensortap-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        base = Path(folder)
        names = ("a", "b", "middle_a", "middle_b", "large_a", "large_b")
        a, b, middle_a, middle_b, large_a, large_b = (base / name for name in names)
        print(f"     load of the machine {os.getloadavg()[0]:.1f}, on {os.cpu_count()} processors")
        for path, noise in ((a, 0.0), (b, 1e-7)):
            write(path, count, SHAPE, noise)
            remember(path)
        for path, noise in ((middle_a, 0.0), (middle_b, 1e-7)):
            write(path, MIDDLE_COUNT, MIDDLE, noise)
        for path, noise in ((large_a, 0.0), (large_b, 1e-7)):
            write(path, LARGE_COUNT, LARGE, noise)
        with peak() as found:
            made = tt.compare_runs(a, b)
        assert len(made.table) == count, made
        tell("held of each pair, verdicts and all", found[0] / count / KB, "KB")
        share(a, b)
        scaling(a, b, "64 KB")
        scaling(middle_a, middle_b, "1 MB")
        for workers in (1, 2):
            memory(large_a, large_b, workers)
    return finish([table])


if __name__ == "__main__":
    if "--memory" in sys.argv:
        _measure_memory(int(sys.argv[2]), *sys.argv[3:])
        sys.exit()
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
