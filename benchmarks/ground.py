"""What dumping, packing, indexing and reading cost, as ratios to the plain thing in the same run."""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

import tensortap as tt
from harness import Table, finish, medians
from tensortap.core.record import Record

KB, MB = 1 << 10, 1 << 20
table = Table("ground")


@contextmanager
def folder() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="tensortap-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def raw_write(path: str, data: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    rest = data
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.close(fd)


def cleaner(base: Path, keep: set[str]) -> Callable[[], None]:
    """Remove the value files between two calls, so that every write is to a new file."""

    def clean() -> None:
        for entry in os.scandir(base):
            if entry.is_file() and entry.name not in keep:
                os.unlink(entry.path)

    return clean


def import_time() -> None:
    code = (
        "import time,sys;start=time.perf_counter();import tensortap;spent=time.perf_counter()-start;"
        "import json;print(json.dumps([spent,'numpy' in sys.modules or 'torch' in sys.modules]))"
    )
    spent = []
    for _ in range(9):
        seconds, heavy = json.loads(subprocess.check_output([sys.executable, "-c", code]))
        assert not heavy
        spent.append(seconds)
    table.add("import tensortap, no numpy, no torch", sorted(spent)[4] * 1e3, 30, "ms")


def complete_dumps() -> None:
    for size, rounds in ((4 * KB, 60), (64 * KB, 40), (MB, 60), (64 * MB, 20), (512 * MB, 7)):
        complete_dump(size, rounds)


def complete_dump(size: int, rounds: int) -> None:
    array = np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
    tensor = torch.from_numpy(array)
    with folder() as base:
        run = tt.init(base)
        assert run is not None
        numbers = itertools.count()
        kept = {entry.name for entry in os.scandir(run)}
        candidates: dict[str, Callable[[], object]] = {
            "raw": lambda: raw_write(f"{run}/raw{next(numbers)}", memoryview(array).cast("B")),
            "np.save": lambda: np.save(f"{run}/np{next(numbers)}.npy", array),
            "torch.save": lambda: torch.save(tensor, f"{run}/torch{next(numbers)}.pt"),
            "npy": lambda: tt.dump(array, "array"),
            "pt": lambda: tt.dump(tensor, "tensor"),
        }
        # Small ones in a row, as a program dumps them: alone each would pay for the caches we emptied.
        in_a_row = 10 if size <= 64 * KB else 1
        bursts = {name: partial(run_many, call, in_a_row) for name, call in candidates.items()}
        result = medians(bursts, rounds, cleaner(run, kept))
        tt.close()
    label = f"{size // KB} KB" if size < MB else f"{size // MB} MB"
    npy_limit = 0.6 if size == 4 * KB else 1.1
    table.add(f"dump .npy {label} / np.save", result["npy"] / result["np.save"], npy_limit)
    if size in (4 * KB, 64 * MB, 512 * MB):
        pt_limit = 0.25 if size == 4 * KB else 0.65
        table.add(f"dump .pt {label} / torch.save", result["pt"] / result["torch.save"], pt_limit)
    if size == 64 * MB:
        table.add(f"dump .npy {label} / raw write", result["npy"] / result["raw"], 1.1)
        table.add(f"dump .pt {label} / raw write", result["pt"] / result["raw"], 1.3)


def background_dumps() -> None:
    for size, rounds in ((4 * MB, 60), (32 * MB, 20), (64 * MB, 15)):
        background_dump(size, rounds)


def background_dump(size: int, rounds: int) -> None:
    tensor = torch.randn(size // 4)
    warm = torch.empty_like(tensor)
    with folder() as base:
        run = tt.init(base, background=True)
        assert run is not None
        clean = cleaner(run, {entry.name for entry in os.scandir(run)})

        def after(clean: Callable[[], None] = clean) -> None:
            tt.flush()
            clean()

        result = medians(
            {
                "memcpy": lambda: np.copyto(warm.numpy(), tensor.numpy()),
                "dump": lambda: tt.dump(tensor, "x"),
            },
            rounds,
            after,
        )
        tt.close()
    table.add(f"background dump {size // MB} MB / memcpy", result["dump"] / result["memcpy"], 1.2)


def background_small() -> None:
    tensor = torch.randn(16 * KB)
    with folder() as base:
        tt.init(base, background=True)
        result = medians({"dump": lambda: run_many(lambda: tt.dump(tensor, "x"), 5)}, 100, tt.flush)
        tt.close()
    table.add("background dump 64 KB, caller", result["dump"] / 5 * 1e6, 60, "us")


def training_step() -> None:
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(8)]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, value = torch.randn(256, 512), torch.randn(MB)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def step_and_dump() -> None:
        step()
        tt.dump(value, "x")

    for threads in (1, 2):
        torch.set_num_threads(threads)
        with folder() as base:
            tt.init(base, background=True)
            result = medians(
                {"step": lambda: run_many(step, 20), "dump": lambda: run_many(step_and_dump, 20)}, 9, tt.flush
            )
            tt.close()
        table.add(
            f"training step with 4 MB dumped, {threads} threads / plain", result["dump"] / result["step"], 1.1
        )


