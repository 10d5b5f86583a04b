"""Project and sibling repositories.

Describe the repository the program runs from, and those of editable packages.

Describe the repositories beside the project's: submodules, editable packages, the script's own.

Keep the commits that no remote has, as a git bundle beside the run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.metadata import git
from tensortap.metadata.git import GitError, NoRepositoryError, Repository, Worktree, flagged, read_worktree
from tensortap.metadata.packages import Package
from tensortap.metadata.problems import Problems
from tensortap.metadata.process import is_below
from tensortap.metadata.source_archive import CODE

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


MAX_BUNDLE = 20 << 20
MAX_LOOSE = 2_000  # packing more of them takes longer than a start may
_SIBLINGS = 20
_UNPUBLISHED = ("HEAD", "--not", "--remotes")
_QUICK = ("pack.window=0", "pack.compression=1")


def keep_unpublished(repository: Repository, folder: Path, stem: str) -> dict[str, Any]:
    """Write `folder/<stem>-<key>.bundle` unless a remote has everything; say what was done, or why not."""
    if git.head(repository) is None:
        return {}
    commits = int(repository.text("rev-list", "--count", *_UNPUBLISHED))
    path = folder / f"{stem}-{_key(repository)}.bundle"
    _remove_others(path, stem)
    if not commits:
        return {"commits": 0}
    reason = "" if path.exists() or _linked(path) else _packed(repository, path)
    if reason:
        return {"commits": commits, "reason": reason}
    return {"commits": commits, "file": path.name, "size": path.stat().st_size}


def _key(repository: Repository) -> str:
    """The same for the same commit and the same remotes: what the content of the bundle depends on."""
    refs = repository.ask("for-each-ref", "--format=%(objectname)", "refs/remotes")
    known = b"\n".join(sorted(set(refs.split())))
    head = (git.head(repository) or "").encode()
    return hashlib.blake2b(head + b"\n" + known, digest_size=8).hexdigest()


def _remove_others(path: Path, stem: str) -> None:
    """What was kept before the repository moved on."""
    for old in path.parent.glob(f"{stem}-*.bundle"):
        if old != path:
            old.unlink(missing_ok=True)


def _linked(path: Path) -> bool:
    """Whether a run beside this one has the same bundle, so that both share it on disk."""
    run = path.parents[2]
    inside = path.relative_to(run)
    for sibling in _newest(run.parent):
        found = run.parent / sibling / inside
        with suppress(OSError):
            if found.stat().st_uid == os.getuid() and sibling != run.name:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(found, path)
                return True
    return False


def _newest(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder), reverse=True)[:_SIBLINGS]
    except OSError:
        return []


def _packed(repository: Repository, path: Path) -> str:
    """Write the bundle; the reason where that would be too much."""
    objection = _objection(repository)
    if objection:
        return objection
    content = repository.ask("bundle", "create", "--quiet", "-", *_UNPUBLISHED, config=_QUICK)
    if len(content) > MAX_BUNDLE:
        return _too_large(len(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return ""


def _objection(repository: Repository) -> str:
    has_remotes = bool(repository.ask("for-each-ref", "--count=1", "refs/remotes"))
    if repository.is_shallow and not has_remotes:
        return "a shallow clone does not have the history that a bundle needs"
    size = int(repository.text("rev-list", "--objects", "--disk-usage", *_UNPUBLISHED))
    if size > MAX_BUNDLE:
        return _too_large(size)
    if int(repository.text("rev-list", "--objects", "--count", *_UNPUBLISHED)) <= MAX_LOOSE:
        return ""
    loose = int(repository.text("count-objects").split()[0])
    if loose <= MAX_LOOSE:
        return ""
    return f"{loose:,} objects are in no pack, which takes too long; git gc lets the next run keep them"


def _too_large(size: int) -> str:
    return f"{size / 1e6:.0f} MB, more than {MAX_BUNDLE >> 20}; push the commits to a remote"
