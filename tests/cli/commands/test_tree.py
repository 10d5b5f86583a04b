"""`tensortap tree` shows the modules of a run with their values, without loading one."""

import json
import os

import numpy as np
import pytest

from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory


@pytest.fixture
def model_run(make_run):
    layers = {
        f"layers.{layer}.attn": [np.full((4, 8), layer + step, "f4") for step in range(3)]
        for layer in range(3)
    }
    return make_run(**layers, loss=[2.5, 1.5, 0.5], words=[{"a": ["b"]}])


def test_equal_layers_are_one_line_and_numbers_are_shown(model_run, tensortap):
    said = tensortap("tree", model_run)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("run  13 values, ")
    assert "layers.0-2" in said.out
    assert "0 .. 4" in said.out
    assert "2.50 -> 0.500" in said.out


def test_what_is_not_finite_stands_apart(make_run, tensortap):
    run = make_run(**{"a.b": [np.ones(4), np.array([1.0, np.nan])]})
    assert "! 1 with NaN or Inf, first a.b" in tensortap("tree", run).out


def test_a_pattern_steps_and_ranks_narrow_it(model_run, tensortap):
    assert "3 values" in tensortap("tree", model_run, "layers.1.attn").out
    assert "3 values" in tensortap("tree", model_run, "layers.**", "--step", "last").out
    assert "6 values" in tensortap("tree", model_run, "layers.**", "--step", "0..1").out
    assert "6 values" in tensortap("tree", model_run, "layers.**", "--step", "0,2").out
    assert "9 values" in tensortap("tree", model_run, "layers.**", "--rank", "0").out


def test_json_has_a_row_for_each_value(model_run, tensortap):
    told = tensortap("tree", model_run, "layers.2.attn", "--step", "first", "--json").json
    assert told["schema"] == "tensortap.tree/1"
    (row,) = told["values"]
    assert (row["name"], row["shape"], row["min"], row["max"]) == ("layers.2.attn", [4, 8], 2.0, 2.0)
    assert (row["step"], row["rank"], row["count"], row["nan"]) == (0, 0, 32, 0)


def test_the_classes_of_a_captured_model_are_named(make_run, tensortap):
    run = make_run(**{f"layers.{layer}.{part}": [np.ones(3)] for layer in range(4) for part in ("a", "b")})
    modules = {f"layers.{layer}": "Block" for layer in range(4)}
    (run / ".tensortap" / "model.json").write_text(json.dumps({"class": "Net", "modules": modules}))
    out = tensortap("tree", run).out
    assert out.startswith("run Net  8 values")
    assert "x4 Block" in out


def test_a_value_that_cannot_be_read_does_not_cost_the_others(make_run, tensortap):
    run = make_run(layout="files", a=[np.ones(3)], b=[np.ones(3)])
    (run / "a.npy").unlink()
    said = tensortap("tree", run)
    assert said.code == 3
    assert "cannot be read" in said.out
    assert "all 1.00" in said.out


def test_values_that_are_lost_are_told_also_where_their_statistics_are_known(make_run, tensortap):
    run = make_run(layout="files", a=[np.ones(3)], b=[np.ones(3)], c=[np.ones(3)])
    tensortap("tree", run)
    (run / "a.npy").unlink()
    os.truncate(run / "b.npy", 130)
    said = tensortap("tree", run)
    assert said.code == 3
    assert "a.npy is gone" in said.err
    assert "b.npy ends at byte 130 of 152" in said.err
    assert tensortap("tree", run, "c").code == 0


def test_what_is_not_there_is_told_with_the_nearest(model_run, tensortap, tmp_path):
    said = tensortap("tree", model_run, "layers.1.atn")
    assert said.code == 3
    assert "did you mean 'layers.1.attn'" in said.err
    assert tensortap("tree", model_run, "--step", "77").err.endswith("there are 0 to 2\n")
    assert tensortap("tree", model_run, "--step", "77").code == 3
    assert tensortap("tree", tmp_path).err.endswith("is not a run but holds 1: run; give one of them\n")
    assert tensortap("tree", tmp_path / "../nowhere").code == 3


def test_unicode_long_and_odd_names_are_shown(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "run")
    for name in ("слой.層", "n" * 300, "../../etc/passwd", "esc\x1b[31m", "line\nbreak"):
        sink.write(Record(name, np.ones(2)))
    sink.close()
    said = tensortap("tree", tmp_path / "run")
    assert said.code == 0
    assert "層" in said.out
    assert "n" * 300 in said.out
    assert "\x1b" not in said.out


@pytest.mark.parametrize("kind", ["value", "output", "input", "param"])
@pytest.mark.parametrize("name", ["../../escape", "..", ".x", "./y", "x.", "a..b", ". ."])
def test_a_name_is_shown_as_it_is_whatever_its_dots(tmp_path, tensortap, name, kind):
    sink = RunDirectory(tmp_path / "run")
    sink.write(Record(name, np.ones(2), kind))
    sink.close()
    line = tensortap("tree", tmp_path / "run").out.splitlines()[-1]
    assert line.removeprefix("└─ ").startswith(f"{name}  ")


def test_many_damaged_lines_are_told_in_a_few(make_run, tensortap):
    run = make_run()
    with (run / ".tensortap" / "index-rank0.jsonl").open("a") as index:
        index.write("garbage\n" * 50)
    said = tensortap("tree", run)
    assert said.code == 3
    assert said.err.count("\n") == 6
    assert said.err.endswith("45 more problems; tensortap verify tells all\n")
    assert "x" in said.out


def test_of_a_file_it_is_told_what_reads_it(tensortap, tmp_path):
    (tmp_path / "trace.h5").touch()
    for command in (["tree"], ["export"]):
        said = tensortap(*command, tmp_path / "trace.h5", *(["a.npz"] if command == ["export"] else []))
        assert said.code == 3
        assert "trace.h5 is a file, not a run; tensortap show lists its values" in said.err
