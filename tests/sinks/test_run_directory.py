"""The run directory: what was written is what is read, in files and packs, at once and in the background."""

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
import zipfile

import numpy as np
import pytest
import torch

from tensortap.core.errors import WriteFailedError
from tensortap.core.record import Record
from tensortap.formats import pack
from tensortap.formats.atomic_files import AtomicFolder
from tensortap.readers.run import Run
from tensortap.sinks import run_storage
from tensortap.sinks.run_directory import RunDirectory

VALUES = {
    "tensor": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "bf16": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "point": torch.tensor(1.5),
    "sparse": torch.eye(3).to_sparse(),
    "array": np.arange(6).reshape(2, 3)[:, ::2],
    "structured": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "no bytes": np.zeros(3, "V0"),
    "objects": np.array([None, "a"], object),
    "dict": {"a": [1, 2], "b": None},
    "number": 3,
}


@pytest.fixture(params=["files", "pack"])
def layout(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["at once", "in the background"])
def background(request):
    return request.param


@pytest.fixture
def sink(tmp_path, layout, background):
    sink = RunDirectory(tmp_path, layout=layout, background=background)
    yield sink
    sink.close()


def _equal(one, other):
    if isinstance(one, torch.Tensor):
        same_type = (type(one), one.dtype, one.layout) == (type(other), other.dtype, other.layout)
        one, other = one.to_dense(), other.to_dense()
        return same_type and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


# What is written is read


def test_every_kind_of_value_comes_back(sink, tmp_path):
    for name, value in VALUES.items():
        sink.write(Record(name, value))
    sink.flush()
    for run in (Run(tmp_path), sink.close() or Run(tmp_path)):
        for name, value in VALUES.items():
            assert _equal(run.load(name), value), name


def test_facts_of_the_value_are_in_the_index(sink, tmp_path):
    sink.write(Record("x", torch.ones(2, 3, dtype=torch.bfloat16), step=4, order=7, kind="output"))
    sink.flush()
    stored = Run(tmp_path).find("x")
    assert (stored.framework, stored.type, stored.dtype, stored.shape) == (
        "torch",
        "Tensor",
        "bfloat16",
        (2, 3),
    )
    assert (stored.step, stored.order, stored.kind, stored.nbytes, stored.device) == (
        4,
        7,
        "output",
        12,
        "cpu",
    )
    assert stored.checksum.startswith("xxh3:")


def test_statistics_are_computed_at_once_where_wanted(tmp_path, layout, background):
    sink = RunDirectory(tmp_path, layout=layout, background=background, stats=True)
    sink.write(Record("x", torch.tensor([1.0, 3.0, float("nan")])))
    sink.write(Record("c", np.array([3 + 4j])))
    sink.write(Record("d", {"a": 1}))
    sink.close()
    run = Run(tmp_path)
    found = run.find("x").statistics
    assert (found.min, found.max, found.mean, found.nan) == (1, 3, 2, 1)
    assert run.find("c").statistics.max == 5
    assert run.find("d").statistics is None
    assert not (tmp_path / ".tensortap" / "cache").exists()


def test_the_same_name_again_loses_nothing(sink, tmp_path):
    for number in range(3):
        sink.write(Record("x", np.array([number]), call=number))
    sink.close()
    assert [value.tolist() for value in Run(tmp_path).series("x").values] == [[0], [1], [2]]


def test_files_of_one_name_are_numbered(tmp_path):
    for _ in range(2):  # also when the run is opened again
        sink = RunDirectory(tmp_path, layout="files")
        sink.write(Record("x", np.zeros(1)))
        sink.write(Record("x", torch.zeros(1)))
        sink.close()
    files = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert files == ["x.2.npy", "x.2.pt", "x.npy", "x.pt"]
    assert len(Run(tmp_path)) == 4


def test_two_threads_with_one_name_lose_nothing(sink, tmp_path):
    def work(offset):
        for number in range(50):
            sink.write(Record("x", np.array([offset + number])))

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    found = sorted(stored.load()[0] for stored in Run(tmp_path))
    assert found == [*range(50), *range(100, 150)]


def test_a_value_changed_after_the_write_is_stored_as_it_was(sink, tmp_path):
    tensor, array, nested = torch.zeros(1000), np.zeros((10, 10)), {"a": torch.zeros(3), "b": [1]}
    with _held(sink):
        for name, value in (("tensor", tensor), ("array", array.T), ("nested", nested)):
            sink.write(Record(name, value))
        tensor += 1
        array += 1
        nested["a"] += 1
        nested["b"].append(2)
    sink.flush()
    run = Run(tmp_path)
    assert run.load("tensor").sum() == run.load("array").sum() == 0
    assert run.load("nested")["a"].tolist() == [0, 0, 0]
    assert run.load("nested")["b"] == [1]


class _held:
    """Keep the writer thread from writing; a sink without one goes on."""

    def __init__(self, sink):
        self._lock = sink._lock if sink._writer is not None else threading.Lock()

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()


# In the background


@pytest.fixture
def deferred(tmp_path, layout):
    sink = RunDirectory(tmp_path, layout=layout, background=True, budget=1000)
    yield sink
    sink.close()


