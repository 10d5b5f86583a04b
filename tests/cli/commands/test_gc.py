"""`tensortap gc` deletes what nobody needs, after it was agreed to, and nothing else."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt
from tensortap.readers.cleanup import find_garbage_in_run, garbage_at
from tensortap.sinks.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def aged(path: Path, seconds: float = 7200) -> Path:
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.utime(one, (time.time() - seconds,) * 2)
    return path


@pytest.fixture
def messy(make_run, tmp_path, dead):
    """A run with everything that may go."""
    run = make_run("runs/kept", x=[np.ones(3)])
    own = run / ".tensortap"
    _ = tt.Run(run).find("x").statistics
    (own / f"{dead}-1-0.tmp").write_bytes(b"12345")
    (own / f"model.{dead}.tmp").write_bytes(b"1")
    (run / f".packages.json.{dead}-7.tmp").write_bytes(b"1")
    (own / "cache" / f"columns.{dead}.npz").write_bytes(b"1")
    (tmp_path / "runs" / "empty" / ".tensortap").mkdir(parents=True)
    meeting = tmp_path / "runs" / ".tensortap-launches"
    meeting.mkdir()
    (meeting / "abc-0").write_text("kept")
    return aged(tmp_path / "runs")


# The folder of sockets is shared by all programs of this user, so it is asked for apart.
RUNS = [word for kind in ("draft", "cache", "launch", "empty run") for word in ("--only", kind)]


def kinds(said):
    return sorted(one["what"] for one in said.json["items"])


@pytest.mark.process
def test_a_dry_run_lists_everything_with_sizes_and_deletes_nothing(messy, tensortap):
    before = sorted(messy.rglob("*"))
    said = tensortap("gc", messy, "--dry-run", "--json", *RUNS)
    assert said.json["schema"] == "tensortap.gc/1"
    assert kinds(said) == ["cache", "draft", "draft", "draft", "draft", "empty run", "launch"]
    assert not any(one["deleted"] for one in said.json["items"])
    assert sorted(messy.rglob("*")) == before
    out = tensortap("gc", messy, "--dry-run", *RUNS).out
    assert out.splitlines()[0].split() == ["what", "size", "path"]
    assert out.splitlines()[-1].startswith("7 things, ")


@pytest.mark.process
def test_yes_deletes_it_and_the_values_stay(messy, tensortap):
    said = tensortap("gc", messy, "--yes", *RUNS)
    assert said.code == 0
    assert said.err.startswith("tensortap gc: deleted 7 things, ")
    assert not (messy / "empty").exists()
    assert not list(messy.rglob("*.tmp"))
    assert tt.Run(messy / "kept").load("x").tolist() == [1, 1, 1]
    assert tensortap("verify", messy).code == 0
    assert tensortap("gc", messy, "--yes", *RUNS).err == "tensortap gc: there is nothing to delete\n"


@pytest.mark.process
def test_nobody_to_ask_is_a_refusal(messy, tensortap, monkeypatch):
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115  closed with the test
    said = tensortap("gc", messy, *RUNS)
    sys.stdin.close()
    assert said.code == 4
    assert "no terminal to ask; --yes agrees, --dry-run only lists" in said.err
    assert (messy / "empty").exists()


@pytest.mark.process
@pytest.mark.parametrize(("answer", "is_there"), [("n\n", True), ("y\n", False)])
def test_at_a_terminal_it_asks(messy, answer, is_there):
    ours, theirs = pty.openpty()
    code = "import sys; from tensortap.cli.main import main; sys.exit(main(['gc', *sys.argv[1:]]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(messy), *RUNS], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    process.communicate(timeout=60)
    asked = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "delete these? [y/N]" in asked
    assert (messy / "empty").exists() == is_there


@pytest.mark.process
def test_a_kind_may_be_chosen(messy, tensortap):
    assert kinds(tensortap("gc", messy, "--dry-run", "--json", "--only", "cache")) == ["cache"]
    said = tensortap("gc", messy, "--dry-run", "--json", "--only", "launch", "--only", "empty run")
    assert kinds(said) == ["empty run", "launch"]
    assert tensortap("gc", messy, "--only", "values").code == 2


@pytest.mark.process
def test_a_run_that_is_being_written_is_left_alone(tmp_path, tensortap, dead):
    sink = RunDirectory(tmp_path / "runs" / "open")
    sink.write(tt.Record("x", np.ones(3)))
    sink.flush()
    (tmp_path / "runs" / "open" / ".tensortap" / f"{dead}-1-0.tmp").write_bytes(b"1")
    aged(tmp_path / "runs")
    assert tensortap("gc", tmp_path / "runs", "--dry-run", "--json", *RUNS).json["items"] == []
    sink.close()
    aged(tmp_path / "runs")
    assert kinds(tensortap("gc", tmp_path / "runs", "--dry-run", "--json", *RUNS)) == ["draft"]


@pytest.mark.process
def test_a_run_touched_a_moment_ago_may_be_written_elsewhere(messy, tensortap):
    index = messy / "kept" / ".tensortap" / "index-rank0.jsonl"
    os.utime(index)
    assert kinds(tensortap("gc", messy, "--dry-run", "--json", *RUNS)) == ["empty run", "launch"]


def test_the_draft_of_a_living_process_stays(make_run, tensortap):
    run = make_run()
    (run / ".tensortap" / f"{os.getpid()}-1-0.tmp").write_bytes(b"1")
    aged(run)
    assert tensortap("gc", run, "--dry-run", "--json", *RUNS).json["items"] == []


def test_a_run_with_facts_but_no_record_is_not_empty(make_run, tell, tensortap, tmp_path):
    (tmp_path / "runs" / "facts" / ".tensortap").mkdir(parents=True)
    tell(tmp_path / "runs" / "facts")
    (tmp_path / "runs" / "notes" / ".tensortap").mkdir(parents=True)
    (tmp_path / "runs" / "notes" / "mine.txt").write_text("keep me")
    aged(tmp_path / "runs")
    assert tensortap("gc", tmp_path / "runs", "--dry-run", "--json", *RUNS).json["items"] == []


@pytest.mark.process
def test_links_are_neither_followed_nor_deleted(make_run, tensortap, tmp_path, dead):
    run = make_run("runs/a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "statistics.jsonl").write_text("[]")
    (run / ".tensortap" / "cache").symlink_to(elsewhere)
    (run / ".tensortap" / f"{dead}-1-0.tmp").symlink_to(elsewhere / "statistics.jsonl")
    (tmp_path / "runs" / ".tensortap-launches").symlink_to(elsewhere)
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / ".tensortap").symlink_to(elsewhere)
    aged(tmp_path / "runs")
    aged(elsewhere)
    assert tensortap("gc", tmp_path / "runs", "--yes", "--json", *RUNS).json["items"] == []
    assert (elsewhere / "statistics.jsonl").exists()


@pytest.mark.process
def test_what_changed_since_it_was_listed_stays(messy):
    found = list(find_garbage_in_run(messy / "kept"))
    (cache,) = [one for one in found if one.kind == "cache"]
    cache.path.write_text("new")
    assert not cache.remove()
    assert cache.path.exists()
    (empty,) = find_garbage_in_run(messy / "empty")
    (messy / "empty" / ".tensortap" / "model.json").write_text("{}")
    assert not empty.remove()
    assert empty.path.exists()


def sockets(tensortap, folder):
    items = tensortap("gc", folder, "--only", "socket", "--dry-run", "--json").json["items"]
    return sorted(Path(one["path"]).name for one in items if Path(one["path"]).parent.parent == folder)


def test_sockets_of_ended_jobs_may_go(runtime, tensortap):
    folder = runtime / "tensortap"
    folder.mkdir(mode=0o700)
    for name in ("old-r0-1.sock", "old-r0-1.json", "lone-r0-2.sock"):
        (folder / name).write_text("")
        aged(folder / name)
    (folder / "beginning-r0-3.sock").write_text("")
    assert sockets(tensortap, runtime) == ["lone-r0-2.sock", "old-r0-1.json", "old-r0-1.sock"]
    assert garbage_at("socket", folder / "lone-r0-2.sock").remove()
    assert sockets(tensortap, runtime) == ["old-r0-1.json", "old-r0-1.sock"]


def test_sockets_of_living_jobs_stay(runtime, tensortap):
    endpoint = tt.listen("alive")
    for path in (runtime / "tensortap").iterdir():
        os.utime(path, (0, 0))
    found = sockets(tensortap, runtime)
    endpoint.close()
    assert found == []
