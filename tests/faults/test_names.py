"""Any text is a name: stored inside the run, given back exactly."""

import os
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.proof import examples

import tensortap as tt
from tensortap.formats.run_layout import file_stem

NAMES = [
    "a/b",
    "../x",
    "/etc/x",
    "..",
    ".",
    ".hidden",
    ".tensortap",
    "x_rank3",
    "",
    " ",
    "n" * 300,
    "n" * 299 + "m",
    "层.输出 ✓",
    "é" * 300,
    "con",
    "nul.txt",
    "runtime_info",
    "runtime_info.json",
    "project.patch",
    "x.2",
    "x",
    "Layer",
    "layer",
    "LAYER",
    "a\\b",
    "a\nb\tc",
    "a\0b",
    "%2E",
    "%empty",
    'quote " and \\u0041',
    "\ud800 alone",
    "~",
    "-rf",
]


def tree(folder: Path) -> set[str]:
    return {os.path.join(root, name) for root, _, names in os.walk(folder) for name in names}


@pytest.mark.parametrize("layout", ["files", "pack"])
@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
def test_any_name_stays_inside_the_run_and_is_given_back_exactly(tmp_path, layout, background):
    run = tt.init(tmp_path / "runs", layout=layout, background=background)
    outside = tree(tmp_path) - tree(run)
    for number, name in enumerate(NAMES):
        tt.dump([number], name)
    tt.close()
    assert tree(tmp_path) - tree(run) == outside == set()
    assert all(Path(path).parent == run for path in tree(run) if Path(path).suffix == ".pkl")
    opened = tt.Run(run)
    assert set(opened.names) == set(NAMES)
    assert [opened.load(name) for name in NAMES] == [[number] for number in range(len(NAMES))]
    assert opened.metadata["runtime_info"]["command"]


def test_the_second_of_a_name_and_a_name_that_looks_like_it_do_not_meet(tmp_path):
    run = tt.init(tmp_path)
    for number, name in enumerate(["x", "x.2", "x", "x", "x.2", "x.3"]):
        tt.dump(number, name)
    opened = tt.Run(run)
    assert opened.series("x").values == [0, 2, 3]
    assert opened.series("x.2").values == [1, 4]
    assert opened.series("x.3").values == [5]
    assert {file.name for file in run.glob("x*")} >= {"x.pkl", "x.2.pkl", "x.3.pkl"}


def test_a_name_that_is_not_a_text_is_refused_in_one_sentence(tmp_path):
    tt.init(tmp_path)
    with pytest.raises(
        TypeError, match=r"a name is a text, not 7; dump\(value, name\) takes the value first"
    ):
        tt.dump("x", 7)


@given(st.text(max_size=300))
def test_a_file_stem_is_one_short_visible_part_of_a_path(name):
    stem = file_stem(name)
    assert stem
    assert not stem.startswith(".")
    assert "/" not in stem
    assert "\0" not in stem
    assert len(stem.encode()) <= 180


@given(st.lists(st.text(string.printable, max_size=40), unique=True, min_size=2, max_size=2))
def test_different_names_have_different_file_stems(pair):
    assert file_stem(pair[0]) != file_stem(pair[1])


@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(max_size=300), min_size=1, max_size=8))
def test_whatever_the_names_are_the_run_gives_them_back(tmp_path_factory, names):
    sink = tt.RunDirectory(tmp_path_factory.mktemp("run") / "run", layout="files")
    for number, name in enumerate(names):
        sink.write(tt.Record(name, number, order=number))
    sink.close()
    opened = tt.Run(sink.path)
    assert [(stored.name, stored.load()) for stored in opened] == list(
        zip(names, range(len(names)), strict=True)
    )
