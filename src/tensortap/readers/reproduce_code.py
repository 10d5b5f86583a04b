"""Restore the code of a run in a folder of its own: worktree, patch, and the tree it must make."""

import os
import shutil
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote

from tensortap.core.errors import CorruptRunError, RefusedError
from tensortap.metadata.git import GitError, find_repository, run_git
from tensortap.metadata.sources import digest, entries
from tensortap.metadata.untracked import file_hash
from tensortap.metadata.worktree import read_worktree
from tensortap.readers.reproduce_paths import leads_out
from tensortap.readers.reproduce_recorded import Lack, LackingError, Part, Recorded

_PATIENCE = 1800.0
# The user's own repository may be anywhere, and so may its remotes; nothing that runs a command is allowed.
_REMOTE = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_NO_LAZY_FETCH": "0"}


def has_commit(folder: str | Path, commit: str | None) -> bool:
    """Whether a folder is in a repository that has the commit."""
    if not commit or not os.path.isdir(folder):
        return False
    try:
        git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return False
    return True


def is_unchanged(part: Part) -> bool:
    """Whether an editable package is still what it was, so that it can be used where it is installed."""
    if not part.folder or part.tree is None:
        return False
    try:
        repository = find_repository(part.root)
        return read_worktree(repository, part.root).tree == part.tree
    except (GitError, OSError):
        return False


def git(folder: str | Path, *arguments: str, stdin: bytes = b"") -> str:
    deadline = time.monotonic() + _PATIENCE
    output = run_git(str(folder), *arguments, variables=_REMOTE, stdin=stdin, deadline=deadline)
    return os.fsdecode(output).strip()


