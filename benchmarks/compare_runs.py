"""What comparing two runs costs beside reading them and the kernels, whether workers help, and what it holds.

`python benchmarks/compare_runs.py [records]`: two runs of 10,000 records of 64 KB unless told otherwise."""

import gc
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tensortap as tt
from harness import ENOUGH_IDLE, Table, finish, idle_processors, tell
from tensortap.comparison.sides.load import load_side
from tensortap.kernels.accumulator import compare_jobs, compare_pairs, pair_layout
from tensortap.kernels.decode import BLOCK_SIZE
from tensortap.kernels.differences import measure_differences
from tensortap.kernels.per_axis import norms_per_index

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
        measure_differences(x, "float32", y, "float32", threads=1)
        for axis in (0, 1):
            norms_per_index(x, "float32", y, "float32", axis)


def in_groups(a: Path, b: Path) -> None:
    """Many pairs in one call, as arrays."""
    waiting = [(x, "float32", y, "float32") for x, y in pairs(a, b)]
    for start in range(0, len(waiting), TOGETHER):
        compare_pairs(waiting[start : start + TOGETHER])


def bare(a: Path, b: Path) -> None:
    """Reading and kernels at their best: many pairs in one call, as bytes of mapped files."""
    known = pair_layout("float32", SHAPE, "float32", SHAPE)
    assert known is not None
    places = list(zip(_places[a], _places[b], strict=True))
    for start in range(0, len(places), TOGETHER):
        some = places[start : start + TOGETHER]
        compare_jobs(
            [known.job(_bytes(one, known.a_nbytes), _bytes(other, known.b_nbytes)) for one, other in some]
        )


def _bytes(place: tuple[np.memmap, int, tuple[int, ...]], size: int) -> memoryview:
    mapped, offset, _ = place
    return mapped.data[offset : offset + size]


