"""Any executor gives the same answer: its workers read the files themselves, and one may die."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt
from tensortap.core.record import Record

COUNT = 400


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that part in the middle."""
    made = []
    for name in ("a", "b"):
        folder = tmp_path_factory.mktemp(name)
        random, sink = np.random.default_rng(0), tt.RunDirectory(folder)
        for order in range(COUNT):
            value = random.standard_normal((16, 16)).astype(np.float32)
            is_wrong = name == "b" and order >= COUNT // 2
            sink.write(Record(f"layers.{order}", value * (1.01 if is_wrong else 1), "output", order=order))
        sink.close()
        made.append(folder)
    return made


def answer(found):
    return found.first, [(one.name, one.verdict, one.ratio) for one in found.table]


def processes():
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


class Deadly(Executor):
    """Kills a worker of the pool as soon as it has been given some work."""

    def __init__(self, inner):
        self.inner, self.given = inner, 0
        self._max_workers = 2

    def submit(self, function, /, *arguments, **keywords):
        future = self.inner.submit(function, *arguments, **keywords)
        self.given += 1
        if self.given == 3:
            os.kill(next(iter(self.inner._processes)), signal.SIGKILL)
        return future


class Refusing(Executor):
    """Loses everything it is given."""

    def submit(self, function, /, *arguments, **keywords):
        future = Future()
        future.set_exception(RuntimeError("gone"))
        return future


def test_threads_give_the_same_answer(runs):
    with ThreadPoolExecutor(3) as threads:
        assert answer(tt.compare_runs(*runs, executor=threads)) == answer(tt.compare_runs(*runs))


@pytest.mark.process
def test_processes_give_the_same_answer(runs):
    with processes() as pool:
        found = tt.compare_runs(*runs, executor=pool)
    assert answer(found) == answer(tt.compare_runs(*runs))
    assert found.first.name == f"layers.{COUNT // 2}"


@pytest.mark.process
def test_a_killed_worker_is_survived(runs, caplog):
    with processes() as pool, caplog.at_level(logging.WARNING, "tensortap.compare"):
        found = tt.compare_runs(*runs, executor=Deadly(pool))
    assert answer(found) == answer(tt.compare_runs(*runs))
    assert len([one for one in caplog.records if "measured here" in one.message]) == 1


def test_an_executor_that_loses_everything_is_survived(runs, caplog):
    assert answer(tt.compare_runs(*runs, executor=Refusing())) == answer(tt.compare_runs(*runs))
    assert "a worker was lost (RuntimeError: gone)" in caplog.text


def test_what_travels_to_a_worker_is_small(runs):
    import pickle

    from tensortap.comparison.sides.load import load_side
    from tensortap.comparison.values.measure import ValueRefPair

    sides = [load_side(run) for run in runs]
    tasks = [
        ValueRefPair(a.reference, b.reference) for a, b in zip(*(side.entries for side in sides), strict=True)
    ]
    assert len(pickle.dumps(tasks)) < 300 * COUNT
    assert "torch" not in {type(part).__module__.split(".")[0] for task in tasks for part in task}


def test_few_batches_wait_at_a_time(runs):
    class Counting(Executor):
        most = under_way = 0
        _max_workers = 1

        def submit(self, function, /, *arguments, **keywords):
            Counting.under_way += 1
            Counting.most = max(self.most, self.under_way)
            future = Future()
            future.set_result(function(*arguments, **keywords))
            inner = future.result
            future.result = lambda: (setattr(Counting, "under_way", Counting.under_way - 1), inner())[1]
            return future

    tt.compare_runs(*runs, executor=Counting())
    assert 1 < Counting.most <= 3


def test_memory_does_not_grow_with_the_values(tmp_path):
    import tracemalloc

    for name in ("a", "b"):
        random, sink = np.random.default_rng(0), tt.RunDirectory(tmp_path / name)
        for order in range(8):
            value = random.standard_normal((512, 2048)).astype(np.float32)
            sink.write(Record(f"x{order}", value * (1 + 1e-6 * (name == "b")), "output", order=order))
        sink.close()
    tt.compare_runs(tmp_path / "a", tmp_path / "b")
    tracemalloc.start()
    try:
        tt.compare_runs(tmp_path / "a", tmp_path / "b")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < value.nbytes * 3


CLUSTER = """
import os, signal, sys
import tensortap as tt

def opened():
    from tensortap.comparison.sides.entry import _open_values
    return _open_values.cache_info().currsize

class Deadly:
    _max_workers = 2
    def __init__(self, inner, victim):
        self.inner, self.victim, self.given = inner, victim, 0
    def submit(self, function, /, *arguments):
        future = self.inner.submit(function, *arguments)
        self.given += 1
        if self.given == 3:
            os.kill(self.victim, signal.SIGKILL)
        return future

def answer(found):
    return found.first, [(one.name, one.verdict, one.ratio) for one in found.table]

def main(a, b):
    from dask.distributed import Client, LocalCluster
    expected = answer(tt.compare_runs(a, b))
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        with Client(cluster) as client:
            found = tt.compare_runs(a, b, executor=client.get_executor())
            assert answer(found) == expected
            assert sum(client.run(opened).values()) >= 2, "the workers did not open the runs"
            victim = next(iter(client.run(os.getpid).values()))
            found = tt.compare_runs(a, b, executor=Deadly(client.get_executor(), victim))
            assert answer(found) == expected
    print("the same", expected[0].name)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.process
def test_a_dask_cluster_gives_the_same_answer_and_survives_a_lost_worker(runs, tmp_path):
    pytest.importorskip("distributed")
    script = Path(tmp_path) / "cluster.py"
    script.write_text(CLUSTER)
    # In a process of its own: a cluster leaves threads behind.
    done = subprocess.run(
        [sys.executable, str(script), *map(str, runs)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"the same layers.{COUNT // 2}"
