"""`kill -9` while a trace is written: plain h5py opens the file, with everything up to the last flush."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.proof import some

from tensortap.core.errors import WriteFailedError
from tensortap.readers.trace_file import TraceFile
from tensortap.sinks.hdf5 import HDF5

SEED = 20251028
OPTIONS = {"plain": {}, "gzip": {"compression": "gzip"}}
# Imports once, then forks a child per order: `<path> <compression> <which write it does not survive, or -1>`.
PROGRAM = """
    import os, signal, sys
    import numpy as np
    from tensortap.formats.hdf5 import ordered_file
    from tensortap.sinks.hdf5 import HDF5

    write_all = ordered_file._write_all

    def say(line):
        os.write(1, f"{line}\\n".encode())

    def die_at(count):
        left = [count]
        def write(*arguments):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            write_all(*arguments)
        ordered_file._write_all = write
        return left

    def step(sink, number):
        for name in ("small", "steps/of\u00fc", f"new{number // 20}"):
            sink.append(name, [np.arange(40.0) + number], [number], [0])
        sink.append("text", [f"at {number}"], [number], [0])
        sink.append("ragged", [np.full((number % 5, 3), number)], [[number, number]], [[0, 1]])
        sink.append("large", [np.full(33_000, number, "f4")], [number], [0])

    def work(path, compression, dies_at):
        sink = HDF5(path, **({"compression": compression} if compression == "gzip" else {}))
        say(os.getpid())
        for number in range(100_000):
            if number == 50 and dies_at >= 0:
                left = die_at(dies_at)
                for later in range(30):
                    step(sink, number + later * (20 if later < 6 else 1))
                sink.flush()
                say(f"whole {dies_at - left[0]}")
                os._exit(0)
            step(sink, number)
            sink.flush()
            say(number + 1)

    for order in sys.stdin:
        path, compression, dies_at = order.split()
        child = os.fork()
        if child == 0:
            try:
                work(path, compression, int(dies_at))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        say("ended")
"""

Nursery = subprocess.Popen[str]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=tmp_path,
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(20)


@pytest.mark.process
@pytest.mark.parametrize("way", OPTIONS)
def test_what_was_flushed_survives_ten_kills_at_any_moment(way, nursery, tmp_path):
    chance = random.Random(f"{SEED} {way}")
    for trial in range(10):
        path = tmp_path / f"{trial}.h5"
        promised = kill_one(nursery, f"{path} {way} -1", chance)
        check(path, promised)


@pytest.mark.process
@pytest.mark.parametrize("way", OPTIONS)
def test_the_file_is_whole_before_and_after_each_write_of_a_commit(way, nursery, tmp_path):
    path = tmp_path / "trace.h5"
    *_, whole = order(nursery, f"{path} {way} 100000")
    writes = int(whole.removeprefix("whole "))
    # The last ones change the tables in place; those before only add to the end of the file.
    for dies_at in [*range(0, writes - 45, 29), *some(range(writes - 45, writes), every=3)]:
        assert "whole" not in order(nursery, f"{path} {way} {dies_at}")[-1]
        check(path, 50)
    assert writes > 100


@pytest.mark.process
def test_a_reader_follows_a_file_that_is_being_written(nursery, tmp_path):
    path = tmp_path / "trace.h5"
    nursery.stdin.write(f"{path} plain -1\n")
    pid = int(nursery.stdout.readline())
    assert nursery.stdout.readline() == "1\n"
    trace, last = TraceFile(path), 0
    while last < 100:
        found = trace.load("small")
        assert len(found) >= last
        last = len(found)
        assert found.steps == list(range(last))
        assert [value[0] for value in found.values] == list(range(last))
        promised = int(nursery.stdout.readline())
        trace.refresh()
        assert len(trace["small"]) >= promised
    os.kill(pid, signal.SIGKILL)
    assert "ended\n" in iter(nursery.stdout.readline, "")


def test_a_full_disk_costs_no_value_that_was_flushed(small_disk, fill):
    path = small_disk / "trace.h5"
    sink = HDF5(path)
    sink.append("x", [np.arange(100.0)], [1], [0])
    sink.flush()
    fill(small_disk)
    sink.append("y", [np.ones(1000)], [1], [0])
    with pytest.raises(WriteFailedError, match=r"no space left on device; what was flushed before is safe"):
        sink.flush()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["x"][0], np.arange(100.0))
    (small_disk / "ballast").unlink()
    sink.append("x", [np.arange(100.0) + 1], [2], [0])
    sink.close()
    assert [value[0] for value in TraceFile(path).load("x").values] == [0, 1]
    assert TraceFile(path).load("y").steps == [1]


def order(process: Nursery, line: str) -> list[str]:
    process.stdin.write(line + "\n")
    return list(iter(lambda: read_line(process), "ended"))


def read_line(process: Nursery) -> str:
    line = process.stdout.readline()
    assert line, "the program has ended"
    return line.strip()


def kill_one(process: Nursery, line: str, chance: random.Random) -> int:
    """Let a child write, kill it somewhere in the middle; how many steps it was promised."""
    process.stdin.write(line + "\n")
    pid, promised = int(process.stdout.readline()), 0
    for _ in range(chance.randint(1, 60)):
        promised = int(process.stdout.readline())
    os.kill(pid, signal.SIGKILL)
    while (line := read_line(process)) != "ended":
        promised = int(line)
    return promised


def check(path: Path, promised: int) -> None:
    with h5py.File(path) as file:
        for dataset in file.values():
            dataset[()]
        for name in ("small", "steps%2Fofü"):
            check_rows(file, name, promised, lambda number: np.arange(40.0) + number)
        check_rows(file, "large", promised, lambda number: np.full(33_000, number, "f4"))
        for first in range(0, promised, 20):
            assert len(file[f"new{first // 20}"]) >= min(20, promised - first)
    trace = TraceFile(path)
    assert trace.load("text").values[:promised] == [f"at {number}" for number in range(promised)]
    ragged = trace.load("ragged")
    assert [value.shape for value in ragged.values[:promised]] == [(n % 5, 3) for n in range(promised)]
    assert ragged.steps[:promised] == [(number, number) for number in range(promised)]
    assert trace.load("small").steps[:promised] == list(range(promised))


def check_rows(file: h5py.File, key: str, promised: int, content: Callable[[int], np.ndarray]) -> None:
    assert file[f"{key}_iterations"][:promised].tolist() == list(range(promised))
    rows = file[key][:promised]
    assert len(rows) == promised
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(row, content(number))
