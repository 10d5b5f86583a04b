"""A run: found by name, narrowed by filters, read lazily, and honest about what is damaged."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.errors import CorruptRunError, NoRunError, UnknownNameError
from tensortap.core.record import Placement, Record, Site
from tensortap.readers import stored_record
from tensortap.readers.run import Run
from tensortap.readers.stored_record import ValueReader
from tensortap.sinks.run_directory import RunDirectory

LAYOUTS = pytest.mark.parametrize("layout", ["files", "pack"])


# Finding


def test_numbers_in_names_sort_as_numbers(written):
    names = ["layers.10.out", "layers.2.out", "a", "layers.2.in", ""]
    assert Run(written(*names)).names == ["", "a", "layers.2.in", "layers.2.out", "layers.10.out"]


def test_a_name_that_is_a_lone_digit_of_another_kind_sorts_too(written):
    assert Run(written("x²", "²", "1²")).names == ["1²", "x²", "²"]


def test_a_filter_takes_what_matches_everything(written):
    records = [
        Record(f"layers.{layer}.{kind}", np.zeros(1), step=step, rank=rank, kind=kind)
        for layer in (1, 2)
        for kind in ("input", "output")
        for step in (0, 1)
        for rank in (0, 1)
    ]
    run = Run(written(*records))
    assert len(run) == 16
    assert len(run.filter("layers.*.output")) == len(run.filter(kind="output")) == 8
    assert run.filter("layers.1.**", step=1, rank=0).names == ["layers.1.input", "layers.1.output"]
    assert len(run.filter("layers.1.*").filter(step=0).filter(rank=1, kind="input")) == 1
    assert len(run.filter("nothing")) == 0
    assert run.filter("layers.1.output").names == ["layers.1.output"]


def test_a_filter_reads_the_whole_grammar(written):
    names = [
        "layers.0.attn", "layers.1.attn[0]", "layers.2.attn.out.keys", "layers.2.attn.in.x", "out",
        "layers.2.attn.in.x.grad", "layers.10.attn", "layers.0.mlp", "layers.0.mlp.grad",
    ]  # fmt: skip
    run = Run(written(*names))
    for path, found in {
        "layers.*.attn": ["layers.0.attn", "layers.1.attn[0]", "layers.2.attn.out.keys", "layers.10.attn"],
        "layers.0-2.attn": ["layers.0.attn", "layers.1.attn[0]", "layers.2.attn.out.keys"],
        "layers.1.attn": ["layers.1.attn[0]"],
        "layers.{0,10}.*": ["layers.0.attn", "layers.0.mlp", "layers.10.attn"],
        "**.in": ["layers.2.attn.in.x"],
        "**.grad": ["layers.0.mlp.grad", "layers.2.attn.in.x.grad"],
        "layers.*.attn.out": [
            "layers.0.attn", "layers.1.attn[0]", "layers.2.attn.out.keys", "layers.10.attn"
        ],
        "!layers.**": ["out"],
        "!{**.attn,**.in,**.grad}": ["layers.0.mlp", "out"],
        "!!out": ["out"],
        "<Linear>": [],
    }.items():  # fmt: skip
        assert run.filter(path).names == found, path


def test_a_name_that_exists_means_itself_however_it_reads(written):
    names = ["a*", "ab", "a@1", "a", "!a", "{a,b}", "a[0]", "0-5", "3", "a\nb"]
    run = Run(written(*names))
    for name in names:
        assert run.filter(name).names == [name]
    assert sorted(run.filter("!a*").names) == sorted(set(names) - {"a*"})
    assert sorted(run.filter("!a").names) == ["!a"]
    assert run.filter("ab*").names == ["ab"]


def test_a_name_that_exists_means_itself_among_names_of_one_line(written):
    run = Run(written("a*", "ab", "a@1", "a"))
    for name in run.names:
        assert run.filter(name).names == [name]
    assert run.filter("!a*").names == ["a", "a@1", "ab"]
    assert run.filter("a\nb").names == []


def test_a_filter_selects_a_call_of_each_step(written):
    records = [
        Record(name, np.zeros(1), step=step, call=call)
        for name in ("a", "b")
        for step in (0, 1)
        for call in (0, 1, 2)
    ]
    run = Run(written(*records, Record("c@1", np.zeros(1), call=1)))
    assert [(one.name, one.step, one.call) for one in run.filter("a@2")] == [("a", 0, 2), ("a", 1, 2)]
    assert [(one.name, one.call) for one in run.filter("*@1", step=0)] == [("a", 1), ("b", 1), ("c@1", 1)]
    assert len(run.filter("!a@2")) == len(run) - 2
    assert len(run.filter("a@3")) == 0
    assert len(run.filter("c@1@1")) == len(run.filter("c@1")) == 1


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(2, 2)

    def forward(self, x, mask=None):
        return {"k.v": [self.q(x)]}, x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(), Attention()])
        self.norm = torch.nn.LayerNorm(2)

    def forward(self, x):
        for layer in self.layers:
            nested, x = layer(x, mask=[x])
            x = x + nested["k.v"][0]
        return self.norm(self.norm(x))


def captured(model, *patterns):
    with tt.capture(model, *patterns) as capture:
        model(torch.ones(2, 2, requires_grad=True)).sum().backward()
    return capture.records


def test_what_a_pattern_captures_it_also_finds_again(written):
    model = Model()
    run = Run(written(*captured(model, lambda site: True)))
    for pattern in [
        "layers.*", "layers.0", "layers.0.out", "layers.*[0]", "layers.0[0]['k.v']", "layers.0[*]", "norm@1",
        "layers.*.in", "layers.*.in.mask", "layers.0.in.mask[0]", "layers.*.grad", "layers.0[1].grad", "norm",
        "norm.weight", "norm.weight.grad", "**.q", "**.q.weight", "layers.0-1.q.in", "out", "in.x", "**.in",
        "norm.in.grad", "layers.{0,1}.q",
    ]:  # fmt: skip
        wanted = {(record.name, record.call) for record in captured(model, pattern)}
        assert {(stored.name, stored.call) for stored in run.filter(pattern)} == wanted, pattern


def test_a_kind_is_no_pattern(written):
    run = Run(written(Record("x", np.zeros(1), kind="input"), Record("y", np.zeros(1), kind="output")))
    assert len(run.filter(kind="*put")) == 0
    assert run.filter(kind="input").names == ["x"]


def test_a_filter_of_an_empty_run_is_empty(written):
    run = Run(written())
    assert (len(run), run.names, len(run.filter("**")), len(run.filter(kind="value"))) == (0, [], 0, 0)


def test_load_gives_the_latest_value_of_the_lowest_rank(written):
    run = Run(written(*(Record("x", np.array([step, rank]), step=step, rank=rank)
                        for step in (0, 1) for rank in (2, 1))))  # fmt: skip
    assert run.load("x").tolist() == [1, 1]
    assert run.load("x", rank=2).tolist() == [1, 2]
    assert run.load("x", step=0).tolist() == [0, 1]
    assert run.filter(rank=2).load("x", step=0).tolist() == [0, 2]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_latest_value_may_be_a_forked_childs(tmp_path):
    sink = RunDirectory(tmp_path)
    sink.write(Record("x", np.array([0]), time=1.0))
    child = os.fork()
    if child == 0:
        sink.write(Record("x", np.array([1]), time=2.0))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sink.close()
    assert Run(tmp_path).load("x").tolist() == [1]


def test_a_merged_record_is_found_by_its_steps(written):
    run = Run(written(Record("x", np.zeros(1), step=(1, 2), rank=(0, 1)), Record("x", np.ones(1), step=3)))
    assert [stored.step for stored in run] == [(1, 2), 3]
    assert run.series("x").steps == [(1, 2), 3]


def test_a_series_is_in_the_order_of_steps(written):
    run = Run(written(*(Record("x", np.array([step]), step=step, order=9 - step) for step in (2, 0, 1))))
    series = run.series("x")
    assert ([value[0] for value in series.values], series.steps, series.ranks) == (
        [0, 1, 2],
        [0, 1, 2],
        [0] * 3,
    )


def test_membership_length_and_position(written):
    run = Run(written("a", "b", "c"))
    assert "a" in run
    assert "d" not in run
    assert "a" not in run.filter("b")
    assert [run[0].name, run[-1].name, run.filter("b")[0].name] == ["a", "c", "b"]
    assert all(np.array_equal(run[name], run.load(name)) for name in run.names)  # what is in it, it gives
    with pytest.raises(IndexError, match=r"no record 3; there are 3, counted from 0"):
        run[3]
    with pytest.raises(TypeError, match=r"read by a name or the number of a record, not 1.5"):
        run[1.5]


def test_an_unknown_name_tells_the_nearest(written):
    run = Run(written("layers.0.out", "layers.1.out"))
    with pytest.raises(UnknownNameError) as caught:
        run.load("layer.0.out")
    assert str(caught.value) == (
        f"no record 'layer.0.out' in {run.path}; "
        "did you mean 'layers.0.out' or 'layers.1.out'? names lists all 2"
    )
    with pytest.raises(UnknownNameError, match=r"^no record 'zzz' in .*; names lists all 2$"):
        run.series("zzz")


def test_a_known_name_without_that_step_says_so(written):
    with pytest.raises(UnknownNameError) as caught:
        Run(written("x")).load("x", step=7)
    assert str(caught.value) == "'x' has no record with step=7; filter('x') lists what it has"


def test_what_is_not_a_run_says_what_it_is(tmp_path, written):
    written("x")
    (tmp_path / "other").mkdir()
    for path, told in {
        tmp_path / "gone": "does not exist; give the folder that init() made",
        tmp_path: "is not a run but holds 1: run; give one of them",
        tmp_path
        / "other": "is not a run directory: it has no .tensortap folder; give the folder that init() made",
    }.items():
        with pytest.raises(NoRunError) as caught:
            Run(path)
        assert str(caught.value) == f"{path} {told}"


# Records and values


def test_a_record_comes_back_whole(written):
    site = Site("f", "train.py", 12, 1, ("main", "f"))
    place = Placement((2,), (1,), ("shard(0)",), (4, 3), (2, 0))
    record = Record("x", {"a": 1}, "output", 3, 1, 2, 5, 12.5, site, place)
    assert Run(written(record))[0].record() == record


def test_iterating_reads_no_value(written, monkeypatch):
    run = Run(written("a", "b"))
    monkeypatch.setattr(ValueReader, "_map", None)
    assert [(stored.name, stored.shape, stored.nbytes) for stored in run] == [("a", (1,), 8), ("b", (1,), 8)]


@LAYOUTS
@pytest.mark.parametrize("value", [torch.arange(1000), np.arange(1000)])
def test_a_loaded_value_lies_over_the_file_and_writing_to_it_stays_private(written, layout, value):
    path = written(Record("x", value), layout=layout)
    stored = Run(path).find("x")
    before = (path / stored.file).read_bytes()
    loaded = stored.load()
    assert _is_mapped(np.asarray(loaded).ctypes.data, path / stored.file)
    loaded[:] = -1
    assert (path / stored.file).read_bytes() == before
    assert Run(path).load("x")[5] == 5


def _is_mapped(address, path):
    """Whether the memory at that address is a private mapping of the file."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(str(path))]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[1].endswith("p")]
    return any(start <= address < end for start, end in spans)


