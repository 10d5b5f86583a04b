"""A real repository and a private home for each test of this room."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.collect import Metadata


@dataclass
class Repo:
    path: Path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def commit(self, message: str = "a commit") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def write(self, name: str | bytes, content: bytes) -> Path:
        path = self.path / (name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


@dataclass
class Run:
    folder: Path
    metadata: Metadata

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    @property
    def project(self) -> dict[str, Any]:
        return self.read("git_info.json")["project_git_info"]

    @property
    def environment(self) -> dict[str, Any]:
        return self.read(".tensortap/environment.json")

    @property
    def patch(self) -> bytes:
        path = self.folder / "project.patch"
        return path.read_bytes() if path.exists() else b""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration, key or repository of the machine reaches a test."""
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\tname = A B\n\temail = a@b\n[init]\n\tdefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def empty_repo(home: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A repository without a commit, as the working directory."""
    path = home / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    repo = Repo(path)
    repo.git("init", "-q")
    return repo


@pytest.fixture
def repo(empty_repo: Repo) -> Repo:
    """A repository with one commit of two files, as the working directory."""
    empty_repo.write("model.py", b"def forward(x):\n    return x * 2\n")
    empty_repo.write("data/table.csv", b"a,b\r\n1,2\r\n")
    empty_repo.commit("first")
    return empty_repo


@pytest.fixture
def write_run(home: Path) -> Any:
    def write(folder: Path = home / "runs" / "one", **options: Any) -> Run:
        metadata = Metadata(folder, **options)
        metadata.write()
        return Run(folder, metadata)

    return write


@pytest.fixture
def restored_tree(home: Path) -> Any:
    """The tree that a fresh clone has after `git apply` of a run's patch."""

    def restore(repo: Repo, run: Run) -> str:
        clone = Repo(home / "clone")
        subprocess.run(
            ["git", "clone", "-q", str(repo.path), str(clone.path)], check=True, capture_output=True
        )
        clone.git("checkout", "-q", run.project["commit_id"])
        if run.patch:
            clone.git("apply", str(run.folder / "project.patch"))
        clone.git("add", "-A")
        return clone.git("write-tree")

    return restore
