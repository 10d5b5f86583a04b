"""`tensortap show` shows one value: where it is from, its numbers, a picture of it."""

import pickle
import struct
import zlib

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.record import Record, Site
from tensortap.core.tap import Tap
from tensortap.formats.safetensors import NamedArray, write_safetensors
from tensortap.sinks.hdf5 import HDF5
from tensortap.sinks.run_directory import RunDirectory


@pytest.fixture
def run(make_run):
    ramps = [np.arange(12, dtype="f4").reshape(3, 4) + step for step in range(4)]
    return make_run(
        **{"layers.0.attn": ramps, "layers.1.attn": ramps, "loss": [3.0, 2.0, 1.0, 0.5], "note": ["hello"]}
    )


def test_the_latest_value_of_a_name_is_shown(run, tensortap):
    said = tensortap("show", f"{run}:layers.0.attn")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "layers.0.attn  step 3, rank 0  (one of 4 records)"
    assert lines[1] == "float32 [3, 4], 48 B, output, numpy, cpu"
    assert lines[2].startswith("min 3.00  max 14.0  mean 8.50")
    assert "50% 8.50" in lines[3]
    assert "[:,:] 3 x 4, 3.00 .. 14.0" in said.out
    assert "mean of 4 records, steps 0 to 3, 5.50 -> 8.50" in said.out
    assert "▁" in said.out


@pytest.mark.parametrize("where", ["layers.0.attn@1", "layers.0.attn --step 1"])
def test_a_step_may_stand_behind_the_name_or_in_an_option(run, tensortap, where):
    first, *rest = where.split()
    assert "step 1, rank 0" in tensortap("show", f"{run}:{first}", *rest).out


@pytest.mark.parametrize("suffix", ["", ".h5"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--step 99", "step 99; --step can be 0-1,5"),
        ("--rank 3", "rank 3; --rank can be 0-1"),
        ("--call 7", "call 7"),
        ("--step 5 --rank 1", "rank 1 at step 5; --rank can be 0"),
        ("--step 5 --rank 0 --call 2", "call 2 at step 5, rank 0; --call can be 0"),
    ],
)
def test_an_option_that_leads_nowhere_is_told_what_it_can_be(tmp_path, tensortap, suffix, options, told):
    sink = HDF5(tmp_path / "run.h5") if suffix else RunDirectory(tmp_path / "run")
    for step, rank in [(0, 0), (0, 1), (1, 0), (5, 0)]:
        sink.write(Record("x", np.ones(2), step=step, rank=rank))
    sink.close()
    said = tensortap("show", f"{tmp_path / 'run'}{suffix}:x", *options.split())
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith(f"tensortap show: 'x' has no value of {told}")


def test_a_value_merged_from_several_steps_is_that_of_each(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "run")
    sink.write(Record("x", np.ones(2), step=(0, 1), rank=(0, 1)))
    sink.close()
    assert tensortap("show", f"{tmp_path / 'run'}:x", "--step", 1, "--rank", 0).code == 0
    assert tensortap("show", f"{tmp_path / 'run'}:x@2").err.endswith("--step can be 0-1\n")


def test_where_a_value_was_made_is_told(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "run")
    sink.write(Record("x", np.ones(2), site=Site("forward", "model.py", 212)))
    sink.close()
    assert "made at model.py:212 in forward" in tensortap("show", f"{tmp_path / 'run'}:x").out


def test_a_run_alone_or_a_pattern_lists_the_names(run, tensortap):
    said = tensortap("show", run)
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "name",
        "layers.0.attn",
        "layers.1.attn",
        "loss",
        "note",
    ]
    assert "4 names; tensortap show" in said.err
    assert len(tensortap("show", f"{run}:layers.*.attn").out.splitlines()) == 3
    told = tensortap("show", run, "--json").json
    assert [one["records"] for one in told["values"]] == [4, 4, 4, 1]


def test_numbers_and_words_of_python_are_shown_too(run, tensortap):
    said = tensortap("show", f"{run}:loss")
    assert "min 0.500" in said.out
    assert "3.00 -> 0.500" in said.out
    assert tensortap("show", f"{run}:note").out.splitlines()[-1] == "'hello'"