def test_many_values_at_once_do_not_use_up_the_open_files(written, monkeypatch):
    monkeypatch.setattr(stored_record, "_MAX_MAPPED_FILES", 10)
    run = Run(written(*["x"] * 100, layout="files"))
    before = len(os.listdir("/proc/self/fd"))
    series = run.series("x")
    assert len(os.listdir("/proc/self/fd")) - before <= 10
    assert [value[0] for value in series.values] == list(range(100))
    series.values[50][0] = -1
    assert Run(run.path).series("x").values[50][0] == 50


def test_a_run_is_read_while_it_is_written(tmp_path):
    sink = RunDirectory(tmp_path, write_through=True)
    run = Run(tmp_path)
    for number in range(3):
        sink.write(Record(f"x{number}", np.full(1000, number)))
        assert run.refresh() == 1
        assert run.load(f"x{number}")[999] == number
    sink.close()
    assert run.load("x0")[0] == 0


@pytest.mark.process
@LAYOUTS
def test_a_torch_value_is_read_where_torch_is_not_installed(written, layout):
    path = written(Record("x", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)), layout=layout)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tensortap.readers.run import Run\n"
        f"print(Run({str(path)!r}).load('x').astype(float).tolist())\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[1.5, -2.0]"


# Damage


@pytest.mark.parametrize("value", [np.arange(3), {"a": 1}, torch.eye(2).to_sparse()])
def test_a_missing_file_is_named_and_the_others_are_read(written, value):
    path = written(Record("lost", value), "kept", layout="files")
    run = Run(path)
    (path / run.find("lost").file).unlink()
    with pytest.raises(
        CorruptRunError, match=r"lost.* is in the index but not on disk; the other values of the run"
    ):
        run.load("lost")
    assert run.load("kept").tolist() == [1]


