"""`tensortap verify` finds every byte that is not what was written."""

import json
import os
import re

import numpy as np
import pytest

import tensortap as tt


@pytest.fixture(params=["pack", "files"])
def run(request, make_run):
    values = {"x": [np.arange(100, dtype="f4") + step for step in range(3)], "words": [{"a": 1}]}
    return make_run(layout=request.param, **values)


def test_a_whole_run_is_told_as_whole(run, tensortap):
    said = tensortap("verify", run)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{run}: whole: 4 values, 1.2")


def test_a_single_changed_bit_of_any_value_is_found(run, tensortap):
    for stored in tt.Run(run):
        path = run / stored.file
        data = bytearray(path.read_bytes())
        at = data.index(stored.bits.tobytes()) + 17 if stored.bits is not None else data.rindex(b"a")
        data[at] ^= 1
        path.write_bytes(data)
        said = tensortap("verify", run)
        assert said.code == 3
        assert "changed: " in said.out
        assert f"({stored.name})" in said.out
        data[at] ^= 1
        path.write_bytes(data)
    assert tensortap("verify", run).code == 0


def test_a_short_file_and_a_missing_one_are_damage(run, tensortap):
    files = [tt.Run(run).find("x").file]
    os.truncate(run / files[0], 40)
    said = tensortap("verify", run)
    assert said.code == 3
    assert f"short: {files[0]} ends at byte 40" in said.out
    (run / files[0]).unlink()
    assert f"missing: {files[0]} is in the index but not on disk" in tensortap("verify", run).out


def test_json_names_each_damage(make_run, tensortap):
    run = make_run(layout="files", x=[np.ones(3)], y=[np.ones(3)])
    (run / "x.npy").unlink()
    told = tensortap("verify", run, "--json").json
    assert told["schema"] == "tensortap.verify/1"
    (found,) = told["runs"]
    assert (found["is_whole"], found["records"], found["summed"]) == (False, 2, 1)
    assert found["damage"] == [
        {"kind": "missing", "file": "x.npy", "text": "is in the index but not on disk", "name": "x"}
    ]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_facts_that_cannot_be_read_are_damage(run, tensortap, content):
    (run / "packages.json").write_text(content)
    said = tensortap("verify", run)
    assert said.code == 3
    assert "metadata: packages.json" in said.out


def test_a_damaged_line_of_the_index_is_damage_and_half_a_line_is_not(run, tensortap):
    index = run / ".tensortap" / "index-rank0.jsonl"
    with open(index, "a") as stream:
        stream.write('["half a')
    said = tensortap("verify", run)
    assert said.code == 0
    assert "ends within a line: its writer was cut off" in said.err
    with open(index, "a") as stream:
        stream.write("\n")
    assert tensortap("verify", run).code == 3


def test_a_pack_without_its_directory_is_whole_and_told(make_run, tensortap):
    run = make_run()
    (pack,) = (run / ".tensortap" / "packs").iterdir()
    os.truncate(pack, pack.stat().st_size - 22)
    said = tensortap("verify", run)
    assert said.code == 0
    assert "np.load cannot open it, tensortap can" in said.err


def test_without_checksums_in_the_index_those_of_a_pack_serve(make_run, tensortap):
    run = make_run()
    index = run / ".tensortap" / "index-rank0.jsonl"
    index.write_text(re.sub(r'"xxh3:\w+"', "null", index.read_text()))
    told = tensortap("verify", run, "--json").json["runs"][0]
    assert (told["summed"], told["unsummed"]) == (1, 0)
    (stored,) = tt.Run(run)
    with open(run / stored.file, "r+b") as pack:
        pack.seek(pack.read().index(stored.bits.tobytes()))
        pack.write(b"\xff")
    said = tensortap("verify", run)
    assert said.code == 3
    assert "its part x.npy is not what was written" in said.out


def test_without_any_checksum_lengths_alone_are_checked_and_that_is_said(make_run, tensortap):
    run = make_run(layout="files")
    index = run / ".tensortap" / "index-rank0.jsonl"
    index.write_text(re.sub(r'"xxh3:\w+"', "null", index.read_text()))
    said = tensortap("verify", run)
    assert said.code == 0
    assert "1 of them by their length alone (pip install 'tensortap[fast]' writes checksums)" in said.out


def test_files_that_the_index_does_not_know_are_told(run, tensortap):
    np.save(run / "stray.npy", np.ones(2))
    (run / "notes.txt").write_text("mine")
    said = tensortap("verify", run)
    assert said.code == 0
    assert said.err.endswith("1 file that the index does not know: stray.npy\n")


@pytest.mark.parametrize("way", ["dots", "absolute", "link"])
def test_an_index_that_leads_out_of_the_run_is_not_followed(make_run, tensortap, tmp_path, way):
    run = make_run(layout="files", x=[np.ones(3)])
    np.save(tmp_path / "secret.npy", np.ones(3))
    index = run / ".tensortap" / "index-rank0.jsonl"
    if way == "link":
        (run / "x.npy").unlink()
        (run / "x.npy").symlink_to(tmp_path / "secret.npy")
    else:
        target = "../secret.npy" if way == "dots" else str(tmp_path / "secret.npy")
        index.write_text(index.read_text().replace('"x.npy"', json.dumps(target)))
    said = tensortap("verify", run)
    assert said.code == 3
    assert "lies outside the run, and was not opened" in said.out


def test_several_runs_and_folders_of_runs_are_looked_through(make_run, tensortap, tmp_path):
    make_run("runs/a")
    broken = make_run("runs/b", layout="files")
    (broken / "x.npy").unlink()
    said = tensortap("verify", tmp_path / "runs")
    assert said.code == 3
    assert [line.split(": ")[1] for line in said.out.splitlines() if ": " in line][:2] == ["whole", "damaged"]


def test_an_index_of_another_version_is_damage_not_a_traceback(make_run, tensortap):
    run = make_run()
    (run / ".tensortap" / "index-rank0.jsonl").write_text('{"tensortap_index": 99, "columns": []}\n')
    said = tensortap("verify", run)
    assert said.code == 3
    assert "version 99" in said.out


def test_nothing_to_verify_is_missing_data(tensortap, tmp_path):
    assert tensortap("verify", tmp_path).code == 3
    assert tensortap("verify", tmp_path / "nowhere").code == 3
    assert tensortap("verify").code == 2


def test_verifying_writes_nothing(make_run, tensortap):
    run = make_run(x=[np.ones(1)] * 2500)
    before = sorted(path for path in run.rglob("*"))
    assert tensortap("verify", run).code == 0
    assert sorted(path for path in run.rglob("*")) == before
