"""Runs that are empty, damaged, or made to do harm: each is told of, and hides no other."""

import json
import os
import shutil
import threading

import numpy as np
import pytest
from tests.viewer.sample import NAMES, STEPS

import tensortap as tt
from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory
from tensortap.viewer.compare.jobs import ComparisonRequest
from tensortap.viewer.web.responses import decode_columns


def test_a_run_without_a_record_is_a_run_all_the_same(look, folder):
    RunDirectory(folder / "begun").close()
    client = look()
    run = client.run("begun")
    for what in ("", "/columns.bin", "/tree", "/rows.bin?q=nan>0&sort=name", "/trace", "/stats.bin"):
        client.get(f"/api/run/{run}{what}")


@pytest.mark.parametrize(
    "file", ["runtime_info.json", ".tensortap/environment.json", ".tensortap/model.json"]
)
@pytest.mark.parametrize("text", ["[" * 100_000, "5", '{"tags": 5, "command": [], "modules": 7}', "{"])
def test_odd_facts_beside_a_run_hide_neither_it_nor_the_others(look, folder, file, text):
    (folder / "a" / file).write_text(text)
    client = look()
    assert len(client.json("/api/runs")["runs"]) == 2
    assert client.json(f"/api/run/{client.run('a')}")["captures"] == STEPS * (len(NAMES) + 1)


def test_a_run_whose_files_are_gone_hides_no_other(look, folder):
    pack = next((folder / "a" / ".tensortap" / "packs").iterdir())
    pack.unlink()
    pack.symlink_to("nowhere")
    client = look()
    states = {run["name"]: run["state"] for run in client.json("/api/runs")["runs"]}
    assert states == {"a": "damaged", "b": "finished"}


@pytest.mark.parametrize(
    ("column", "cell", "status"),
    [
        ("dtype", "float999", 422),
        ("shape", "99999999999,99999999999", 400),
        ("file", ".", 422),
        ("statistics", ["x"] * 8, 200),
        ("statistics", [1, 2], 200),
        ("name", "a." * 50_000, 200),
        ("rank", 10**9, 200),
    ],
)
def test_an_index_that_says_odd_things_is_told_of_in_a_sentence(look, folder, column, cell, status):
    index = folder / "a" / ".tensortap" / "index-rank0.jsonl"
    head, *rows = map(json.loads, index.read_text().splitlines())
    rows[0][head["columns"].index(column)] = cell
    index.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *rows)))
    client = look()
    run = client.run("a")
    for what in ("", "/columns.bin", "/tree", "/trace", "/stats.bin?rows=0", "/row/0"):
        client.get(f"/api/run/{run}{what}")
    assert client.get(f"/api/run/{run}/row/0/tile.bin", status)
    assert len(client.json(f"/api/run/{run}/tree")["nodes"]) < 100


def test_ranks_beyond_all_reason_are_missed_without_being_counted(folder):
    index = folder / "a" / ".tensortap" / "index-rank0.jsonl"
    head, *rows = map(json.loads, index.read_text().splitlines())
    rows[0][head["columns"].index("rank")] = 10**12
    index.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *rows)))
    found = tt.compare_runs(folder / "a", folder / "b")
    assert any("ranks 1, 2, 3, 4, 5, 6, 7, 8, ... have no records" in one for one in found.coverage.problems)


def test_a_run_that_is_written_anew_is_read_anew(look, folder):
    client = look()
    run = client.run("a")
    before = client.get(f"/api/run/{run}/row/0/tile.bin")
    shutil.rmtree(folder / "a")
    sink = RunDirectory(folder / "a")
    sink.write(Record("other", np.full((2, 3), 7, np.float32)))
    sink.close()
    assert client.json(f"/api/run/{run}")["captures"] == 1
    after = client.get(f"/api/run/{run}/row/0/tile.bin", headers={"if-none-match": before.headers["etag"]})
    assert decode_columns(after.content)[1]["value"].tolist() == [7.0] * 6


def test_a_comparison_of_a_run_that_is_written_anew_is_made_anew(look, folder):
    client = look()
    comparisons = client.viewer.state.comparisons
    asked = ComparisonRequest(client.run("a"), client.run("b"))
    first = comparisons.submit(asked)
    is_done = threading.Event()
    comparisons._worker.submit(is_done.set)
    assert is_done.wait(30)
    job = comparisons.job(first)
    assert (job.state, comparisons.job(comparisons.submit(asked))) == ("done", job)
    shutil.rmtree(folder / "b")
    shutil.copytree(folder / "a", folder / "b")
    assert comparisons.job(comparisons.submit(asked)) is not job


def test_a_run_that_is_written_anew_into_the_same_files_is_read_anew(look, folder):
    client = look()
    run = client.run("b")
    tag = client.get(f"/api/run/{run}/row/17/tile.bin").headers["etag"]
    for path in (folder / "a" / ".tensortap").rglob("*"):
        other = folder / "b" / path.relative_to(folder / "a")
        if path.is_file() and other.is_file():
            other.write_bytes(path.read_bytes())  # as when a file gets the number of one that is gone
    after = client.get(f"/api/run/{run}/row/17/tile.bin", headers={"if-none-match": tag})
    expected = client.get(f"/api/run/{client.run('a')}/row/17/tile.bin")
    assert (
        decode_columns(after.content)[1]["value"].tolist()
        == decode_columns(expected.content)[1]["value"].tolist()
    )


@pytest.mark.parametrize("what", ["tile.bin", "hist", "value.npy", "top"])
def test_a_file_that_is_cut_off_while_it_is_looked_at_ends_an_answer_and_not_the_viewer(look, folder, what):
    client = look()
    run = client.run("a")
    client.get(f"/api/run/{run}/row/0/tile.bin")  # which maps it
    pack = next((folder / "a" / ".tensortap" / "packs").iterdir())
    os.truncate(pack, 100)
    told = client.json(f"/api/run/{run}/row/0/{what}", 422)
    assert "has become shorter" in told["error"]["text"]


def test_a_trace_that_is_written_anew_is_read_anew_even_with_as_many_values(look, tmp_path):
    pytest.importorskip("h5py")

    def written(name, number):
        sink = tt.HDF5(tmp_path / "trace.h5")
        sink.write(Record(name, np.full((3, 3), number, np.float32)))
        sink.close()

    written("before", 1)
    client = look(tmp_path / "trace.h5")
    base = f"/api/run/{client.run('trace.h5')}/row/0"
    tag = client.get(f"{base}/tile.bin").headers["etag"]
    written("after", 5)
    client.viewer.state.library.open_run(client.run("trace.h5"))._last_refresh = 0.0
    after = client.get(f"{base}/tile.bin", headers={"if-none-match": tag})
    assert decode_columns(after.content)[1]["value"].tolist() == [5.0] * 9
    assert client.json(base)["name"] == "after"
