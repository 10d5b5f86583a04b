"""Repositories in every state give facts or a reason, never a failure."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata import git


def test_the_documented_facts_are_there(repo: Any, write_run: Any) -> None:
    project = write_run().project
    assert project["commit_id"] == repo.git("rev-parse", "HEAD")
    assert project["branch"] == "main"
    assert project["log_entries_count"] == 1
    assert project["git_log"] == [
        {
            "commit": project["commit_id"],
            "author": "A B",
            "date": repo.git("log", "-1", "--format=%ad", "--date=short"),
            "message": "first",
        }
    ]


def test_the_log_keeps_the_last_fifty(repo: Any, write_run: Any) -> None:
    for number in range(51):
        repo.git("commit", "-q", "--allow-empty", "-m", f"commit {number}")
    project = write_run().project
    assert project["log_entries_count"] == len(project["git_log"]) == 50
    assert project["git_log"][0]["message"] == "commit 50"


def test_authors_of_any_language_are_readable(repo: Any, write_run: Any) -> None:
    repo.git("-c", "user.name=王", "commit", "-q", "--allow-empty", "-m", "修 é")
    run = write_run()
    assert run.project["git_log"][0]["author"] == "王"
    assert "修 é" in (run.folder / "git_info.json").read_text()


def test_before_the_first_commit_the_patch_starts_from_nothing(empty_repo: Any, write_run: Any) -> None:
    empty_repo.write("a.py", b"x\n")
    run = write_run()
    assert run.project["commit_id"] is None
    assert run.project["branch"] == "main"
    assert run.project["git_log"] == []
    assert run.project["status"] == "dirty"
    empty_repo.git("add", "-A")
    assert run.environment["git"]["tree"] == empty_repo.git("write-tree")
    assert b"new file mode" in run.patch


def test_an_empty_repository_is_clean(empty_repo: Any, write_run: Any) -> None:
    assert write_run().project["status"] == "clean"


def test_without_a_repository_the_reason_is_told(
    home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "plain").mkdir()
    monkeypatch.chdir(home / "plain")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    run = write_run()
    assert run.project == {}
    assert "not a git repository" in run.environment["git"]["reason"]
    assert run.metadata.refresh() is False


def test_the_main_script_is_asked_when_the_folder_has_no_repository(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "plain").mkdir()
    monkeypatch.chdir(home / "plain")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(repo.write("train.py", b"")), raising=False)
    assert write_run().environment["git"]["root"] == str(repo.path)


def test_without_a_git_program_the_reason_is_told(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    run = write_run()
    assert run.project == {}
    assert "no git program on PATH" in run.environment["git"]["reason"]


def test_a_removed_working_directory_fails_nothing(
    home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "gone").mkdir()
    monkeypatch.chdir(home / "gone")
    (home / "gone").rmdir()
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert write_run(home / "run").read("runtime_info.json")["working_directory"] == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_somebody_else_is_named_as_such(
    repo: Any, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (repo.path, repo.path / ".git"):
        os.chown(path, 12345, 12345)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    run = write_run()
    assert run.project == {}
    assert "dubious ownership" in run.environment["git"]["reason"]


def test_a_merge_conflict_is_recorded_as_it_stands(repo: Any, write_run: Any, restored_tree: Any) -> None:
    repo.git("checkout", "-q", "-b", "other")
    repo.write("model.py", b"other\n")
    repo.commit()
    repo.git("checkout", "-q", "main")
    repo.write("model.py", b"ours\n")
    repo.commit()
    assert subprocess.run(["git", "merge", "-q", "other"], capture_output=True).returncode
    run = write_run()
    assert run.environment["git"]["under_way"] == ["merge"]
    assert run.environment["git"]["unmerged"] == ["model.py"]
    assert run.environment["problems"] == []
    assert b"<<<<<<< HEAD" in run.patch
    assert restored_tree(repo, run) == run.environment["git"]["tree"]


def test_a_detached_head_is_called_head(repo: Any, write_run: Any) -> None:
    repo.git("checkout", "-q", "--detach")
    assert write_run().project["branch"] == "HEAD"


def test_a_linked_worktree_has_its_own_state(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.git("worktree", "add", "-q", str(home / "linked"), "-b", "side")
    monkeypatch.chdir(home / "linked")
    Path("model.py").write_bytes(b"side\n")
    run = write_run()
    assert run.project["branch"] == "side"
    assert b"+side" in run.patch
    assert run.metadata.refresh() is False
    subprocess.run(["git", "commit", "-qam", "side"], check=True)
    assert run.metadata.refresh() is True


def test_a_shallow_clone_says_so(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit("second")
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repo.path}", str(home / "thin")], check=True)
    monkeypatch.chdir(home / "thin")
    run = write_run()
    assert run.environment["git"]["is_shallow"] is True
    assert run.project["log_entries_count"] == 1


def test_a_sparse_checkout_misses_nothing(repo: Any, write_run: Any) -> None:
    repo.git("sparse-checkout", "set", "--no-cone", "/model.py")
    assert not Path("data").exists()
    run = write_run()
    assert run.environment["git"]["is_sparse"] is True
    assert run.project["status"] == "clean"
    repo.write("data/new.csv", b"x\n")
    run.metadata.write()
    assert b"data/new.csv" in run.patch
    assert b"table.csv" not in run.patch


def test_submodules_are_listed(repo: Any, home: Path, write_run: Any) -> None:
    source = str(home / "library")
    subprocess.run(["git", "init", "-q", source], check=True)
    subprocess.run(["git", "-C", source, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, "vendor")
    repo.commit("with a submodule")
    commit = repo.git("-C", "vendor", "rev-parse", "HEAD")
    run = write_run()
    assert run.environment["git"]["submodules"] == [{"path": "vendor", "commit": commit}]
    assert run.project["status"] == "clean"


def test_credentials_of_remotes_are_not_kept(repo: Any, write_run: Any) -> None:
    repo.git("remote", "add", "origin", "https://me:s3cret@example.com/a.git")
    repo.git("remote", "add", "ssh", "ssh://git@example.com/a.git")
    repo.git("remote", "add", "short", "git@example.com:a.git")
    run = write_run()
    assert run.environment["git"]["remotes"] == {
        "origin": "https://example.com/a.git",
        "ssh": "ssh://git@example.com/a.git",
        "short": "git@example.com:a.git",
    }
    assert "s3cret" not in (run.folder / ".tensortap/environment.json").read_text()


def test_variables_of_a_surrounding_git_do_not_mislead(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.write("model.py", b"changed\n")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(home / "elsewhere"))
    run = write_run()
    assert run.environment["git"]["root"] == str(repo.path)
    assert b"+changed" in run.patch


def test_git_that_takes_too_long_is_ended_with_its_children(
    repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.git("config", "alias.wait", "!sleep 60")
    began = time.monotonic()
    with pytest.raises(git.GitError, match=r"git wait took longer than 10 s"):
        git.run_git(str(repo.path), "wait", deadline=began + 0.2)
    assert time.monotonic() - began < 5


def test_a_failing_filter_leaves_the_other_facts(
    repo: Any, write_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    repo.write(".git/info/attributes", b"*.py filter=broken\n")
    repo.git("config", "filter.broken.clean", "/bin/false")
    repo.git("config", "filter.broken.required", "true")
    repo.write("model.py", b"changed\n")
    run = write_run()
    run.metadata.write()
    assert run.project["status"] == "unknown"
    assert run.project["commit_id"]
    assert [problem["fact"] for problem in run.environment["problems"]] == ["uncommitted changes"]
    assert len(caplog.records) == 1


def test_a_path_with_the_separator_of_lists_works(home: Path, write_run: Any, monkeypatch: Any) -> None:
    folder = home / 'a:b "c"'
    folder.mkdir()
    monkeypatch.chdir(folder)
    subprocess.run(["git", "init", "-q"], check=True)
    Path("a.py").write_bytes(b"x\n")
    subprocess.run("git add -A && git commit -qm x", shell=True, check=True)
    Path("a.py").write_bytes(b"y\n")
    run = write_run()
    assert run.environment["problems"] == []
    assert b"+y" in run.patch
