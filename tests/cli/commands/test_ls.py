"""`tensortap ls` finds runs and says of each what it is and whether it is whole."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tensortap as tt
from tensortap.sinks.run_directory import RunDirectory


def names(said):
    return [line.split()[0].rpartition("/")[2] for line in said.out.splitlines()[1:]]


def test_runs_below_a_folder_are_listed_newest_first(make_run, tell, tensortap, tmp_path):
    tell(make_run("runs/old"), timestamp="2025-01-01T00:00:00+08:00")
    tell(make_run("runs/deep/er/new"), timestamp="2025-06-01T00:00:00+08:00")
    said = tensortap("ls", tmp_path / "runs")
    assert (said.code, said.err) == (0, "")
    assert names(said) == ["new", "old"]
    assert "2025-06-01 00:00:00  finished" in said.out


def test_a_line_tells_steps_ranks_records_bytes_commit_and_command(make_run, tell, tensortap):
    run = tell(make_run(x=[np.ones(1000, "f4")] * 3), "train.py --lr 1", status="dirty")
    head, line = tensortap("ls", run).out.splitlines()
    assert head.split() == [
        "name",
        "started",
        "state",
        "steps",
        "ranks",
        "records",
        "bytes",
        "commit",
        "command",
    ]
    assert line.split()[4:] == ["3", "1", "3", "12", "kB", "aaaaaaaa*", "train.py", "--lr", "1"]


def test_json_has_a_schema_and_every_fact(make_run, tell, tensortap):
    run = tell(make_run(stats=True, x=[np.array([1, np.nan])], y=[np.array([np.inf]), np.zeros(1)]))
    told = tensortap("ls", run, "--json").json
    assert told["schema"] == "tensortap.ls/1"
    (found,) = told["runs"]
    assert found["steps"] == {"first": 0, "last": 1, "count": 2}
    assert found["health"] == {"nan": 1, "inf": 1, "known": 3}
    assert (found["records"], found["names"], found["bytes"], found["dirty"]) == (3, 2, 32, False)
    assert (found["state"], found["command"], found["branch"]) == ("finished", "train.py", "main")


def test_values_that_are_not_finite_are_part_of_the_state(make_run, tensortap):
    make_run("runs/a", stats=True, x=[np.array([np.nan, np.inf])])
    assert "finished, 1 with NaN, 1 with Inf" in tensortap("ls", make_run("runs/a").parent).out


def test_statistics_that_were_asked_for_before_count(make_run, tensortap):
    run = make_run(x=[np.array([np.nan])])
    assert tensortap("ls", run, "--json").json["runs"][0]["health"]["known"] == 0
    _ = tt.Run(run).find("x").statistics
    assert tensortap("ls", run, "--json").json["runs"][0]["health"] == {"nan": 1, "inf": 0, "known": 1}


def test_a_run_that_a_process_has_open_is_being_written(tmp_path, tensortap):
    sink = RunDirectory(tmp_path / "open")
    sink.write(tt.Record("x", np.ones(3)))
    sink.flush()
    assert tensortap("ls", tmp_path, "--json").json["runs"][0]["state"] == "writing"
    sink.close()
    assert tensortap("ls", tmp_path, "--json").json["runs"][0]["state"] == "finished"


@pytest.mark.process
def test_a_run_whose_program_was_killed_is_cut_off(tmp_path, tensortap):
    code = (
        "import os, numpy as np, tensortap as tt\n"
        f"sink = tt.RunDirectory({str(tmp_path / 'killed')!r}, write_through=True)\n"
        "sink.write(tt.Record('x', np.ones(3))); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (found,) = tensortap("ls", tmp_path, "--json").json["runs"]
    assert (found["state"], found["records"]) == ("cut off", 1)


def test_a_long_index_is_counted_like_a_short_one(make_run, tensortap, monkeypatch):
    run = make_run(stats=True, x=[np.ones(1), np.full(1, np.nan)], y=[np.full(1, np.inf)])
    short = tensortap("ls", run, "--json").json
    monkeypatch.setattr("tensortap.readers.listing._SHORT_INDEX", 0)
    assert tensortap("ls", run, "--json").json == short
    assert short["runs"][0]["health"] == {"nan": 1, "inf": 1, "known": 3}


def test_merged_steps_and_ranks_count_for_all_they_came_from(tmp_path, tensortap, monkeypatch):
    sink = RunDirectory(tmp_path / "run")
    sink.write(tt.Record("x", np.ones(3), step=(1, 2), rank=(0, 3)))
    sink.write(tt.Record("x", np.ones(3), step=5))
    sink.close()
    for _ in range(2):
        (found,) = tensortap("ls", tmp_path, "--json").json["runs"]
        assert found["steps"] == {"first": 1, "last": 5, "count": 3}
        assert found["ranks"] == [0, 3]
        monkeypatch.setattr("tensortap.readers.listing._SHORT_INDEX", 0)


@pytest.mark.process
def test_a_list_of_short_runs_does_without_numpy(make_run):
    run = make_run()
    code = (
        "import sys; from tensortap.cli.main import main; main(sys.argv[1:]); print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "ls", str(run)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_a_row_with_cells_of_a_wrong_type_is_damage_and_the_rest_is_counted(make_run, tensortap):
    run = make_run()
    index = run / ".tensortap" / "index-rank0.jsonl"
    row = index.read_text().splitlines()[1]
    with open(index, "a") as stream:
        stream.write(row.replace('"x"', '{"x": 1}', 1) + "\n")
    (found,) = tensortap("ls", run, "--json").json["runs"]
    assert (found["state"], found["records"]) == ("damaged", 1)


@pytest.mark.parametrize("damage", ["index", "pack", "facts", "version", "file", "length"])
def test_a_damaged_run_is_listed_with_what_is_wrong(make_run, tell, tensortap, damage):
    run = tell(make_run(layout="files" if damage in ("file", "length") else "pack"))
    own = run / ".tensortap"
    if damage == "index":
        with open(own / "index-rank0.jsonl", "a") as index:
            index.write("{]\n")
    elif damage == "pack":
        os.truncate(own / "packs" / "rank0-0000.npz", 10)
    elif damage == "file":
        (run / "x.npy").unlink()
    elif damage == "length":
        os.truncate(run / "x.npy", 100)
    elif damage == "facts":
        (run / "git_info.json").write_text("{")
    else:
        (own / "index-rank0.jsonl").write_text('{"tensortap_index": 99, "columns": []}\n')
    said = tensortap("ls", run)
    assert said.code == 0
    assert " damaged " in said.out
    assert said.err.endswith("tensortap verify tells all\n")


def test_links_are_not_followed_and_a_run_is_listed_once(make_run, tensortap, tmp_path):
    run = make_run("runs/a")
    make_run("elsewhere/b")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "again").symlink_to(run)
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert names(tensortap("ls", tmp_path / "runs", run)) == ["a"]


def test_folders_too_deep_are_named_not_looked_at(make_run, tensortap, tmp_path):
    make_run("/".join(["deep", *"abcdefghijkl"]))
    said = tensortap("ls", tmp_path)
    assert said.out == ""
    assert "lies deeper than 8 folders and was not looked at" in said.err


def test_the_order_may_be_chosen(make_run, tensortap, tmp_path):
    make_run("runs/b", x=[np.zeros(2)])
    make_run("runs/a", x=[np.zeros(2)] * 2)
    make_run("runs/c", x=[np.zeros(900)])
    for word, order in (("name", "abc"), ("records", "abc"), ("bytes", "cab"), ("steps", "abc")):
        assert "".join(names(tensortap("ls", tmp_path, "--sort", word))) == order


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("command:train.py", {"a"}),
        ("steps>1", {"b"}),
        ("captures:1", {"a"}),
        ("commit:bbb", {"b"}),
        ("state:finished", {"a", "b"}),
        ("-command:train.py", {"b"}),
        ("bytes>1kB", {"b"}),
        ("since:1h", set()),
        ("nan>0", {"b"}),
    ],
)
def test_a_query_narrows_the_list(make_run, tell, tensortap, tmp_path, query, expected):
    tell(make_run("runs/a"), "train.py")
    odd = [np.zeros(900), np.full(900, np.nan)]
    tell(make_run("runs/b", stats=True, x=odd), "evaluate.py", "b" * 40)
    assert set(names(tensortap("ls", tmp_path, "--where", query))) == expected


def test_a_query_that_no_run_fits_is_told_with_how_many_there_are(make_run, tensortap, tmp_path):
    make_run("runs/a")
    make_run("runs/b")
    said = tensortap("ls", tmp_path / "runs", "--where", "steps>100")
    assert (said.code, said.out) == (0, "")
    assert said.err == f"tensortap ls: none of 2 runs under {tmp_path / 'runs'} is what --where asks for\n"


def test_a_query_that_cannot_be_read_is_a_wrong_argument(make_run, tensortap):
    said = tensortap("ls", make_run(), "--where", "comand:x")
    assert said.code == 2
    assert "did you mean 'command'?" in said.err


def test_no_folder_is_missing_data_and_no_run_is_an_empty_list(tensortap, tmp_path):
    said = tensortap("ls", tmp_path / "nowhere")
    assert said.code == 3
    assert said.err.endswith("nowhere does not exist; give a run, or a folder that holds runs\n")
    (tmp_path / "file").write_text("")
    assert "is a file, not a folder" in tensortap("ls", tmp_path / "file").err
    said = tensortap("ls", tmp_path)
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith(f"tensortap ls: no run under {tmp_path}; ")
    assert tensortap("ls", tmp_path, "--json").json["runs"] == []


def test_names_that_could_move_the_cursor_are_quoted(make_run, tell, tensortap):
    run = tell(make_run("odd\x1b[31mred\nname"), "train.py\x1b[2J")
    out = tensortap("ls", run).out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2
    assert "\\x1b[31mred" in out
