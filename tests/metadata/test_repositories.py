"""Repositories beside the project's are described so that they can be restored, too."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest


def _library(home: Path, name: str = "library") -> Path:
    path = home / name
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    (path / "lib.py").write_bytes(b"x = 1\n")
    subprocess.run("git add -A && git commit -qm first", shell=True, cwd=path, check=True)
    return path


@pytest.fixture
def vendor(repo: Any, home: Path) -> Path:
    source = str(_library(home))
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, "vendor")
    repo.commit("with a submodule")
    return repo.path / "vendor"


def test_a_submodule_has_its_own_tree_patch_and_commits(vendor: Path, home: Path, write_run: Any) -> None:
    (vendor / "lib.py").write_bytes(b"x = 2\n")
    run = write_run()
    (described,) = run.environment["repositories"]
    patch = run.folder / ".tensortap" / "code" / described["patch"]
    assert (described["kind"], described["path"], described["root"]) == ("submodule", "vendor", str(vendor))
    assert b"+x = 2" in patch.read_bytes()
    assert described["bundle"] == {"commits": 0}
    assert described["status"] == "dirty"


def test_the_patch_of_a_submodule_goes_when_it_becomes_clean(vendor: Path, write_run: Any) -> None:
    (vendor / "lib.py").write_bytes(b"x = 2\n")
    run = write_run()
    (vendor / "lib.py").write_bytes(b"x = 1\n")
    run.metadata.write()
    assert run.environment["repositories"][0]["patch"] == ""
    assert not list(run.folder.rglob("*.tensortap/code/*.patch"))


def test_a_submodule_that_was_never_fetched_is_not_described(
    vendor: Path, repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.git("clone", "-q", ".", str(home / "clone"))
    monkeypatch.chdir(home / "clone")
    assert write_run().environment["repositories"] == []


def test_an_editable_package_has_its_own_tree_and_patch(
    repo: Any, home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _library(home, "mylib")
    facts = home / "packages" / "mylib-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Name: mylib\nVersion: 1.0\n")
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (facts / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(home / "packages"))
    (source / "lib.py").write_bytes(b"x = 5\n")
    found = [one for one in write_run().environment["repositories"] if one.get("package") == "mylib"]
    assert [(one["root"], one["folder"], one["status"]) for one in found] == [
        (str(source), str(source), "dirty")
    ]


def test_the_recorder_itself_is_not_described(repo: Any, write_run: Any) -> None:
    packages = [one.get("package") for one in write_run().environment["repositories"]]
    assert "tensortap" not in packages