def test_json_tells_everything_once(run, tensortap):
    told = tensortap("show", f"{run}:layers.1.attn@2", "--json", "--bars", "3", "--values").json
    assert told["schema"] == "tensortap.show/1"
    assert (told["name"], told["step"], told["shape"], told["dtype"]) == (
        "layers.1.attn",
        2,
        [3, 4],
        "float32",
    )
    assert told["statistics"]["mean"] == 7.5
    assert told["percentiles"]["50"] == 7.5
    assert told["histogram"] == [4, 4, 4]
    assert [one["step"] for one in told["history"]] == [0, 1, 2, 3]
    assert told["values"][0] == [2, 3, 4, 5]


def test_json_says_nan_and_infinity_in_words(make_run, tensortap):
    run = make_run(x=[np.array([np.nan, np.inf, 1.0])])
    told = tensortap("show", f"{run}:x", "--json", "--values").json
    assert told["values"] == ["NaN", "Infinity", 1.0]
    assert (told["statistics"]["nan"], told["statistics"]["inf"]) == (1, 1)


def test_a_slice_narrows_statistics_picture_and_values(make_run, tensortap):
    run = make_run(x=[np.arange(120).reshape(2, 3, 4, 5)])
    told = tensortap("show", f"{run}:x", "--slice", "1,2,:,:", "--json").json
    assert (told["slice"], told["statistics"]["min"], told["statistics"]["count"]) == ("1,2,:,:", 100, 20)
    assert "[1,2,:,:] 4 x 5" in tensortap("show", f"{run}:x", "--slice", "1,2,:,:").out
    assert (
        tensortap("show", f"{run}:x", "--slice", "0,0,1:3,:2", "--values").out == "[0,:] 5 6\n[1,:] 10 11\n"
    )
    assert tensortap("show", f"{run}:x", "--slice", "...,0,0", "--values").out.startswith("[0,:] 0 20 40\n")
    assert "[0,0,:,:] 4 x 5" in tensortap("show", f"{run}:x").out


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ("9", "[9] is no part of an array of shape [3, 4]"),
        ("a", "is no slice"),
        ("0,0,0", "is no part"),
        ("[::-1]", "goes backwards"),
    ],
)
def test_a_wrong_slice_is_a_wrong_argument(run, tensortap, index, told):
    said = tensortap("show", f"{run}:layers.0.attn", "--slice", index)
    assert said.code == 2
    assert told in said.err


def test_the_heat_map_is_written_as_a_png(run, tensortap, tmp_path):
    target = tmp_path / "map.png"
    said = tensortap("show", f"{run}:layers.0.attn", "--image", target)
    assert said.err == f"tensortap show: written to {target}\n"
    data = target.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (256, 192)
    packed = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
    assert len(zlib.decompress(packed)) == height * (1 + 3 * width)