def run_many(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def disabled() -> None:
    tt.disable()
    dump, value = tt.dump, object()
    best = min(_per_call(lambda: dump(value, "x")) for _ in range(7))
    empty = min(_per_call(lambda: None) for _ in range(7))
    tt.enable()
    table.add("a disabled dump", (best - empty) * 1e6, 0.3, "us")


def _per_call(call: Callable[[], object], count: int = 100_000) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def many_values() -> None:
    count, block = 10_000, 100
    arrays = [np.full(1024, number, np.float32) for number in range(count)]
    names = [f"layers.{number % 100}.out{number}" for number in range(count)]
    spent: dict[str, list[float]] = {"raw": [], "files": [], "pack": []}
    with folder() as base:
        (base / "raw").mkdir()
        files, pack = tt.RunDirectory(base / "files", layout="files"), tt.RunDirectory(base / "pack")
        writers: dict[str, Callable[[int], None]] = {
            "raw": lambda number: raw_write(f"{base}/raw/{names[number]}", arrays[number].data.cast("B")),
            "files": lambda number: files.write(Record(names[number], arrays[number], order=number)),
            "pack": lambda number: pack.write(Record(names[number], arrays[number], order=number)),
        }
        # A disk is quick and slow by turns: each block meets all three in the same mood.
        for start in range(0, count, block):
            for name, write in writers.items():
                begin = time.perf_counter()
                for number in range(start, start + block):
                    write(number)
                spent[name].append((time.perf_counter() - begin) / block)
        begin = time.perf_counter()
        pack.close()
        closing = (time.perf_counter() - begin) / count
        files.close()
    middle = {name: statistics.median(times) for name, times in spent.items()}
    table.add("10,000 values of 4 KB as files / raw files", middle["files"] / middle["raw"], 2)
    table.add("10,000 values of 4 KB in a pack, each", (middle["pack"] + closing) * 1e6, 15, "us")


def large_append() -> None:
    array = np.random.default_rng(0).standard_normal(16 * MB).astype(np.float32)
    with folder() as base:
        fd = os.open(base / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sink = tt.RunDirectory(base / "run")

        def append() -> None:
            rest = memoryview(array).cast("B")
            while rest:
                rest = rest[os.write(fd, rest) :]

        result = medians({"raw": append, "pack": lambda: sink.write(Record("x", array))}, 12)
        sink.close()
        os.close(fd)
    table.add("64 MB in a pack / raw append", result["pack"] / result["raw"], 1.2)


def reading() -> None:
    count = 100_000
    array = np.ones(4, np.float32)
    with folder() as base:
        sink = tt.RunDirectory(base / "run")
        for number in range(count):
            name = f"layers.{number % 1000}.block{number // 1000}.out"
            sink.write(Record(name, array, step=number // 1000, order=number))
        sink.close()
        start = time.perf_counter()
        tt.Run(base / "run")
        table.add("100,000 records opened without a cache", (time.perf_counter() - start) * 1e3, 1000, "ms")
        result = medians({"open": lambda: tt.Run(base / "run")}, 9)
        table.add("100,000 records opened with a cache", result["open"] * 1e3, 50, "ms")
        run = tt.Run(base / "run")
        result = medians({"filter": lambda: run.filter("layers.17.*.out")}, 15)
        table.add("a name filter over 100,000 records", result["filter"] * 1e3, 20, "ms")
        assert len(run.filter("layers.17.*.out")) == count // 1000
        stored = run.find("layers.17.block3.out")
        best = min(_per_call(stored.load, 2000) for _ in range(5))
        table.add("one packed value, from its record", best * 1e6, 10, "us")
        best = min(_per_call(lambda: run.load("layers.17.block3.out"), 2000) for _ in range(5))
        table.add("one packed value, by its name", best * 1e6, 10, "us")


def main() -> int:
    torch.set_num_threads(1)
    benches = [
        import_time,
        disabled,
        complete_dumps,
        background_dumps,
        background_small,
        training_step,
        many_values,
        large_append,
        reading,
    ]
    chosen = sys.argv[1:]
    for bench in benches:
        if not chosen or bench.__name__ in chosen:
            bench()
    return finish([table])


if __name__ == "__main__":
    sys.exit(main())
