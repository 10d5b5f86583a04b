"""Installed packages are all listed, imported ones with their place, editable ones with their origin."""

import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.packages import list_installed, packages_info


def _install(folder: Path, name: str, files: dict[str, str]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n\nName: not this\n")
    for file, content in files.items():
        (info / file).write_text(content)


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = home / "installed"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    return path


def test_the_documented_keys_are_there(write_run: Any) -> None:
    packages = write_run().read("packages.json")
    assert packages["python_version"] == sys.version.split()[0]
    assert packages["platform"] == sys.platform
    assert packages["all_packages"]["pytest"] == importlib.metadata.version("pytest")
    numpy = packages["packages"]["numpy"]
    assert numpy["version"] == importlib.metadata.version("numpy")
    assert Path(numpy["location"]).name == "numpy"


def test_every_installed_distribution_is_listed() -> None:
    listed = {package.key for package in list_installed()}
    assert {"torch", "numpy", "pytest", "typing-extensions"} <= listed


def test_copies_that_setuptools_brings_along_are_not_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendored = home / "setuptools" / "_vendor"
    _install(vendored, "brought-along", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(vendored)])
    assert "brought-along" not in {package.key for package in list_installed()}


def test_listing_everything_is_quick() -> None:
    began = time.process_time()
    packages_info(list_installed())
    assert time.process_time() - began < 0.3


def test_an_imported_package_is_found_under_another_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(folder, "odd-name", {"RECORD": "oddly/__init__.py,,\nodd_name-1.5.dist-info/RECORD,,\n"})
    (folder / "oddly").mkdir()
    (folder / "oddly" / "__init__.py").write_text("")
    monkeypatch.delitem(sys.modules, "oddly", raising=False)
    assert "odd-name" not in packages_info(list_installed())["packages"]
    __import__("oddly")
    found = packages_info(list_installed())["packages"]["odd-name"]
    assert found == {"version": "1.5", "location": str(folder / "oddly")}


def test_an_origin_is_told_without_credentials(folder: Path, write_run: Any) -> None:
    origin = {"url": "https://me:s3cret@example.com/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    _install(folder, "from-git", {"direct_url.json": json.dumps(origin), "INSTALLER": "pip\n"})
    details = {package["name"]: package for package in write_run().environment["packages"]}
    assert details["from-git"] == {
        "name": "from-git",
        "version": "1.5",
        "installer": "pip",
        "location": str(folder),
        "direct_url": {**origin, "url": "https://example.com/x.git"},
    }


def test_a_damaged_distribution_fails_nothing(folder: Path, write_run: Any) -> None:
    (folder / "broken-1.dist-info").mkdir()
    _install(folder, "bad-origin", {"direct_url.json": "not json"})
    run = write_run()
    assert run.read("packages.json")["all_packages"]["bad-origin"] == "1.5"
    assert run.environment["problems"] == []


def test_an_editable_package_has_its_own_commit(folder: Path, home: Path, repo: Any, write_run: Any) -> None:
    library = home / "library"
    subprocess.run(["git", "init", "-q", str(library)], check=True)
    subprocess.run(["git", "-C", str(library), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    (library / "new.py").write_text("")
    _editable(folder, "a-library", library)
    _editable(folder, "the-project", repo.path)
    facts = write_run().read("git_info.json")["packages_git_info"]
    commit = subprocess.run(
        ["git", "-C", str(library), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert facts["a-library"] == {
        "commit_id": commit,
        "branch": "main",
        "status": "dirty",
        "root": str(library),
    }
    assert facts["the-project"]["same_as_project"] is True
    assert facts["the-project"]["commit_id"] == repo.git("rev-parse", "HEAD")


def _editable(folder: Path, name: str, source: Path) -> None:
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    _install(folder, name, {"direct_url.json": json.dumps(origin)})
