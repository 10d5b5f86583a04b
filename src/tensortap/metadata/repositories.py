"""Describe the repositories beside the project's: submodules, editable packages, the script's own."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tensortap.metadata import git
from tensortap.metadata.bundle import keep_unpublished
from tensortap.metadata.flagged import flagged
from tensortap.metadata.git import NoRepositoryError, Repository
from tensortap.metadata.packages import Package
from tensortap.metadata.problems import Problems
from tensortap.metadata.sources import CODE
from tensortap.metadata.start import is_below
from tensortap.metadata.worktree import read_worktree

Place = tuple[dict[str, Any], Repository]

_DEEPEST = 4
_OWN_PACKAGE = "tensortap"  # whoever reproduces a run has a recorder of their own


def other_repositories(
    project: Repository | None, packages: Iterable[Package], script: str | None
) -> list[Place]:
    """Those that the program may import from, and that of its script if it is another."""
    places = [*_submodules(project, "", 0)] if project is not None else []
    places += _editable(packages, project)
    return [*places, *_of_script(script, [one.root for one in (project, *(one for _, one in places)) if one])]


def describe_repositories(
    places: Iterable[Place], own: Path, run_folder: str, problems: Problems
) -> list[dict[str, Any]]:
    """What restores each of them, patches and bundles kept in `own`."""
    found: list[dict[str, Any]] = []
    for facts, repository in places:
        stem = f"{len(found) + 1}-{os.path.basename(repository.root)}"
        described = problems.attempt(
            f"repository {facts.get('path') or facts.get('package')}",
            lambda repository=repository, stem=stem: _described(repository, own, stem, run_folder),  # type: ignore[misc]
        )
        found.append(facts | (described or {"root": repository.root}))
    return found


def _submodules(repository: Repository, above: str, depth: int) -> Iterator[Place]:
    for entry in git.submodules(repository) if depth < _DEEPEST else ():
        folder = os.path.join(repository.root, entry["path"])
        inner = _repository_at(folder)
        if inner is not None:  # else it was never initialised: an empty folder
            path = os.path.join(above, entry["path"])
            yield {"kind": "submodule", "path": path}, inner
            yield from _submodules(inner, path, depth + 1)


def _editable(packages: Iterable[Package], project: Repository | None) -> Iterator[Place]:
    seen = {project.root} if project is not None else set()
    for package in packages:
        if not package.is_editable or not package.root or package.key == _OWN_PACKAGE:
            continue
        try:
            repository = git.find_repository(package.root)
        except NoRepositoryError:
            continue
        if repository.root not in seen:
            seen.add(repository.root)
            yield {"kind": "package", "package": package.name, "folder": package.root}, repository


def _of_script(script: str | None, known: list[str]) -> Iterator[Place]:
    if script is None or any(is_below(script, os.path.realpath(root)) for root in known):
        return
    try:
        repository = git.find_repository(os.path.dirname(script))
    except NoRepositoryError:
        return
    yield {"kind": "script", "path": os.path.relpath(script, os.path.realpath(repository.root))}, repository


def _repository_at(folder: str) -> Repository | None:
    try:
        found = git.find_repository(folder)
    except NoRepositoryError:
        return None
    return found if os.path.realpath(found.root) == os.path.realpath(folder) else None


def _described(repository: Repository, own: Path, stem: str, run_folder: str) -> dict[str, Any]:
    worktree = read_worktree(repository, run_folder)
    patch = own / CODE / f"{stem}.patch"
    if worktree.patch:
        patch.parent.mkdir(parents=True, exist_ok=True)
        patch.write_bytes(worktree.patch)
    else:
        patch.unlink(missing_ok=True)
    return {
        "root": repository.root,
        "commit": git.head(repository),
        "tree": worktree.tree,
        "status": worktree.status,
        "remotes": git.remotes(repository),
        "patch": patch.name if worktree.patch else "",
        "skipped": worktree.skipped,
        "flagged": flagged(worktree.patch),
        "bundle": keep_unpublished(repository, own / CODE, stem),
    }
