"""`tensortap compare` answers with its exit code, on stdout, and in words that help."""

import json
import os
import pickle
import pty
import subprocess
import sys

import numpy as np
import pytest

from tensortap.cli.main import main
from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory


@pytest.fixture
def written(tmp_path):
    """Write a run of one value for each name and number; give its path."""

    def write(name, step=0, **numbers):
        sink = RunDirectory(tmp_path / name)
        for order, (key, number) in enumerate(numbers.items()):
            sink.write(
                Record(key, np.full((4, 4), number, "f4") + np.eye(4, dtype="f4"), order=order, step=step)
            )
        sink.close()
        return str(tmp_path / name)

    return write


def run(capsys, *arguments):
    code = main(["compare", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_same_run_twice_is_identical(written, capsys):
    a = written("a", x=1, y=2)
    code, out, err = run(capsys, a, a)
    assert (code, err) == (0, "")
    assert "\nIDENTICAL\n" in out
    assert "2 pairs: 2 identical" in out


def test_different_runs_name_where_they_part(written, capsys):
    code, out, _ = run(capsys, written("a", x=1, y=2, z=3), written("b", x=1, y=2.5, z=3))
    assert code == 1
    assert "DIFFERENT from y on" in out


def test_what_only_one_side_has_is_no_success(written, capsys):
    code, out, _ = run(capsys, written("a", x=1, y=2), written("b", x=1))
    assert code == 3
    assert "INCOMPLETE: identical in what could be compared" in out
    assert "gap: 1 only in A: y" in out


def test_a_damaged_file_leaves_the_rest_to_be_compared(written, capsys, tmp_path):
    a, b = written("a", x=1, y=2), written("b", x=1, y=2)
    (pack,) = (tmp_path / "b").rglob("*.npz")
    os.truncate(pack, 300)
    code, out, _ = run(capsys, a, b)
    assert code == 3
    assert "1 unreadable" in out
    assert "1 identical" in out


def test_no_name_in_common_tells_how_to_map_and_the_map_works(written, capsys, tmp_path):
    a, b = written("a", **{"layers.0": 1}), written("b", **{"h.0": 9})
    code, out, _ = run(capsys, a, b)
    assert code == 3
    assert "no name is on both sides: A has 'layers.0', B has 'h.0'" in out
    rules = tmp_path / "map.toml"
    rules.write_text('[[rule]]\nfrom = "layers"\nto = "h"\n')
    code, out, _ = run(capsys, a, b, "--map", str(rules))
    assert code == 1
    assert "DIFFERENT from layers.0 on" in out


FAIL_ON = [
    ("nothing", {"x": 1}, {"x": 2}, 0),
    ("bits", {"x": 1}, {"x": 1 + 1e-6}, 1),
    ("difference", {"x": 1}, {"x": 1 + 1e-6}, 0),
    ("difference", {"x": 1, "y": 1}, {"x": 1}, 0),
    ("gaps", {"x": 1, "y": 1}, {"x": 1}, 3),
    ("difference,gaps", {"x": 1, "y": 1}, {"x": 2}, 1),
    ("uncalibrated", {"x": 1}, {"x": 1}, 3),
]


@pytest.mark.parametrize(("reasons", "a", "b", "expected"), FAIL_ON, ids=range(len(FAIL_ON)))
def test_the_caller_says_what_counts_as_failure(written, capsys, reasons, a, b, expected):
    assert run(capsys, written("a", **a), written("b", **b), "--fail-on", reasons)[0] == expected


def test_json_is_one_object_on_stdout(written, capsys):
    code, out, _ = run(capsys, written("a", x=1), written("b", x=2), "--json")
    told = json.loads(out)
    assert (code, told["exit_code"]) == (1, 1)
    assert told["first"]["seen_at"] == "x"
    assert told["coverage"]["pairs"] == 1


def test_a_run_that_repeats_the_first_is_a_floor(written, capsys):
    a, again, b = written("a", x=1), written("again", x=1.01), written("b", x=1.02)
    assert run(capsys, a, b)[0] == 1
    code, out, _ = run(capsys, a, b, "--floor", again)
    assert code == 0
    assert "WITHIN NOISE" in out


def test_one_value_tells_its_whole_story(written, capsys):
    code, out, _ = run(capsys, written("a", x=1, y=2), written("b", x=1, y=3), "--explain", "y")
    assert code == 1
    assert out.startswith("y: origin")
    assert "paired by name; float32 [4, 4]" in out


def test_one_value_tells_its_whole_story_as_data_too(written, capsys):
    a, b = written("a", x=1, y=2), written("b", x=1, y=2.5)
    code, out, _ = run(capsys, a, b, "--json", "--explain", "y")
    told = json.loads(out)
    assert (code, told["schema"]) == (1, "tensortap.comparison/1")
    assert told["explained"].startswith("y: origin, ")
    code, out, err = run(capsys, a, b, "--json", "--explain", "z")
    assert (code, out) == (2, "")
    assert "no pair 'z'" in err


def test_the_report_is_saved_and_where_is_said_on_stderr(written, capsys, tmp_path):
    a = written("a", x=1)
    target = tmp_path / "report.html"
    _, out, err = run(capsys, a, a, "--save", str(target))
    assert err == f"tensortap compare: written to {target}\n"
    assert "<html" in target.read_text().lower()
    assert "IDENTICAL" in out


def test_two_files_are_compared(tmp_path, capsys):
    for name, value in (("a", 1.0), ("b", 1.5)):
        np.save(tmp_path / f"{name}.npy", np.full(4, value))
    code, out, _ = run(capsys, str(tmp_path / "a.npy"), str(tmp_path / "b.npy"))
    assert code == 1
    assert "DIFFERENT from value on" in out


def test_a_choice_of_names_and_steps_narrows_both_sides(written, capsys):
    a, b = written("a", x=1, y=2), written("b", x=1, y=3)
    assert run(capsys, a, b, "--only", "x")[0] == 0
    assert run(capsys, a, b, "--step", "0")[0] == 1
    assert run(capsys, a, b, "--step", "7")[0] == 3


def test_what_is_not_there_is_a_wrong_argument(written, capsys):
    code, out, err = run(capsys, written("a", x=1), "nowhere")
    assert (code, out) == (2, "")
    assert err.startswith("tensortap compare: nowhere does not exist")


def test_a_map_that_is_not_toml_is_a_wrong_argument(written, capsys, tmp_path):
    (tmp_path / "map.toml").write_text("[[")
    a = written("a", x=1)
    code, _, err = run(capsys, a, a, "--map", str(tmp_path / "map.toml"))
    assert code == 2
    assert "is not TOML" in err


def test_an_unknown_reason_to_fail_is_a_wrong_argument(capsys):
    assert main(["compare", "a", "b", "--fail-on", "mondays"]) == 2
    assert "'mondays' is not one or more of difference, bits" in capsys.readouterr().err


class Odd:
    def __reduce__(self):
        return os.getcwd, ()


def test_a_pickle_of_unknown_origin_is_refused(tmp_path, capsys):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Odd()))
    code, _, err = run(capsys, str(tmp_path / "a.pkl"), str(tmp_path / "a.pkl"))
    assert code == 4
    assert "trust" in err


