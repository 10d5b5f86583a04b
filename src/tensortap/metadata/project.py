"""Describe the repository the program runs from, and those of editable packages."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tensortap.metadata import git
from tensortap.metadata.flagged import flagged
from tensortap.metadata.git import GitError, NoRepositoryError, Repository
from tensortap.metadata.packages import Package
from tensortap.metadata.problems import Problems
from tensortap.metadata.worktree import Worktree, read_worktree

PATCH = "project.patch"


@dataclass
class Project:
    """The facts of one repository, as git_info.json and environment.json tell them."""

    info: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    patch: bytes | None = None  # None: not known, as opposed to empty


def find_project(folders: Iterable[str]) -> Repository:
    """The first repository that one of the folders lies in."""
    reasons = []
    for folder in folders:
        try:
            return git.find_repository(folder)
        except NoRepositoryError as error:
            reasons.append(f"{folder}: {error}")
    raise NoRepositoryError("; ".join(reasons) or "there is neither a working directory nor a main script")


def describe_project(repository: Repository, run_folder: str, problems: Problems) -> Project:
    """Everything about the project; what git refuses to tell is noted, the rest stays."""
    commits = _commits(repository, problems)
    worktree = problems.attempt("uncommitted changes", lambda: read_worktree(repository, run_folder))
    extras = problems.attempt("git details", lambda: git.extras(repository)) or {"root": repository.root}
    info = {
        "commit_id": commits[0]["commit"] if commits else git.head(repository),
        "branch": git.branch(repository),
        "status": worktree.status if worktree else "unknown",
        "git_log": commits,
        "git_diff": f"See {PATCH}" if worktree and worktree.patch else "",
        "log_entries_count": len(commits),
    }
    return Project(info, extras | _about(worktree), worktree.patch if worktree else None)


def _commits(repository: Repository, problems: Problems) -> list[dict[str, str]]:
    if git.head(repository) is None:
        return []
    return problems.attempt("git log", lambda: git.log(repository)) or []


def watched_paths(repository: Repository) -> tuple[str, ...]:
    """The files of which one changes whenever a commit, a switch or an `add` happens."""
    reference = repository.text_or_none("symbolic-ref", "--quiet", "HEAD") or "HEAD"
    tables = os.path.join(repository.common, "reftable", "tables.list")
    packed = tables if os.path.exists(tables) else os.path.join(repository.common, "packed-refs")
    own_head = os.path.join(repository.folder, "HEAD")
    target = os.path.join(repository.common, reference) if reference != "HEAD" else own_head
    return tuple(dict.fromkeys((own_head, target, packed, repository.index)))


def editable_packages(
    packages: Iterable[Package], project: Repository | None, status: str, problems: Problems
) -> dict[str, dict[str, Any]]:
    """Commit, branch and state of each package that is installed from a working folder under git."""
    described = {}
    for package in packages:
        if package.is_editable and package.root:
            facts = problems.attempt(f"git of {package.name}", lambda p=package: _package(p, project, status))  # type: ignore[misc]
            described.update({package.name: facts} if facts else {})
    return described


def _about(worktree: Worktree | None) -> dict[str, Any]:
    if worktree is None:
        return {}
    return {
        "tree": worktree.tree,
        "skipped": worktree.skipped,
        "unmerged": worktree.unmerged,
        "flagged": flagged(worktree.patch),
    }


def _package(package: Package, project: Repository | None, status: str) -> dict[str, Any] | None:
    try:
        repository = git.find_repository(str(package.root))
    except NoRepositoryError:
        return None
    is_same = project is not None and repository.root == project.root
    facts = {
        "commit_id": git.head(repository),
        "branch": git.branch(repository),
        "status": status if is_same else _status(repository),
        "root": repository.root,
    }
    return facts | ({"same_as_project": True} if is_same else {})


def _status(repository: Repository) -> str:
    try:
        return "dirty" if repository.ask("status", "--porcelain", "--untracked-files=normal") else "clean"
    except GitError:
        return "unknown"
