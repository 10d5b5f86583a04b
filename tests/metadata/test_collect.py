"""Files are written once, rewritten only when they changed, and checked in microseconds."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.collect import FileWatch
from tensortap.metadata.problems import Problems

FILES = (
    "runtime_info.json",
    "packages.json",
    "git_info.json",
    "project.patch",
    ".tensortap/environment.json",
)


@pytest.fixture
def program(repo: Any, home: Path) -> Any:
    """Run a few lines in a process of their own, where few modules are loaded."""
    beginning = """
import json, os, pathlib, random, sys
from tensortap.metadata.collect import Metadata
folder = pathlib.Path(sys.argv[1])
metadata = Metadata(folder)
metadata.write()
def times():
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}
before = times()
"""
    ending = "\nprint(json.dumps([name for name in times() if times()[name] != before.get(name)]))\n"

    def run(lines: str) -> list[str]:
        repo.write("model.py", b"changed\n")
        command = [sys.executable, "-c", beginning + lines + ending, str(home / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout))

    return run


@pytest.mark.process
def test_importing_loads_no_array_library() -> None:
    code = "import sys, tensortap.metadata.collect\n"
    code += "print({'numpy', 'torch', 'jax'} & set(sys.modules) or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"


def test_the_run_folder_shows_what_is_documented(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"changed\n")
    run = write_run()
    assert sorted(os.listdir(run.folder)) == sorted((*FILES[:4], ".tensortap"))
    assert sorted(os.listdir(run.folder / ".tensortap")) == ["code", "environment.json"]


@pytest.mark.process
def test_unchanged_files_are_not_rewritten(program: Any, home: Path) -> None:
    assert program("random.random(); metadata.write()") == []
    assert (home / "run" / "project.patch").exists()


@pytest.mark.process
def test_only_changed_files_are_rewritten(program: Any) -> None:
    assert program("os.environ['A_NEW_VARIABLE'] = '1'; metadata.write()") == ["runtime_info.json"]


@pytest.mark.process
def test_refresh_does_nothing_while_the_repository_rests(program: Any) -> None:
    assert program("assert metadata.refresh() is False") == []


@pytest.mark.process
def test_a_replaced_function_is_told_at_the_next_write(program: Any, home: Path) -> None:
    assert program("json.dump = lambda *a: None; metadata.write()") == ["git_info.json"]
    modifications = json.loads((home / "run" / "git_info.json").read_text())["runtime_modifications"]
    assert modifications["json.dump"]["replacement"] == "__main__.<lambda>"
    environment = json.loads((home / "run" / ".tensortap" / "environment.json").read_text())
    assert environment["modules_looked_at"] > 0
    assert environment["modules_not_looked_at"] == 0


MOVES = {
    "commit": lambda repo: repo.commit("another"),
    "empty commit": lambda repo: repo.git("commit", "-q", "--allow-empty", "-m", "another"),
    "switch": lambda repo: repo.git("checkout", "-q", "-b", "side"),
    "detach": lambda repo: repo.git("checkout", "-q", "--detach"),
    "staging": lambda repo: (repo.write("new.py", b"x\n"), repo.git("add", "new.py")),
    "packed references": lambda repo: repo.git("pack-refs", "--all"),
}


@pytest.mark.parametrize("name", MOVES)
def test_refresh_notices_a_move_once(name: str, repo: Any, write_run: Any) -> None:
    run = write_run()
    MOVES[name](repo)
    assert run.metadata.refresh() is True
    assert run.project["commit_id"] == repo.git("rev-parse", "HEAD")
    assert run.project["branch"] == repo.git("rev-parse", "--abbrev-ref", "HEAD")
    assert run.metadata.refresh() is False


def test_refresh_notices_a_commit_after_references_were_packed(repo: Any, write_run: Any) -> None:
    repo.git("pack-refs", "--all")
    run = write_run()
    commit = repo.commit("loose again")
    assert run.metadata.refresh() is True
    assert run.project["commit_id"] == commit


def test_refresh_costs_microseconds(repo: Any, write_run: Any) -> None:
    metadata = write_run().metadata

    def cost() -> float:
        began = time.perf_counter()
        for _ in range(1000):
            metadata.refresh()
        return (time.perf_counter() - began) / 1000

    # Four bare stats, measured in the same moment, are the limit; the rest may only be as much again.
    paths = [str(repo.path / ".git" / name) for name in ("HEAD", "refs/heads/main", "index", "config")]

    def limit() -> float:
        began = time.perf_counter()
        for _ in range(1000):
            for path in paths:
                os.stat(path)
        return (time.perf_counter() - began) / 1000

    assert min(cost() for _ in range(5)) < max(10e-6, 3 * min(limit() for _ in range(5)))


def test_a_watch_notices_what_appears_and_vanishes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    watch = FileWatch((str(path),))
    assert not watch.has_changed()
    path.write_text("x")
    assert watch.has_changed()
    watch = FileWatch((str(path),))
    path.unlink()
    assert watch.has_changed()


def test_a_run_survives_a_change_of_the_working_directory(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(Path("relative"))
    run.folder = repo.path / "relative"
    monkeypatch.chdir(home)
    run.metadata.write()
    assert (repo.path / "relative" / "git_info.json").exists()
    assert not (home / "relative").exists()
    assert run.environment["git"]["root"] == str(repo.path)
    assert run.read("runtime_info.json")["working_directory"] == str(repo.path)


def test_a_failing_fact_is_noted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logged: set[tuple[str, str]] = set()
    with caplog.at_level(logging.WARNING, "tensortap.metadata"):
        for _ in range(2):
            problems = Problems(logged)
            assert problems.attempt("a fact", lambda: 1 / 0) is None
            assert problems.entries == [{"fact": "a fact", "reason": "ZeroDivisionError: division by zero"}]
    assert [record.getMessage() for record in caplog.records] == [
        "could not collect a fact: ZeroDivisionError: division by zero"
    ]


def test_a_folder_that_cannot_be_written_is_an_error(home: Path, write_run: Any) -> None:
    (home / "file").write_text("")
    with pytest.raises(OSError):
        write_run(home / "file" / "run")


def test_a_failed_write_leaves_no_temporary_file(home: Path, write_run: Any) -> None:
    (home / "run" / "git_info.json").mkdir(parents=True)
    with pytest.raises(OSError):
        write_run(home / "run")
    assert not [name for name in os.listdir(home / "run") if name.endswith(".tmp")]


PROGRAM = """
import os, random, sys
import numpy, torch
from pathlib import Path
from tensortap.metadata.collect import Metadata
def seed(): torch.manual_seed(7); numpy.random.seed(7); random.seed(7)
def draw(): return torch.rand(1).item(), numpy.random.rand(), random.random()
seed()
expected = draw()
costs = []
for name in ("one", "two"):
    seed()
    began = sum(os.times()[:4])  # work, ours and git's: not the wait for a busy machine
    Metadata(Path(sys.argv[1], name)).write()
    costs.append(sum(os.times()[:4]) - began)
    assert draw() == expected
assert min(costs) < 1, costs
"""


@pytest.mark.process
def test_a_training_process_is_described_in_a_second_and_draws_the_same_numbers(
    repo: Any, home: Path
) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(home), "--token", "hunter2"]
    subprocess.run(command, check=True)
    texts = [(home / name / ".tensortap/environment.json").read_text() for name in ("one", "two")]
    one, two = map(json.loads, texts)
    assert "hunter2" not in texts[0]
    assert one["problems"] == []
    assert set(one["randomness"]) == {"random", "numpy", "torch"}
    assert one["randomness"]["torch"]["initial_seed"] == 7
    assert one["randomness"] == two["randomness"]


def test_the_machine_and_the_interpreter_are_described(write_run: Any) -> None:
    facts = write_run().environment
    assert facts["interpreter"]["version"] == sys.version
    assert facts["interpreter"]["flags"]["optimize"] == sys.flags.optimize
    assert facts["hardware"]["cores"] == os.cpu_count()
    assert facts["hardware"]["ram_bytes"] > 0
    assert facts["system"]["libc"]
    assert len(facts["orig_argv"]) == len(sys.orig_argv)