def test_flush_returns_when_everything_is_on_disk(deferred, tmp_path):
    for number in range(50):
        deferred.write(Record(f"x{number}", np.zeros(10)))
    deferred.flush()
    assert len(Run(tmp_path)) == 50


def test_what_waits_does_not_keep_the_programs_memory_alive(deferred):
    value = torch.zeros(100)
    found = weakref.ref(value)
    with _held(deferred):
        deferred.write(Record("x", value))
        del value
        gc.collect()
        assert found() is None


def test_a_full_queue_makes_the_caller_wait(deferred, tmp_path):
    written = threading.Event()

    def write():
        deferred.write(Record("second", np.zeros(100)))
        written.set()

    with _held(deferred):
        deferred.write(Record("first", np.zeros(100)))
        thread = threading.Thread(target=write)
        thread.start()
        assert not written.wait(0.1)
    thread.join()
    deferred.flush()
    assert Run(tmp_path).names == ["first", "second"]


def test_a_value_larger_than_the_budget_comes_alone(deferred, tmp_path):
    deferred.write(Record("large", np.zeros(10_000)))
    deferred.flush()
    assert Run(tmp_path).load("large").shape == (10_000,)


def test_a_full_queue_drops_and_counts_where_wanted(tmp_path, caplog):
    sink = RunDirectory(tmp_path, background=True, on_full="drop", budget=1000)
    with caplog.at_level(logging.WARNING, "tensortap.background"):
        with _held(sink):
            for number in range(4):
                sink.write(Record(f"x{number}", np.zeros(100)))
        assert len(caplog.messages) == 1
        sink.close()
        sink.close()
    assert sink.dropped == 3
    assert caplog.messages[1:] == ["3 values were dropped because the disk was slower than the program"]
    assert Run(tmp_path).names == ["x0"]


def test_a_failure_is_told_at_the_next_call_and_the_rest_is_kept(tmp_path, monkeypatch):
    sink = RunDirectory(tmp_path, layout="files", background=True)
    with monkeypatch.context() as patch:
        patch.setattr(AtomicFolder, "write_new", _full)
        sink.write(Record("lost", np.zeros(1)))
        with pytest.raises(
            WriteFailedError, match=r"cannot write 'lost' to .*: no space left; free some space"
        ):
            sink.flush()
    sink.write(Record("kept", np.zeros(1)))
    sink.close()
    assert Run(tmp_path).names == ["kept"]


def test_failures_that_nobody_asked_for_are_told_by_close(tmp_path, monkeypatch):
    sink = RunDirectory(tmp_path, layout="files", background=True)
    monkeypatch.setattr(AtomicFolder, "write_new", _full)
    with _held(sink):
        for name in "abc":
            sink.write(Record(name, np.zeros(1)))
    with pytest.raises(WriteFailedError, match="cannot write 'a'") as caught:
        sink.close()
    assert caught.value.__notes__ == ["2 more values failed after it"]
    sink.close()


def _full(*args):
    raise OSError(28, "No space left")


def test_a_wrong_word_is_refused_at_the_door(tmp_path):
    with pytest.raises(ValueError, match="layout is 'files' or 'pack', not 'packs'"):
        RunDirectory(tmp_path, layout="packs")
    with pytest.raises(ValueError, match="on_full is 'wait' or 'drop', not 'block'"):
        RunDirectory(tmp_path, background=True, on_full="block")


# Closing


def test_closing_twice_does_nothing(sink, tmp_path):
    sink.write(Record("x", np.zeros(3)))
    sink.close()
    sink.close()
    assert len(Run(tmp_path)) == 1


def test_a_value_that_comes_after_closing_is_not_lost(sink, tmp_path):
    sink.write(Record("x", np.zeros(3)))
    sink.close()
    sink.write(Record("y", np.ones(3)))
    sink.flush()
    assert Run(tmp_path).load("y").tolist() == [1, 1, 1]


def test_a_closed_sink_leaves_no_thread_and_no_open_file(tmp_path, layout, background):
    before = len(os.listdir("/proc/self/fd"))
    sink = RunDirectory(tmp_path, layout=layout, background=background)
    sink.write(Record("x", np.zeros(3)))
    sink.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "tensortap-writer"]


# Packs


def test_numpy_opens_a_pack_after_closing(tmp_path, background):
    sink = RunDirectory(tmp_path, background=background)
    sink.write(Record("a/b", np.arange(3)))
    sink.write(Record("t", torch.ones(2)))
    sink.close()
    (file,) = (tmp_path / ".tensortap" / "packs").iterdir()
    with np.load(file) as stored:
        assert {name: stored[name].tolist() for name in stored.files} == {"a%2Fb": [0, 1, 2], "t": [1, 1]}


