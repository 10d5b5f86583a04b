"""Keep the commits that no remote has, as a git bundle beside the run."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensortap.metadata import git
from tensortap.metadata.git import Repository

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