def test_a_picture_is_replaced_by_another_and_nothing_else_is(run, tensortap, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1\n")
    said = tensortap("show", f"{run}:layers.0.attn", "--image", tmp_path / "mine.py")
    assert (said.code, said.out) == (4, "")
    assert "mine.py exists and is no PNG file" in said.err
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
    for _ in range(2):
        assert tensortap("show", f"{run}:layers.0.attn", "--image", tmp_path / "map.png").code == 0


def test_where_there_is_nothing_to_draw_an_image_is_a_wrong_argument(make_run, tensortap, tmp_path):
    run = make_run(x=[np.ones(3)], words=["some text"])
    for where, told in ((run, "--image draws one value"), (f"{run}:words", "--image draws numbers")):
        said = tensortap("show", where, "--image", tmp_path / "map.png")
        assert (said.code, said.out) == (2, "")
        assert told in said.err
    assert not (tmp_path / "map.png").exists()


def test_the_first_and_the_last_step_may_be_asked_for(make_run, tensortap):
    run = make_run(x=[np.full(3, step) for step in (5, 6, 7)])
    for asked, step in (("first", 0), ("last", 2), ("1", 1)):
        found = tensortap("show", f"{run}:x", "--step", asked, "--rank", "first", "--json").json
        assert (found["step"], found["statistics"]["max"]) == (step, 5 + step)
    said = tensortap("show", f"{run}:x", "--step", "newest")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "'newest' is no number; write 3, first or last" in said.err


def test_values_of_every_number_type_are_printed_exactly(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "run")
    values = {
        "big": torch.tensor([2**62 + 1]),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "eight": torch.tensor([0.5], dtype=torch.float8_e5m2),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
        "float": torch.tensor([0.1]),
    }
    for name, value in values.items():
        sink.write(Record(name, value))
    sink.close()
    printed = {
        name: tensortap("show", f"{tmp_path / 'run'}:{name}", "--values").out.strip() for name in values
    }
    assert printed == {
        "big": str(2**62 + 1),
        "half": "1.5",
        "eight": "0.5",
        "bool": "True False",
        "complex": "(1+2j)",
        "float": "0.1",
    }


ODD = {
    "empty": (np.empty((0, 3)), "no numbers"),
    "all nan": (np.full(4, np.nan), "4 numbers, none of them finite: 4 NaN, 0 Inf"),
    "one number": (np.float64(3.5), "min 3.50"),
    "huge range": (np.array([-1.7e308, 1.7e308]), "-1.70e308"),
    "integers": (np.arange(5), "min 0  max 4  mean 2.00"),
    "text": (np.array(["a", "b"]), "array(['a', 'b']"),
    "five axes": (np.zeros((1, 2, 1, 3, 3)), "[0,0,0,:,:] 3 x 3"),
    "a row": (np.arange(500), "from the first to the last of 500"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_are_shown(make_run, tensortap, name):
    value, told = ODD[name]
    said = tensortap("show", f"{make_run(x=[value])}:x")
    assert (said.code, said.err) == (0, "")
    assert told in said.out


def test_integers_have_a_bar_each(make_run, tensortap):
    out = tensortap("show", f"{make_run(x=[np.array([3, 3, 5])])}:x").out
    assert [line.split()[0] for line in out.splitlines()[5:8]] == ["3", "4", "5"]


def test_files_of_values_are_shown(tmp_path, tensortap):
    np.save(tmp_path / "a.npy", np.eye(3))
    np.savez(tmp_path / "b.npz", w=np.eye(2), b=np.arange(3))
    torch.save({"w": torch.ones(2, 2), "more": [1, "x"]}, tmp_path / "c.pt")
    assert "float64 [3, 3], 72 B" in tensortap("show", tmp_path / "a.npy").out
    assert [line.split()[0] for line in tensortap("show", tmp_path / "b.npz").out.splitlines()] == [
        "name",
        "w",
        "b",
    ]
    assert "int64 [3]" in tensortap("show", f"{tmp_path / 'b.npz'}:b").out
    assert "float32 [2, 2]" in tensortap("show", f"{tmp_path / 'c.pt'}:w").out
    assert tensortap("show", f"{tmp_path / 'b.npz'}:c").err.endswith(
        f"tensortap show {tmp_path / 'b.npz'} lists all 2\n"
    )
    assert tensortap("show", f"{tmp_path / 'b.npz'}:c").code == 3


class Runs:
    def __reduce__(self):
        return eval, ("1",)


def test_a_pickle_of_unknown_origin_is_refused_until_it_is_trusted(tmp_path, tensortap):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Runs()))
    said = tensortap("show", tmp_path / "a.pkl")
    assert said.code == 4
    assert "trust" in said.err
    assert tensortap("show", tmp_path / "a.pkl", "--trust").code == 0


@pytest.mark.parametrize(
    ("where", "code", "told"),
    [
        ("{run}:layers.0.atn", 3, "did you mean 'layers.0.attn'"),
        ("{run}:layers.0.attn@99", 3, "'layers.0.attn' has no value of step 99; --step can be 0-3"),
        ("{run}/nowhere", 3, "does not exist; give a run, RUN:NAME, RUN:NAME@STEP or a file of values"),
        ("nowhere:x", 3, "nowhere does not exist"),
        ("{run}/../../../etc/nowhere.npy", 3, "does not exist"),
        ("{run}/file.txt", 2, "no serializer reads '.txt'"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(run, tensortap, where, code, told):
    (run / "file.txt").write_text("hello")
    said = tensortap("show", where.format(run=run))
    assert (said.code, said.out) == (code, "")
    assert told in said.err
    assert len(said.err.splitlines()) == 1


def test_a_name_with_colons_and_at_signs_means_itself(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "a:b")
    for name in ("pkg.mod:func.x", "attn@2", "層:1@3"):
        sink.write(Record(name, np.ones(2)))
    sink.close()
    for name in ("pkg.mod:func.x", "attn@2", "層:1@3"):
        assert tensortap("show", f"{tmp_path / 'a:b'}:{name}").out.startswith(f"{name}  step 0")


def test_a_damaged_value_is_missing_data(make_run, tensortap):
    run = make_run(layout="files", a=[np.ones(3)])
    (run / "a.npy").write_bytes(b"")
    said = tensortap("show", f"{run}:a")
    assert said.code == 3
    assert "is empty although the index lists a value in it" in said.err


def test_a_stream_without_blocks_gets_ascii(run, tensortap, monkeypatch, capsys):
    monkeypatch.setattr("tensortap.cli.plots.supports_blocks", lambda: False)
    assert tensortap("show", f"{run}:layers.0.attn").out.isascii()


def test_what_is_shown_is_what_python_loads(run, tensortap):
    told = tensortap("show", f"{run}:layers.0.attn@0", "--json", "--values").json
    assert told["values"] == tt.Run(run).load("layers.0.attn", step=0).tolist()


@pytest.fixture
def trace(tmp_path):
    with Tap(sinks=[HDF5(tmp_path / "trace.h5")]) as tap:
        for step in (1, 2, 3):
            tap.emit(Record("forward.x", np.full((2, 2), step, "f4"), step=step))
    return tmp_path / "trace.h5"


def test_a_trace_lists_its_names_and_shows_the_value_of_a_step(trace, tensortap):
    listed = tensortap("show", trace, "--json").json["values"]
    assert [(one["name"], one["records"], one["shape"]) for one in listed] == [("forward.x", 3, [2, 2])]
    assert tensortap("show", f"{trace}:forward.x").out.startswith(f"{trace}:forward.x  step 3, rank 0\n")
    for where in ([f"{trace}:forward.x@2"], [f"{trace}:forward.x", "--step", "2"]):
        told = tensortap("show", *where, "--json").json
        assert (told["step"], told["rank"], told["statistics"]["mean"]) == (2, 0, 2.0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("forward.x@9", "'forward.x' has no value of step 9; --step can be 1-3"),
        ("forward.y", "did you mean 'forward.x'?"),
    ],
)
def test_what_a_trace_does_not_have_is_told(trace, tensortap, name, told):
    said = tensortap("show", f"{trace}:{name}")
    assert said.code == 3
    assert told in said.err


def test_an_hdf5_file_of_others_is_told_to_be_no_trace(tmp_path, tensortap):
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1, 2]
    said = tensortap("show", tmp_path / "other.h5")
    assert said.code == 3
    assert "other.h5 holds no trace" in said.err


def test_the_tensors_of_a_safetensors_file_are_shown_in_their_own_type(tmp_path, tensortap):
    path = tmp_path / "weights.safetensors"
    with path.open("wb") as stream:
        parts = [
            NamedArray("half", np.full(3, 0x3FC0, "u2"), "bfloat16"),
            NamedArray("ones", np.ones(2, "f4"), "float32"),
        ]
        write_safetensors(stream, parts, {})
    listed = tensortap("show", path, "--json").json["values"]
    assert {one["name"]: one["dtype"] for one in listed} == {"half": "bfloat16", "ones": "float32"}
    assert tensortap("show", f"{path}:half", "--json").json["statistics"]["max"] == 1.5
    assert tensortap("show", f"{path}:none").code == 3


def test_a_step_of_a_file_without_steps_is_a_wrong_argument(tmp_path, tensortap):
    np.save(tmp_path / "x.npy", np.ones(2))
    said = tensortap("show", tmp_path / "x.npy", "--step", "3")
    assert said.code == 2
    assert "--step chooses among the values of a run" in said.err


def test_names_that_nobody_could_see_are_quoted_and_paths_can_be_pasted(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "my run")
    for name in ("", " ", "plain"):
        sink.write(Record(name, np.ones(2)))
    sink.close()
    said = tensortap("show", tmp_path / "my run")
    assert {line.split("  ")[0] for line in said.out.splitlines()} == {"name", "''", "' '", "plain"}
    assert f"tensortap show '{tmp_path / 'my run'}':NAME shows one" in said.err