@LAYOUTS
def test_a_file_that_is_too_short_is_named_and_the_others_are_read(written, layout):
    path = written("kept", Record("cut", np.arange(10_000)), layout=layout)
    stored = Run(path).find("cut")
    with open(path / stored.file, "r+b") as file:
        file.truncate(5000)
    run = Run(path)
    with pytest.raises(CorruptRunError, match="ends at byte 5000 before a value that should reach to"):
        run.load("cut")
    assert run.load("kept").tolist() == [0]


def test_an_empty_file_is_named(written):
    path = written("x", layout="files")
    (path / "x.npy").write_bytes(b"")
    with pytest.raises(CorruptRunError, match="is empty although the index lists a value in it"):
        Run(path).load("x")


def test_damaged_lines_are_counted_where_the_run_is_shown(written):
    path = written("a")
    with open(path / ".tensortap" / "index-rank0.jsonl", "ab") as file:
        file.write(b"oops\n")
    run = Run(path)
    assert len(run.problems) == 1
    assert ", 1 damaged" in repr(run)
    assert run.load("a").tolist() == [0]


# Metadata and showing


def test_metadata_stands_beside_the_values(written):
    path = written("x")
    (path / "runtime_info.json").write_text(json.dumps({"command": {"argv": ["é"]}}), encoding="utf-8")
    (path / "project.patch").write_bytes(b"\xff diff")
    (path / ".tensortap" / "environment.json").write_text("{}")
    metadata = Run(path).metadata
    assert metadata["runtime_info"]["command"]["argv"] == ["é"]
    assert (metadata["packages"], metadata["patch"]) == ({}, b"\xff diff")


