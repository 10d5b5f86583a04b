"""Threads that dump at once lose nothing."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.proof import IS_WHOLE

import tensortap as tt


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run the work in that many threads that start together; what one raises is raised here."""
    barrier, failures = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait(20)
            work(number)
        except Exception as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for failure in failures:
        raise failure


@pytest.mark.parametrize("layout", ["files", "pack"])
@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
@pytest.mark.parametrize("count", [2, 8])
def test_threads_that_dump_one_name_lose_nothing(tmp_path, count, background, layout):
    run = tt.init(tmp_path, background=background, layout=layout)

    def work(number: int) -> None:
        for position in range(40):
            tt.dump(np.full(100, 1000 * number + position), "same")

    in_threads(count, work)
    tt.close()
    series = tt.Run(run).series("same")
    assert all((value == value[0]).all() for value in series.values)
    expected = [1000 * number + position for number in range(count) for position in range(40)]
    assert sorted(int(value[0]) for value in series.values) == expected


def test_the_records_of_one_name_from_several_threads_are_counted_without_a_gap(tmp_path):
    run = tt.init(tmp_path)
    in_threads(8, lambda number: [tt.dump(number, "same") for _ in range(40)])
    stored = list(tt.Run(run))
    first = min(one.order for one in stored)
    assert sorted(one.order - first for one in stored) == list(range(320))
    assert sorted(one.call for one in stored) == list(range(320))


@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
def test_a_dump_during_another_threads_init_is_in_a_run_or_refused_by_name(tmp_path, background):
    tt.init(tmp_path, background=background)
    rounds = 5 if IS_WHOLE else 2
    accepted, refused = [], set()
    has_dumped, is_over = threading.Event(), threading.Event()

    def dump_on_and_on() -> None:
        for number in itertools.count():
            try:
                tt.dump(number, "x")
                accepted.append(number)
                has_dumped.set()
            except tt.TensortapError as error:
                refused.add(str(error))
            if is_over.is_set():
                return

    def begin_again() -> None:
        try:
            for _ in range(rounds):
                has_dumped.clear()
                has_dumped.wait(10)
                tt.init(tmp_path, background=background)
        finally:
            is_over.set()

    in_threads(2, lambda number: begin_again() if number else dump_on_and_on())
    tt.close()
    runs = [tt.Run(path) for path in tmp_path.iterdir()]
    assert len(runs) == rounds + 1
    assert sorted(stored.load() for run in runs for stored in run) == accepted
    assert refused <= {"dump() needs a run: call init('experiments') first, once per process"}
