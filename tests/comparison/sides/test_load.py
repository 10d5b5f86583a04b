"""Whatever can be compared becomes a side: values that are known without being read, and what is wrong."""

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from operator import methodcaller

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.load import Side, load_side
from tensortap.core.errors import CorruptRunError, NoRunError
from tensortap.core.record import Placement, Record, Site
from tensortap.sinks.run_directory import RunDirectory


def write(path, records, **options):
    sink = RunDirectory(path, **options)
    for record in records:
        sink.write(record)
    sink.close()
    return path


def numbered(*names, **facts):
    return [Record(name, np.full((2, 3), float(n)), order=n, **facts) for n, name in enumerate(names)]


def load(entry: Entry) -> float:
    return float(entry.load().sum())


def test_a_run_is_known_without_reading_a_value(tmp_path):
    site, placement = Site("f", "model.py", 7), Placement((2,), (1,), ("shard(0)",), (4, 3), (2, 0))
    record = Record("w", torch.ones(2, 3), "param", 4, 0, 1, 9, 0.0, site, placement)
    write(tmp_path / "run", [record])
    for pack in (tmp_path / "run").rglob("*.npz"):
        os.truncate(pack, 0)
    (entry,) = load_side(tmp_path / "run").entries
    assert (entry.name, entry.kind, entry.step, entry.rank, entry.call, entry.order) == (
        "w",
        "param",
        4,
        0,
        1,
        9,
    )
    assert (entry.dtype, entry.shape, entry.nbytes) == ("float32", (2, 3), 24)
    assert (entry.site, entry.placement) == (site, placement)
    with pytest.raises(CorruptRunError):
        entry.load()


def test_entries_come_by_step_then_as_they_were_seen(tmp_path):
    records = [
        Record(name, np.ones(1), step=s, order=o) for name, s, o in [("c", 1, 0), ("b", 0, 9), ("a", 0, 2)]
    ]
    assert [entry.name for entry in load_side(write(tmp_path / "run", records)).entries] == ["a", "b", "c"]


def test_steps_and_ranks_that_were_merged_stay_tuples(tmp_path):
    side = load_side(write(tmp_path / "run", [Record("x", np.ones(2), step=(3, 4), rank=(0, 1))]))
    assert (side.entries[0].step, side.entries[0].rank, side.is_whole) == ((3, 4), (0, 1), True)


@pytest.mark.process
def test_another_process_reads_a_value_itself(tmp_path):
    side = load_side(write(tmp_path / "run", numbered("x", "y")))
    assert len(pickle.dumps(side.entries[1])) < 1000
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert [found.sum() for found in pool.map(methodcaller("load"), side.entries)] == [0.0, 6.0]


