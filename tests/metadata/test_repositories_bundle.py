"""Commits that no remote has are kept beside the run, once on disk, and within bounds."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata import repositories


def _facts(run: Any) -> dict[str, Any]:
    return run.environment["git"]["bundle"]


def _file(run: Any) -> Path:
    return run.folder / ".tensortap" / "code" / _facts(run)["file"]


@pytest.fixture
def remote(repo: Any, home: Path) -> Path:
    """A remote that has everything so far."""
    path = home / "remote.git"
    repo.git("clone", "-q", "--bare", ".", str(path))
    repo.git("remote", "add", "origin", str(path))
    repo.git("fetch", "-q", "origin")
    return path


def test_without_a_remote_the_whole_history_is_kept(repo: Any, home: Path, write_run: Any) -> None:
    run = write_run()
    assert _facts(run)["commits"] == 1
    clone = home / "clone"
    subprocess.run(["git", "clone", "-q", str(_file(run)), str(clone)], check=True, capture_output=True)
    assert (clone / "model.py").read_bytes() == (repo.path / "model.py").read_bytes()


def test_what_a_remote_has_is_not_kept(repo: Any, remote: Path, write_run: Any) -> None:
    run = write_run()
    assert _facts(run) == {"commits": 0}
    assert not list(run.folder.rglob("*.bundle"))


def test_only_what_no_remote_has_is_kept(repo: Any, remote: Path, home: Path, write_run: Any) -> None:
    repo.write("model.py", b"later\n")
    commit = repo.commit("not pushed")
    run = write_run()
    assert _facts(run)["commits"] == 1
    subprocess.run(["git", "clone", "-q", str(remote), str(home / "clone")], check=True)
    fetch = ["git", "-C", str(home / "clone"), "fetch", "-q", str(_file(run)), "HEAD"]
    subprocess.run(fetch, check=True)
    found = subprocess.run(["git", "-C", str(home / "clone"), "cat-file", "-t", commit], capture_output=True)
    assert found.stdout == b"commit\n"


def test_runs_side_by_side_share_one_file(repo: Any, home: Path, write_run: Any) -> None:
    one, two = (write_run(home / "runs" / name) for name in ("one", "two"))
    assert os.path.samefile(_file(one), _file(two))


def test_a_repository_that_moved_has_another_bundle(repo: Any, write_run: Any) -> None:
    run = write_run()
    before = _file(run)
    repo.commit("next")
    assert run.metadata.refresh()
    assert _file(run) != before
    assert [path.name for path in before.parent.iterdir()] == [_file(run).name]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MAX_BUNDLE", 1, "push the commits to a remote"),
        ("MAX_LOOSE", 0, "git gc lets the next run keep them"),
    ],
)
def test_too_much_is_left_out_with_a_remedy(
    name: str, value: int, told: str, repo: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, name, value)
    run = write_run()
    assert told in _facts(run)["reason"]
    assert not list(run.folder.rglob("*.bundle"))


def test_before_the_first_commit_there_is_nothing_to_keep(empty_repo: Any, write_run: Any) -> None:
    assert _facts(write_run()) == {}