class Restored:
    """The code of a run below `into`; `undo` leaves no trace of it in the repositories it came from."""

    def __init__(self, into: Path, sources: dict[str, str]) -> None:
        self.into = into
        self.told: list[str] = []
        self.lacks: list[Lack] = []
        self._sources = sources  # a label, and the repository to take it from instead of the recorded one
        self._worktrees: list[tuple[str, Path]] = []

    def restore(self, recorded: Recorded, parts: list[Part]) -> None:
        for part in parts:
            self._restore(part)
        if recorded.tar is not None or recorded.sources_target == "code":
            self._unpack(recorded)

    def undo(self) -> None:
        for source, target in reversed(self._worktrees):
            with suppress(GitError):
                git(source, "worktree", "remove", "--force", "--force", str(target))
            with suppress(GitError):
                git(source, "worktree", "prune")
        self._worktrees.clear()

    @property
    def removal(self) -> str:
        """What the user types to be rid of it."""
        sources = dict.fromkeys(source for source, _ in self._worktrees)
        forget = [f"git -C {quote(source)} worktree prune" for source in sources]
        return " && ".join([f"rm -rf {quote(str(self.into))}", *forget])

    def _restore(self, part: Part) -> None:
        target = self.into / part.target
        if part.commit is None:
            self._begin_empty(part, target)
        else:
            self._add_worktree(self._source(part), part.commit, target)
        if part.patch is not None:
            git(target, "apply", "--cached", "--binary", "--whitespace=nowarn", str(part.patch))
        self._check_tree(part, target)
        git(target, "checkout-index", "--all", "--force", "--index")
        self._bring_skipped(part, target)

    def _begin_empty(self, part: Part, target: Path) -> None:
        kind = "sha256" if len(part.tree or "") == 64 else "sha1"
        target.mkdir(parents=True, exist_ok=True)
        git(target, "init", "--quiet", f"--object-format={kind}")

    def _add_worktree(self, source: str, commit: str, target: Path) -> None:
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        self._worktrees.append((source, target))
        git(source, "worktree", "add", "--detach", "--no-checkout", str(target), commit)
        git(target, "read-tree", "HEAD")

    def _check_tree(self, part: Part, target: Path) -> None:
        """The hard check: the same content, or nothing."""
        found = git(target, "write-tree")
        if part.tree is None:
            self.told.append(f"{part.label}: the run names no tree, so the code could not be checked")
        elif found != part.tree:
            raise CorruptRunError(
                f"{part.label}: commit and patch make the tree {found[:12]}, but the run had "
                f"{part.tree[:12]}; the patch or the repository is not what it was"
            )
        else:
            self.told.append(f"{part.label}: {_named(part)} restored, tree {found[:12]} as recorded")

    def _source(self, part: Part) -> str:
        """A repository that has the commit: the given or recorded one, else made of bundle and remotes."""
        near = [place for place in (self._sources.get(part.label), part.root) if place]
        for place in near:
            if has_commit(place, part.commit):
                return place
        private = self._private(part, near)
        if has_commit(private, part.commit):
            return str(private)
        raise LackingError(commit_lack(part))

    def _private(self, part: Part, near: list[str]) -> Path:
        """A repository of our own, so that nothing is fetched into the user's."""
        private = private_place(self.into, part)
        private.mkdir(parents=True)
        git(private, "init", "--quiet", "--bare")
        for address, wanted in fetches(part, near):
            with suppress(GitError):
                git(private, "fetch", "--quiet", "--no-tags", address, wanted)
            if has_commit(private, part.commit):
                break
        return private

    def _bring_skipped(self, part: Part, target: Path) -> None:
        """Large untracked files are not in the run; the same ones may still be where they were."""
        for facts in part.skipped:
            path, size = facts["path"], facts.get("size")
            if not isinstance(size, int) or not facts.get("hash") or leads_out(path):
                self._note_left_out(part, facts)
                continue
            source = os.path.join(part.root, path)
            same = {"hash": facts["hash"], "hash_of": facts.get("hash_of")}
            if _size(source) == size and file_hash(source, size) == same:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / path)
                self.told.append(f"{path}: copied from {part.root}, the same by its hash ({same['hash_of']})")
            else:
                self.lacks.append(
                    Lack(f"{path} ({size:,} bytes)", f"{source} is not what it was; --link it", False)
                )

    def _note_left_out(self, part: Part, facts: dict[str, object]) -> None:
        if facts.get("reason") != "a run folder":
            remedy = f"--link {facts['path']} takes it from {part.root}"
            self.lacks.append(Lack(f"{facts['path']} ({facts.get('reason')})", remedy, stops=False))

    def _unpack(self, recorded: Recorded) -> None:
        target = self.into / recorded.sources_target
        target.mkdir(parents=True, exist_ok=True)
        if recorded.tar is None:
            reason = recorded.sources.get("reason", "the run kept no files of the program")
            self.told.append(f"code: {reason}; nothing to restore")
            return
        if digest(recorded.tar.read_bytes()) != recorded.sources.get("digest"):
            raise CorruptRunError(f"{recorded.tar} is not what was written; a copy of the run may have it")
        try:
            for entry, content in entries(recorded.tar):
                if content is None or leads_out(entry.name):
                    raise RefusedError(f"{recorded.tar} holds {entry.name!r}, which leads out of the code")
                path = target / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(entry.mode & 0o777)
        except tarfile.TarError as error:
            raise CorruptRunError(f"{recorded.tar} is not whole ({error})") from error
        names = recorded.sources.get("files", [])
        told = ", ".join([*names[:3], "..."] if len(names) > 3 else names)
        self.told.append(f"code: restored {told}, digest as recorded")

    def link(self, path: str, root: str) -> None:
        """Let a file or folder of the original place, which the run does not hold, be seen in the new one."""
        target = self.into / "code" / path
        if leads_out(path):
            raise RefusedError(f"--link {path} leads out of the code; give a path below {root}")
        if not os.path.exists(os.path.join(root, path)):
            raise LackingError(Lack(f"--link {path}", f"there is no such file in {root}"))
        if os.path.lexists(target):
            raise RefusedError(f"--link {path}: the restored code has it already")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.join(root, path))


def commit_lack(part: Part) -> Lack:
    tried = "no bundle" if part.bundle is None else "a bundle that lacks its base"
    why = f" ({part.unkept})" if part.unkept else ""
    remedy = f"{part.root} does not have it, and the run has {tried}{why}"
    where = ", ".join(part.remotes.values())
    return Lack(
        f"commit {(part.commit or '')[:12]} of {part.label}",
        f"{remedy}; {f'fetch it from {where}' if where else 'find a clone that has it'} and give --repo DIR",
    )


def private_place(into: Path, part: Part) -> Path:
    return into / "repositories" / part.target.replace(os.sep, "-")


def fetches(part: Part, near: list[str]) -> list[tuple[str, str]]:
    """What to fetch from where, one after the other: a bundle may need commits that only others have."""
    bundle = [(str(part.bundle), "+HEAD:refs/kept/bundle")] if part.bundle is not None else []
    origins = [*(place for place in near if os.path.isdir(place)), *part.remotes.values()]
    return bundle + [step for one in origins for step in ((one, "+refs/heads/*:refs/kept/heads/*"), *bundle)]


def _named(part: Part) -> str:
    commit = f"commit {part.commit[:12]}" if part.commit else "a repository without commits"
    return f"{commit} and patch" if part.patch is not None else commit


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1