@pytest.mark.parametrize("limit", ["MAX_PACK_NBYTES", "MAX_MEMBERS"])
def test_a_pack_is_followed_by_another_when_it_is_full(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(pack, limit, 3)
    sink = RunDirectory(tmp_path, write_through=True)
    for number in range(8):
        sink.write(Record(f"x{number}", np.array([number])))
    packs = sorted((tmp_path / ".tensortap" / "packs").iterdir())
    assert len(packs) == (8 if limit == "MAX_PACK_NBYTES" else 3)
    assert all(zipfile.is_zipfile(one) for one in packs[:-1])
    assert [stored.load()[0] for stored in Run(tmp_path)] == list(range(8))
    sink.close()


@pytest.mark.process
def test_packed_values_are_readable_before_closing_and_after_a_crash(tmp_path):
    code = (
        "import os, sys, numpy as np\n"
        "from tensortap.core.record import Record\n"
        "from tensortap.sinks.run_directory import RunDirectory\n"
        f"sink = RunDirectory({str(tmp_path)!r}, write_through=True)\n"
        "for number in range(5): sink.write(Record(f'x{number}', np.full(100, number)))\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [stored.load()[0] for stored in Run(tmp_path)] == [0, 1, 2, 3, 4]
    (file,) = (tmp_path / ".tensortap" / "packs").iterdir()
    os.truncate(file, file.stat().st_size - 200)  # the last value lost its tail
    index = tmp_path / ".tensortap" / "index-rank0.jsonl"
    with open(index, "ab") as file:
        file.write(b'["half a row')
    run = Run(tmp_path)
    assert [run.load(f"x{number}")[0] for number in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"ends at byte .* before a value that should reach to"):
        run.load("x4")


def test_small_packed_values_wait_for_company_but_not_for_ever(tmp_path, monkeypatch):
    sink = RunDirectory(tmp_path)
    sink.write(Record("first", np.ones(3)))  # nothing has been written for long
    sink.write(Record("second", np.ones(3)))
    assert Run(tmp_path).names == ["first"]
    sink.flush()
    assert Run(tmp_path).names == ["first", "second"]
    monkeypatch.setattr(run_storage, "monotonic", lambda: float("inf"))
    sink.write(Record("third", np.ones(3)))
    assert Run(tmp_path).names == ["first", "second", "third"]
    sink.close()


@pytest.mark.process
def test_what_waits_is_on_disk_when_the_program_ends_without_closing(tmp_path, layout):
    code = (
        "import sys, numpy as np\n"
        "from tensortap.core.record import Record\n"
        "from tensortap.sinks.run_directory import RunDirectory\n"
        f"plain = RunDirectory({str(tmp_path / 'plain')!r}, layout={layout!r})\n"
        f"aside = RunDirectory({str(tmp_path / 'aside')!r}, layout={layout!r}, background=True)\n"
        "for number in range(50):\n"
        "    plain.write(Record('x', np.full(100, number)))\n"
        "    aside.write(Record('x', np.full(100, number)))\n"
        "raise SystemExit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    for name in ("plain", "aside"):
        assert [value[0] for value in Run(tmp_path / name).series("x").values] == list(range(50))


def test_a_second_sink_in_the_same_run_adds_to_it(tmp_path, layout):
    sinks = [RunDirectory(tmp_path, layout=layout) for _ in range(2)]
    for number in range(6):
        sinks[number % 2].write(Record("x", np.array([number])))
    for sink in sinks:
        sink.close()
    assert sorted(stored.load()[0] for stored in Run(tmp_path)) == list(range(6))


@pytest.mark.process
def test_a_value_too_large_for_the_limit_costs_only_itself(tmp_path, layout):
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from tensortap.core.errors import WriteFailedError\n"
        "from tensortap.core.record import Record\n"
        "from tensortap.sinks.run_directory import RunDirectory\n"
        f"sink = RunDirectory({str(tmp_path)!r}, layout={layout!r})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "sink.write(Record('before', np.arange(10)))\n"
        "try: sink.write(Record('lost', np.arange(100_000)))\n"
        "except WriteFailedError as error: print(error)\n"
        "sink.write(Record('after', np.arange(10)))\n"
        "sink.close()\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.startswith("cannot write 'lost' to ")
    run = Run(tmp_path)
    assert run.names == ["after", "before"]
    assert run.load("after").tolist() == run.load("before").tolist() == list(range(10))


# Processes


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_has_an_index_of_its_own(sink, tmp_path):
    sink.write(Record("parent", np.array([0])))
    child = os.fork()
    if child == 0:
        try:
            sink.write(Record("child", np.arange(6).reshape(2, 3).T))
            sink.flush()
            sink.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sink.write(Record("parent", np.array([1])))
    sink.close()
    run = Run(tmp_path)
    assert run.load("child").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [value[0] for value in run.series("parent").values] == [0, 1]
    assert len(list((tmp_path / ".tensortap").glob("index-*.jsonl"))) == 2


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_that_only_closes_leaves_the_parents_files_alone(sink, tmp_path):
    sink.write(Record("x", np.array([0])))
    child = os.fork()
    if child == 0:
        try:
            sink.flush()
            sink.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sink.write(Record("x", np.array([1])))
    sink.close()
    assert [value[0] for value in Run(tmp_path).series("x").values] == [0, 1]
    for one in tmp_path.glob(".tensortap/packs/*"):
        assert np.load(one).files == ["x", "x.2"]