@pytest.mark.process
def test_the_numbers_are_read_without_the_library_they_came_from(tmp_path):
    write(tmp_path / "run", [Record("x", torch.tensor([1.0, 2.0], dtype=torch.bfloat16))])
    code = (
        "import sys; from tensortap.comparison.sides.load import load_side; "
        f"held = load_side({str(tmp_path / 'run')!r}).entries[0].operand(); "
        "print(held.dtype, held.bits.shape, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["bfloat16", "(2,)", "False"]


def test_of_a_folder_of_runs_the_newest_is_taken_and_that_is_said(tmp_path):
    for name in ("20250101_000000", "20250102_000000"):
        write(tmp_path / name, numbered(name))
    side = load_side(tmp_path)
    assert side.names == ["20250102_000000"]
    assert side.notes == [f"{tmp_path} holds 2 runs; the newest is taken: 20250102_000000"]


def test_a_folder_without_runs_says_what_to_give(tmp_path):
    with pytest.raises(NoRunError, match="is not a run directory"):
        load_side(tmp_path)
    with pytest.raises(NoRunError, match="does not exist"):
        load_side(tmp_path / "nowhere")


def test_a_run_that_is_being_written_is_not_whole(tmp_path):
    sink = RunDirectory(tmp_path / "run")
    sink.write(Record("x", np.ones(3)))
    sink.flush()
    side = load_side(tmp_path / "run")
    assert not side.is_whole
    assert "still being written" in side.problems[0]
    assert side.names == ["x"]
    sink.close()
    assert load_side(tmp_path / "run").is_whole


def test_a_run_that_was_cut_off_long_ago_is_not_whole(tmp_path):
    run = write(tmp_path / "run", numbered("x", "y"))
    (pack,) = run.rglob("*.npz")
    os.truncate(pack, pack.stat().st_size - 30)
    os.utime(pack, (0, 0))
    side = load_side(run)
    assert side.problems == [
        "it was cut off, or its writer sleeps: rank0-0000.npz has no end; what is there counts"
    ]
    assert [load(entry) for entry in side.entries] == [0.0, 6.0]


def test_half_a_line_of_the_index_is_a_run_cut_off(tmp_path):
    run = write(tmp_path / "run", numbered("x", "y"))
    index = run / ".tensortap" / "index-rank0.jsonl"
    os.truncate(index, index.stat().st_size - 5)
    side = load_side(run)
    assert (side.names, len(side.problems)) == (["x"], 1)


def test_a_damaged_line_of_the_index_is_a_problem(tmp_path):
    run = write(tmp_path / "run", numbered("x", "y"))
    index = run / ".tensortap" / "index-rank0.jsonl"
    index.write_bytes(index.read_bytes().replace(b'["x"', b'{"x"'))
    side = load_side(run)
    assert side.names == ["y"]
    assert "damaged" in side.problems[0]


def test_damaged_metadata_costs_no_value(tmp_path):
    run = write(tmp_path / "run", numbered("x"))
    (run / "packages.json").write_text("{")
    side = load_side(run)
    assert side.names == ["x"]
    assert "the facts beside its values cannot be read" in side.problems[0]


def test_a_run_without_records_is_not_whole(tmp_path):
    assert load_side(write(tmp_path / "run", [])).problems == ["it holds no records"]


def test_a_rank_without_records_is_missed(tmp_path):
    run = write(tmp_path / "run", [Record("x", np.ones(1), rank=rank) for rank in (0, 1, 3)])
    told = "rank 2 has no records; compare one rank alone by rank=... or --rank"
    assert load_side(run).problems == [told]


def test_ranks_are_missed_that_the_launcher_has_started(tmp_path):
    run = write(tmp_path / "run", numbered("x"))
    (run / "runtime_info.json").write_text('{"environment_variables": {"WORLD_SIZE": "4"}}')
    assert load_side(run).problems[0].startswith("ranks 1, 2, 3 have no records")
    assert load_side(tt.Run(run).filter(rank=0)).is_whole
    assert load_side(run).select(rank=0).is_whole


def test_a_trace_file_is_a_side(tmp_path):
    sink = tt.HDF5(tmp_path / "trace.h5")
    for step in range(2):
        sink.write(Record("x", np.full(3, step), step=step))
        sink.write(Record("x", np.full(3, 10 + step), step=step))
    sink.close()
    side = load_side(tmp_path / "trace.h5")
    assert [(one.step, one.call) for one in side.entries] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [one.load()[0] for one in side.entries] == [0, 10, 1, 11]
    assert load_side(tt.TraceFile(tmp_path / "trace.h5")).names == ["x"]


@pytest.mark.parametrize("suffix", [".npy", ".pt", ".pkl"])
def test_a_file_of_one_value_is_a_side_of_one(tmp_path, suffix):
    value = torch.ones(2, 3) if suffix == ".pt" else np.ones((2, 3))
    path = tmp_path / f"some{suffix}"
    if suffix == ".pt":
        torch.save(value, path)
    elif suffix == ".npy":
        np.save(path, value)
    else:
        path.write_bytes(pickle.dumps(value))
    (entry,) = load_side(path).entries
    assert (entry.name, entry.shape, load(entry)) == ("value", (2, 3), 6.0)


def test_the_leaves_of_a_file_have_names(tmp_path):
    torch.save({"a": torch.ones(2), "deep": {"b": [torch.zeros(1), 3]}}, tmp_path / "state.pt")
    assert load_side(tmp_path / "state.pt").names == ["a", "deep['b'][0]", "deep['b'][1]"]
    np.savez(tmp_path / "some.npz", **{"x.weight": np.ones(2), "y": np.zeros(3)})
    assert load_side(tmp_path / "some.npz").names == ["x.weight", "y"]


def test_a_file_that_was_written_again_is_read_again(tmp_path):
    for content in (1.0, 2.0):
        np.save(tmp_path / "x.npy", np.full(3, content))
        assert load(load_side(tmp_path / "x.npy").entries[0]) == 3 * content


def test_a_run_that_was_written_again_is_read_again(tmp_path):
    for content in (1.0, 2.0):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        write(tmp_path / "run", [Record("x", np.full(3, content))])
        assert load(load_side(tmp_path / "run").entries[0]) == 3 * content


def test_a_file_of_a_run_that_is_gone_since_is_missed(tmp_path):
    run = write(tmp_path / "run", numbered("x"))
    assert tt.compare_runs(run, run).is_green
    for pack in run.rglob("*.npz"):
        pack.unlink()
    assert tt.compare_runs(run, run).counts == {"unreadable": 1}


@pytest.mark.process
def test_a_worker_that_has_read_it_before_reads_again_what_was_written_again(tmp_path):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for content in (1.0, 2.0):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            write(tmp_path / "run", [Record("x", np.full(3, content))])
            np.save(tmp_path / "x.npy", np.full(3, content))
            entries = [load_side(tmp_path / name).entries[0] for name in ("run", "x.npy")]
            found = [pool.submit(load, entry).result() for entry in entries]
            assert found == [3 * content, 3 * content]


def test_a_capture_is_a_side_with_the_classes_of_its_modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with tt.capture(model, "**", "**.in") as cap:
        model(torch.ones(1, 2))
    classes = {entry.name: entry.class_name for entry in load_side(cap).entries}
    assert classes["0"] == classes["0.in.input"] == "Linear"
    assert classes["1"] == "ReLU"
    assert classes["out"] == classes["in.input"] == "Sequential"


def test_a_capture_into_a_folder_is_read_from_its_run(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with tt.capture(model, "**", to=tmp_path) as cap:
        model(torch.ones(1, 2))
    side = load_side(cap)
    assert side.path == str(cap.run)
    assert side.metadata["packages"]
    assert {entry.name: entry.class_name for entry in side.entries} == {"0": "Linear", "out": "Sequential"}


def test_records_made_by_hand_stand_in_the_order_of_the_list():
    side = load_side([Record("b", np.ones(1)), Record("a", np.ones(1))])
    assert side.names == ["b", "a"]


def test_values_by_name_are_a_side():
    side = load_side({"logits": torch.ones(2), "cache": (np.zeros(1), "text")}, label="before")
    assert (side.label, side.names) == ("before", ["logits", "cache[0]", "cache[1]"])
    assert side.entries[2].operand() is None
    assert load_side(side) is side


def test_what_cannot_be_compared_says_what_can():
    with pytest.raises(TypeError, match="cannot compare a int; give a run, a folder of runs"):
        load_side(3)


def test_a_side_can_be_narrowed_to_what_is_meant():
    records = [
        Record(f"layers.{n}.attn", np.ones(1), step=step, order=n) for step in range(2) for n in range(3)
    ]
    side = load_side(records)
    assert side.select("layers.0-1.*", "!layers.1").names == ["layers.0.attn", "layers.1.attn"]
    assert side.select("layers.*.attn", "!layers.1.attn", step=1).names == ["layers.0.attn", "layers.2.attn"]
    assert isinstance(side.select(rank=1), Side)
    assert side.select(rank=1).entries == []
