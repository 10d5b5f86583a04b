"""Describe the repositories of the project, its submodules, editable packages and script; bundle commits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.core.filesystem import replace_file
from tensortap.metadata import git
from tensortap.metadata.git import (
    GitError,
    NoRepositoryError,
    Repository,
    WorktreeState,
    find_suspicious_files,
    read_worktree,
)
from tensortap.metadata.packages import Package
from tensortap.metadata.problems import Problems
from tensortap.metadata.process import is_below
from tensortap.metadata.source_archive import CODE_FOLDER

PATCH_FILE = "project.patch"


@dataclass
class ProjectFacts:
    """Facts about a repository: `info` for git_info.json, `extras` for environment.json."""

    info: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    patch: bytes | None = None  # None if unknown, as opposed to empty


def find_project(folders: Iterable[str]) -> Repository:
    """The repository of the first folder that lies in one."""
    reasons = []
    for folder in folders:
        try:
            return git.find_repository(folder)
        except NoRepositoryError as error:
            reasons.append(f"{folder}: {error}")
    raise NoRepositoryError("; ".join(reasons) or "there is neither a working directory nor a main script")


def describe_project(repository: Repository, run_folder: str, problems: Problems) -> ProjectFacts:
    """Facts about the project; failures of git are noted in `problems`."""
    commits = _commits(repository, problems)
    worktree = problems.attempt("uncommitted changes", lambda: read_worktree(repository, run_folder))
    extras = problems.attempt("git details", lambda: git.repository_details(repository)) or {
        "root": repository.root
    }
    info = {
        "commit_id": commits[0]["commit"] if commits else git.head_commit(repository),
        "branch": git.current_branch(repository),
        "status": worktree.status if worktree else "unknown",
        "git_log": commits,
        "git_diff": f"See {PATCH_FILE}" if worktree and worktree.patch else "",
        "log_entries_count": len(commits),
    }
    return ProjectFacts(info, extras | _worktree_facts(worktree), worktree.patch if worktree else None)


def _commits(repository: Repository, problems: Problems) -> list[dict[str, str]]:
    if git.head_commit(repository) is None:
        return []
    return problems.attempt("git log", lambda: git.recent_commits(repository)) or []


def paths_that_change(repository: Repository) -> tuple[str, ...]:
    """Files of which one changes at every commit, switch or `add`."""
    reference = repository.text_or_none("symbolic-ref", "--quiet", "HEAD") or "HEAD"
    tables = os.path.join(repository.common, "reftable", "tables.list")
    packed = tables if os.path.exists(tables) else os.path.join(repository.common, "packed-refs")
    own_head = os.path.join(repository.folder, "HEAD")
    target = os.path.join(repository.common, reference) if reference != "HEAD" else own_head
    return tuple(dict.fromkeys((own_head, target, packed, repository.index)))


def editable_packages(
    packages: Iterable[Package], project: Repository | None, status: str, problems: Problems
) -> dict[str, dict[str, Any]]:
    """Commit, branch and status of each editable package in a git repository."""
    described = {}
    for package in packages:
        if package.is_editable and package.root:
            collect = partial(_package_facts, package, project, status)
            facts = problems.attempt(f"git of {package.name}", collect)
            described.update({package.name: facts} if facts else {})
    return described


def _worktree_facts(worktree: WorktreeState | None) -> dict[str, Any]:
    if worktree is None:
        return {}
    return {
        "tree": worktree.tree,
        "skipped": worktree.skipped,
        "unmerged": worktree.unmerged,
        "flagged": find_suspicious_files(worktree.patch),
    }


def _package_facts(package: Package, project: Repository | None, status: str) -> dict[str, Any] | None:
    try:
        repository = git.find_repository(str(package.root))
    except NoRepositoryError:
        return None
    is_project = project is not None and repository.root == project.root
    facts = {
        "commit_id": git.head_commit(repository),
        "branch": git.current_branch(repository),
        "status": status if is_project else _worktree_status(repository),
        "root": repository.root,
    }
    return facts | ({"same_as_project": True} if is_project else {})


def _worktree_status(repository: Repository) -> str:
    try:
        return "dirty" if repository.run("status", "--porcelain", "--untracked-files=normal") else "clean"
    except GitError:
        return "unknown"


LabelledRepository = tuple[dict[str, Any], Repository]

_MAX_DEPTH = 4
_OWN_PACKAGE = "tensortap"  # a reproduction is recorded by its own tensortap


def find_other_repositories(
    project: Repository | None, packages: Iterable[Package], script: str | None
) -> list[LabelledRepository]:
    """Repositories that the program may import from, and that of its script if it is another."""
    repositories = [*_find_submodules(project, "", 0)] if project is not None else []
    repositories += _find_editable(packages, project)
    known = (project, *(repository for _, repository in repositories))
    roots = [repository.root for repository in known if repository]
    return [*repositories, *_find_script_repository(script, roots)]


def describe_repositories(
    repositories: Iterable[LabelledRepository], internal_folder: Path, run_folder: str, problems: Problems
) -> list[dict[str, Any]]:
    """What is needed to restore each of them; patches and bundles are written below `internal_folder`."""
    descriptions: list[dict[str, Any]] = []
    for facts, repository in repositories:
        stem = f"{len(descriptions) + 1}-{os.path.basename(repository.root)}"
        facts_found = problems.attempt(
            f"repository {facts.get('path') or facts.get('package')}",
            lambda repository=repository, stem=stem: _describe_repository(
                repository, internal_folder, stem, run_folder
            ),  # type: ignore[misc]
        )
        descriptions.append(facts | (facts_found or {"root": repository.root}))
    return descriptions


def _find_submodules(repository: Repository, parent_path: str, depth: int) -> Iterator[LabelledRepository]:
    for entry in git.list_submodules(repository) if depth < _MAX_DEPTH else ():
        folder = os.path.join(repository.root, entry["path"])
        submodule = _repository_at(folder)
        if submodule is not None:  # else it was never initialised and is empty
            path = os.path.join(parent_path, entry["path"])
            yield {"kind": "submodule", "path": path}, submodule
            yield from _find_submodules(submodule, path, depth + 1)


def _find_editable(packages: Iterable[Package], project: Repository | None) -> Iterator[LabelledRepository]:
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


def _find_script_repository(script: str | None, known_roots: list[str]) -> Iterator[LabelledRepository]:
    if script is None or any(is_below(script, os.path.realpath(root)) for root in known_roots):
        return
    try:
        repository = git.find_repository(os.path.dirname(script))
    except NoRepositoryError:
        return
    yield {"kind": "script", "path": os.path.relpath(script, os.path.realpath(repository.root))}, repository


def _repository_at(folder: str) -> Repository | None:
    try:
        repository = git.find_repository(folder)
    except NoRepositoryError:
        return None
    return repository if os.path.realpath(repository.root) == os.path.realpath(folder) else None


def _describe_repository(
    repository: Repository, internal_folder: Path, stem: str, run_folder: str
) -> dict[str, Any]:
    worktree = read_worktree(repository, run_folder)
    patch = internal_folder / CODE_FOLDER / f"{stem}.patch"
    if worktree.patch:
        patch.parent.mkdir(parents=True, exist_ok=True)
        patch.write_bytes(worktree.patch)
    else:
        patch.unlink(missing_ok=True)
    return {
        "root": repository.root,
        "commit": git.head_commit(repository),
        "tree": worktree.tree,
        "status": worktree.status,
        "remotes": git.remote_urls(repository),
        "patch": patch.name if worktree.patch else "",
        "skipped": worktree.skipped,
        "flagged": find_suspicious_files(worktree.patch),
        "bundle": bundle_unpublished(repository, internal_folder / CODE_FOLDER, stem),
    }


MAX_BUNDLE = 20 << 20
MAX_LOOSE = 2_000  # packing more would delay the start of the program
_MAX_SIBLINGS = 20
_UNPUBLISHED = ("HEAD", "--not", "--remotes")
_FAST_PACKING = ("pack.window=0", "pack.compression=1")


def bundle_unpublished(repository: Repository, folder: Path, stem: str) -> dict[str, Any]:
    """Write `folder/<stem>-<key>.bundle` unless a remote has all commits; return facts, or a reason."""
    if git.head_commit(repository) is None:
        return {}
    commits = int(repository.text("rev-list", "--count", *_UNPUBLISHED))
    path = folder / f"{stem}-{_bundle_key(repository)}.bundle"
    _remove_old_bundles(path, stem)
    if not commits:
        return {"commits": 0}
    reason = "" if path.exists() or _link_to_sibling(path) else _write_bundle(repository, path)
    if reason:
        return {"commits": commits, "reason": reason}
    return {"commits": commits, "file": path.name, "size": path.stat().st_size}


def _bundle_key(repository: Repository) -> str:
    """A digest of the commit and the remote refs, which determine the content of the bundle."""
    refs = repository.run("for-each-ref", "--format=%(objectname)", "refs/remotes")
    remote_commits = b"\n".join(sorted(set(refs.split())))
    head = (git.head_commit(repository) or "").encode()
    return hashlib.blake2b(head + b"\n" + remote_commits, digest_size=8).hexdigest()


def _remove_old_bundles(path: Path, stem: str) -> None:
    """Delete bundles of earlier commits."""
    for old in path.parent.glob(f"{stem}-*.bundle"):
        if old != path:
            old.unlink(missing_ok=True)


def _link_to_sibling(path: Path) -> bool:
    """Hard-link the same bundle of a sibling run, if there is one; return whether it was."""
    run = path.parents[2]
    relative_path = path.relative_to(run)
    for sibling in _newest_siblings(run.parent):
        candidate = run.parent / sibling / relative_path
        with suppress(OSError):
            if candidate.stat().st_uid == os.getuid() and sibling != run.name:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(candidate, path)
                return True
    return False


def _newest_siblings(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder), reverse=True)[:_MAX_SIBLINGS]
    except OSError:
        return []


def _write_bundle(repository: Repository, path: Path) -> str:
    """Write the bundle; return a reason if it would be too large, else an empty string."""
    objection = _reason_not_to_bundle(repository)
    if objection:
        return objection
    content = repository.run("bundle", "create", "--quiet", "-", *_UNPUBLISHED, config=_FAST_PACKING)
    if len(content) > MAX_BUNDLE:
        return _describe_size_limit(len(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return ""


def _reason_not_to_bundle(repository: Repository) -> str:
    has_remotes = bool(repository.run("for-each-ref", "--count=1", "refs/remotes"))
    if repository.is_shallow and not has_remotes:
        return "a shallow clone does not have the history that a bundle needs"
    size = int(repository.text("rev-list", "--objects", "--disk-usage", *_UNPUBLISHED))
    if size > MAX_BUNDLE:
        return _describe_size_limit(size)
    loose = int(repository.text("count-objects").split()[0])
    # Counting the loose objects first is cheap; counting the unpublished walks through the history.
    if loose <= MAX_LOOSE:
        return ""
    if int(repository.text("rev-list", "--objects", "--count", *_UNPUBLISHED)) <= MAX_LOOSE:
        return ""
    return f"{loose:,} objects are in no pack, which takes too long; git gc lets the next run keep them"


def _describe_size_limit(size: int) -> str:
    return f"{size / 1e6:.0f} MB, more than {MAX_BUNDLE >> 20}; push the commits to a remote"