def test_damaged_metadata_is_named(written):
    path = written("x")
    (path / "packages.json").write_text('{"half": ')
    with pytest.raises(
        CorruptRunError, match=r"packages\.json is not whole .*; the values of the run can still"
    ):
        _ = Run(path).metadata


def test_a_run_shows_what_it_holds(written):
    path = written(Record("a", torch.zeros(2, 3), step=4), Record("d", {"k": 1}), layout="files")
    lines = repr(Run(path)).splitlines()
    assert re.fullmatch(rf"run {path}: 2 records of 2 names, \d+ B", lines[0])
    assert [line.split() for line in lines[1:3]] == [
        ["name", "step", "rank", "dtype", "shape", "size", "file"],
        ["a", "4", "0", "float32", "[2,", "3]", "24", "a.pt"],
    ]
    assert lines[3].split()[:4] == ["d", "0", "0", "dict"]


def test_a_long_run_shows_its_beginning(written):
    assert repr(Run(written(*"x" * 30))).splitlines()[-1] == "... 10 more"


def test_a_notebook_shows_names_as_text(written):
    html = Run(written("<script>alert(1)</script>"))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_name_that_cannot_be_printed_is_shown_in_escapes(written):
    run = Run(written("a\nb", "\ud800", "\x1b[31m"))
    for shown in (repr(run), run._repr_html_()):
        shown.encode()
        assert "\x1b" not in shown
    assert len(repr(run).splitlines()) == 5