def pairs(a: Path, b: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for one, other in zip(_places[a], _places[b], strict=True):
        yield _array(*one), _array(*other)


_places: dict[Path, list[tuple[np.memmap, int, tuple[int, ...]]]] = {}


def remember(path: Path) -> None:
    files: dict[str, np.memmap] = {}
    found = []
    for entry in load_side(path).entries:
        where = entry.reference
        mapped = files.setdefault(where.file, np.memmap(path / where.file, np.uint8, "r"))
        found.append((mapped, where.offset, where.shape))
    _places[path] = found


def _array(mapped: np.memmap, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(mapped, np.float32, int(np.prod(shape)), offset).reshape(shape)


class Here(Executor):
    """A worker that is the asking thread itself: nobody waits for another, so processor time is the time."""

    _max_workers = 1

    def submit(self, call: Callable[..., object], /, *args: object, **options: object) -> Future:
        made: Future = Future()
        made.set_result(call(*args, **options))
        return made


def indexes(a: Path, b: Path) -> None:
    """Reading what each run holds, and where that lies."""
    load_side(a), load_side(b)


def share(a: Path, b: Path) -> None:
    """In turns, in processor time: what others do on the machine, or beneath it, is not ours."""
    here = Here()
    calls = {
        "by hand, one by one": lambda: by_hand(a, b),
        "arrays, many in one call": lambda: in_groups(a, b),
        "bytes, many in one call": lambda: bare(a, b),
        "both indexes": lambda: indexes(a, b),
        "compare_runs": lambda: tt.compare_runs(a, b, executor=here),
        "compare_runs, all processors": lambda: tt.compare_runs(a, b),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            spent[name].append(_times(call))
    wall, busy = (
        {name: [both[clock] for both in series] for name, series in spent.items()} for clock in (0, 1)
    )
    for name in calls:
        told = [statistics.median(times[name]) / len(_places[a]) * 1e6 for times in (wall, busy)]
        tell(f"{name}: each pair, processor time", told[1], "us")
        tell(f"{name}: each pair, on the wall clock", told[0], "us")
    hand, arrays, kernels, index, ours, _ = busy.values()
    read, least = ([x + y for x, y in zip(index, values, strict=True)] for values in (arrays, kernels))
    table.add("64 KB: share that is neither reading as arrays nor kernels", 1 - _ratio(arrays, ours), 0.2)
    tell("64 KB: the same, where reading the indexes counts as reading", 1 - _ratio(read, ours))
    # compare_runs makes no arrays: this is what it does beside the least that it must do.
    tell("64 KB: share that is neither reading bytes nor kernels", 1 - _ratio(least, ours))
    tell("64 KB: compare_runs / reading and kernels by hand, one by one", _ratio(ours, hand))


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(some, others, strict=True))


def threads(count: int) -> Executor:
    return ThreadPoolExecutor(count)


def processes(count: int) -> Executor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"))


def scaling(a: Path, b: Path, what: str, pool: Callable[[int], Executor]) -> None:
    """Two workers against one, in turns: by the wall clock, and where others use the machine, as the clock
    says nothing then, by the processor time of the busier worker."""
    idle, taken = idle_processors(), stolen()
    with pool(1) as one, pool(2) as two:
        for executor in (one, two):  # imports, mapped files, both workers
            for _ in range(2):
                tt.compare_runs(a, b, executor=executor)
        rounds = [(_spent(a, b, one), _spent(a, b, two)) for _ in range(ROUNDS)]
    taken = (stolen() - taken) / sum(one.wall + two.wall for one, two in rounds)
    # The least: a round that met others says more of them than of us.
    walls = [min(both[place].wall for both in rounds) for place in (0, 1)]
    called = f"{what}, {pool.__name__}: two workers / one"
    main, other = (statistics.median(getattr(both[1], of) for both in rounds) for of in ("main", "busiest"))
    tell(f"{what}, {pool.__name__}: one worker, on the wall clock", walls[0], "s")
    tell(f"{what}, {pool.__name__}: two workers, processor time of the main thread", main, "s")
    tell(f"{what}, {pool.__name__}: two workers, processor time of the busier worker", other, "s")
    if idle >= ENOUGH_IDLE:
        table.add(f"{called}, on the wall clock", walls[1] / walls[0], 0.8)
        return
    tell(f"{called}, on the wall clock (not judged: {idle:.1f} processors idle)", walls[1] / walls[0])
    ratio = statistics.median(both[1].busiest / both[0].busiest for both in rounds)
    table.add(f"{called}, processor time of the busier (others are here)", ratio, 0.7)


class Spent(NamedTuple):
    wall: float
    main: float  # of the thread that asked
    busiest: float  # of the worker that worked most


def _spent(a: Path, b: Path, executor: Executor) -> Spent:
    gc.collect()
    workers = _workers(executor)
    before = [sum(map(_time_of, tasks)) for tasks in workers]
    main, wall = time.thread_time(), time.perf_counter()
    tt.compare_runs(a, b, executor=executor)
    main, wall = time.thread_time() - main, time.perf_counter() - wall
    after = [sum(map(_time_of, tasks)) for tasks in workers]
    return Spent(wall, main, max(x - y for x, y in zip(after, before, strict=True)))


def _workers(executor: Executor) -> list[list[Path]]:
    """The tasks of each worker, as the system lists them: a process may have several."""
    if isinstance(executor, ThreadPoolExecutor):
        return [[Path(f"/proc/self/task/{thread.native_id}")] for thread in executor._threads]
    assert isinstance(executor, ProcessPoolExecutor)
    return [list(Path(f"/proc/{number}/task").iterdir()) for number in executor._processes]


def _time_of(task: Path) -> float:
    """Seconds on a processor."""
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def stolen() -> float:
    """Seconds that the host has given to others while somebody here wanted to work."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def _times(call: Callable[[], object]) -> tuple[float, float]:
    """On the wall clock, and on processors."""
    gc.collect()
    wall, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - busy


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
    print(f"     in blocks {found[0] / (2 * 8 * BLOCK_SIZE):.3f}")


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
        tt.compare_runs(a, b)  # what it imports and keeps for good is none of the pairs' own
        with peak() as found:
            made = tt.compare_runs(a, b)
        assert len(made.table) == count, made
        tell("held of each pair, verdicts and all", found[0] / count / KB, "KB")
        share(a, b)
        for pool in (threads, processes):
            scaling(a, b, "64 KB", pool)
        scaling(middle_a, middle_b, "1 MB", threads)
        for workers in (1, 2):
            memory(large_a, large_b, workers)
    return finish([table])


if __name__ == "__main__":
    if "--memory" in sys.argv:
        _measure_memory(int(sys.argv[2]), *sys.argv[3:])
        sys.exit()
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