def test_a_file_that_is_damaged_as_a_whole_is_missing_data(tmp_path, capsys):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 and nothing more")
    assert run(capsys, str(tmp_path / "a.npz"), str(tmp_path / "a.npz"))[0] == 3


def terminal_output(a, **settings):
    """What the command writes when its stdout is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **settings}
    code = "import sys; from tensortap.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "compare", a, a]
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        return os.read(stream.fileno(), 1 << 16).decode()


@pytest.mark.process
def test_a_terminal_gets_colours_unless_it_wants_none(written):
    a = written("a", x=1)
    assert "\x1b[32mIDENTICAL\x1b[0m" in terminal_output(a, NO_COLOR="")
    assert "\x1b" not in terminal_output(a, NO_COLOR="1")


def test_help_tells_the_exit_codes(capsys):
    assert main(["compare", "--help"]) == 0
    assert "not everything could be compared" in capsys.readouterr().out


def test_how_pieces_sit_can_be_said(tmp_path, capsys):
    whole, cut = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "cut")
    value = np.arange(24, dtype="f4").reshape(4, 6)
    whole.write(Record("up", value))
    for rank, piece in enumerate(np.split(value, 2, 1)):
        cut.write(Record("up", piece, rank=rank))
    whole.close()
    cut.close()
    paths = str(tmp_path / "whole"), str(tmp_path / "cut")
    code, out, _ = run(capsys, *paths, "--dims", "up=shard(1)", "--explain", "up")
    assert code == 0
    assert "2 pieces of ranks 0, 1 are shard(1), as was declared" in out
    code, _, err = run(capsys, *paths, "--dims", "up=banana")
    assert (code, "'banana' says nothing of how pieces sit in a whole" in err) == (2, True)
    code, _, err = run(capsys, *paths, "--dims", "up")
    assert (code, "'up' is not PATTERN=WORDS" in err) == (2, True)
