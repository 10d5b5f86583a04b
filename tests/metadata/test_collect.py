"""Files are written once, rewritten only when they changed, and checked in microseconds."""

import json
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.problems import Problems
from tensortap.metadata.watch import Watch

FILES = (
    "runtime_info.json",
    "packages.json",
    "git_info.json",
    "project.patch",
    ".tensortap/environment.json",
)


def _times(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in FILES}


def test_importing_loads_no_array_library() -> None:
    code = "import sys, tensortap.metadata.collect\n"
    code += "print({'numpy', 'torch', 'jax'} & set(sys.modules) or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"


def test_the_run_folder_shows_what_is_documented(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"changed\n")
    run = write_run()
    assert sorted(os.listdir(run.folder)) == sorted((*FILES[:4], ".tensortap"))
    assert os.listdir(run.folder / ".tensortap") == ["environment.json"]


def test_unchanged_files_are_not_rewritten(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"changed\n")
    run = write_run()
    before = _times(run.folder)
    random.random()
    run.metadata.write()
    assert _times(run.folder) == before


def test_only_changed_files_are_rewritten(repo: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.write("model.py", b"changed\n")
    run = write_run()
    before = _times(run.folder)
    monkeypatch.setenv("A_NEW_VARIABLE", "1")
    run.metadata.write()
    assert [name for name in FILES if _times(run.folder)[name] != before[name]] == ["runtime_info.json"]


def test_refresh_does_nothing_while_the_repository_rests(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"changed\n")
    run = write_run()
    before = _times(run.folder)
    assert run.metadata.refresh() is False
    assert _times(run.folder) == before


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
    watch = Watch((str(path),))
    assert not watch.has_moved()
    path.write_text("x")
    assert watch.has_moved()
    watch = Watch((str(path),))
    path.unlink()
    assert watch.has_moved()


def test_a_run_survives_a_change_of_the_working_directory(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(Path("relative"))
    monkeypatch.chdir(home)
    run.metadata.write()
    assert (repo.path / "relative" / "git_info.json").exists()
    assert not (home / "relative").exists()


def test_a_failing_fact_is_noted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logged: set[tuple[str, str]] = set()
    with caplog.at_level(logging.WARNING, "tensortap.metadata"):
        for _ in range(2):
            problems = Problems(logged)
            assert problems.attempt("a fact", lambda: 1 / 0) is None
            assert problems.found == [{"fact": "a fact", "reason": "ZeroDivisionError: division by zero"}]
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
import random, sys, time
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
    began = time.perf_counter()
    Metadata(Path(sys.argv[1], name)).write()
    costs.append(time.perf_counter() - began)
    assert draw() == expected
assert min(costs) < 1, costs
"""


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
