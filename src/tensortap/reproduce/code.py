"""Restore the code of a run in a folder of its own: worktree, patch, a check of the tree hash, new paths."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tensortap.core.errors import CorruptRunError, RefusedError
from tensortap.metadata.git import GitError, file_hash, find_repository, read_worktree, run_git
from tensortap.metadata.source_archive import archive_entries, content_digest
from tensortap.reproduce.recorded import (
    SCRIPT,
    MissingRequirement,
    MissingRequirementError,
    RecordedRepository,
    RecordedRun,
)

_GIT_TIMEOUT = 1800.0
# Remotes may be anywhere; protocols that run a command (ext::) are not allowed.
_GIT_VARIABLES = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_NO_LAZY_FETCH": "0"}


def has_commit(folder: str | Path, commit: str | None) -> bool:
    """Whether the folder lies in a repository that has the commit."""
    if not commit or not os.path.isdir(folder):
        return False
    try:
        git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return False
    return True


def is_unchanged(repository: RecordedRepository) -> bool:
    """Whether an editable package is unchanged by its tree hash, so that it can be used where it is."""
    if not repository.folder or repository.tree is None:
        return False
    try:
        checkout = find_repository(repository.root)
        return read_worktree(checkout, repository.root).tree == repository.tree
    except (GitError, OSError):
        return False


def git(folder: str | Path, *arguments: str, stdin: bytes = b"") -> str:
    deadline = time.monotonic() + _GIT_TIMEOUT
    output = run_git(str(folder), *arguments, variables=_GIT_VARIABLES, stdin=stdin, deadline=deadline)
    return os.fsdecode(output).strip()


class CodeRestorer:
    """Restores the code of a run below `into`; `undo` removes its worktrees from the source repositories."""

    def __init__(self, into: Path, sources: dict[str, str]) -> None:
        self.into = into
        self.messages: list[str] = []
        self.missing: list[MissingRequirement] = []
        self._sources = sources  # by label, a repository to use instead of the recorded one
        self._worktrees: list[tuple[str, Path]] = []

    def restore(self, recorded: RecordedRun, repositories: list[RecordedRepository]) -> None:
        for repository in repositories:
            self._restore_repository(repository)
        if recorded.tar is not None or recorded.sources_target == "code":
            self._unpack_sources(recorded)

    def undo(self) -> None:
        for source, target in reversed(self._worktrees):
            with suppress(GitError):
                git(source, "worktree", "remove", "--force", "--force", str(target))
            with suppress(GitError):
                git(source, "worktree", "prune")
        self._worktrees.clear()

    @property
    def removal(self) -> str:
        """The shell command that removes it."""
        sources = dict.fromkeys(source for source, _ in self._worktrees)
        prunes = [f"git -C {quote(source)} worktree prune" for source in sources]
        return " && ".join([f"rm -rf {quote(str(self.into))}", *prunes])

    def _restore_repository(self, repository: RecordedRepository) -> None:
        target = self.into / repository.target
        if repository.commit is None:
            self._init_empty(repository, target)
        else:
            self._add_worktree(self._repository_with_commit(repository), repository.commit, target)
        if repository.patch is not None:
            git(target, "apply", "--cached", "--binary", "--whitespace=nowarn", str(repository.patch))
        self._check_tree(repository, target)
        git(target, "checkout-index", "--all", "--force", "--index")
        self._copy_skipped(repository, target)

    def _init_empty(self, repository: RecordedRepository, target: Path) -> None:
        object_format = "sha256" if len(repository.tree or "") == 64 else "sha1"
        target.mkdir(parents=True, exist_ok=True)
        git(target, "init", "--quiet", f"--object-format={object_format}")

    def _add_worktree(self, source: str, commit: str, target: Path) -> None:
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        self._worktrees.append((source, target))
        git(source, "worktree", "add", "--detach", "--no-checkout", str(target), commit)
        git(target, "read-tree", "HEAD")

    def _check_tree(self, repository: RecordedRepository, target: Path) -> None:
        """Raise unless the restored tree has the recorded hash."""
        tree = git(target, "write-tree")
        if repository.tree is None:
            self.messages.append(
                f"{repository.label}: the run names no tree, so the code could not be checked"
            )
        elif tree != repository.tree:
            raise CorruptRunError(
                f"{repository.label}: commit and patch make the tree {tree[:12]}, but the run had "
                f"{repository.tree[:12]}; the patch or the repository is not what it was"
            )
        else:
            state = _describe_state(repository)
            self.messages.append(f"{repository.label}: {state} restored, tree {tree[:12]} as recorded")

    def _repository_with_commit(self, repository: RecordedRepository) -> str:
        """A repository with the commit: a given or recorded one, else one fetched from bundle and remotes."""
        local_folders = [
            folder for folder in (self._sources.get(repository.label), repository.root) if folder
        ]
        for source in local_folders:
            if has_commit(source, repository.commit):
                return source
        private = self._fetch_privately(repository, local_folders)
        if has_commit(private, repository.commit):
            return str(private)
        raise MissingRequirementError(missing_commit(repository))

    def _fetch_privately(self, repository: RecordedRepository, local_folders: list[str]) -> Path:
        """Fetch into a repository of our own, so that the user's are not changed."""
        private = private_repository(self.into, repository)
        private.mkdir(parents=True)
        git(private, "init", "--quiet", "--bare")
        for url, refspec in fetch_sources(repository, local_folders):
            with suppress(GitError):
                git(private, "fetch", "--quiet", "--no-tags", url, refspec)
            if has_commit(private, repository.commit):
                break
        return private

    def _copy_skipped(self, repository: RecordedRepository, target: Path) -> None:
        """Copy large untracked files, which the run does not hold, from their recorded paths if unchanged."""
        for facts in repository.skipped:
            path, size = facts["path"], facts.get("size")
            if not isinstance(size, int) or not facts.get("hash") or leads_out(path):
                self._note_omitted(repository, facts)
                continue
            source = os.path.join(repository.root, path)
            expected_hash = {"hash": facts["hash"], "hash_of": facts.get("hash_of")}
            if _file_size(source) == size and file_hash(source, size) == expected_hash:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / path)
                self.messages.append(
                    f"{path}: copied from {repository.root}, "
                    f"the same by its hash ({expected_hash['hash_of']})"
                )
            else:
                self.missing.append(
                    MissingRequirement(
                        f"{path} ({size:,} bytes)", f"{source} is not what it was; --link it", False
                    )
                )

    def _note_omitted(self, repository: RecordedRepository, facts: dict[str, object]) -> None:
        if facts.get("reason") != "a run folder":
            remedy = f"--link {facts['path']} takes it from {repository.root}"
            self.missing.append(
                MissingRequirement(f"{facts['path']} ({facts.get('reason')})", remedy, is_blocking=False)
            )

    def _unpack_sources(self, recorded: RecordedRun) -> None:
        target = self.into / recorded.sources_target
        target.mkdir(parents=True, exist_ok=True)
        if recorded.tar is None:
            reason = recorded.sources.get("reason", "the run kept no files of the program")
            self.messages.append(f"code: {reason}; nothing to restore")
            return
        if content_digest(recorded.tar.read_bytes()) != recorded.sources.get("digest"):
            raise CorruptRunError(f"{recorded.tar} is not what was written; a copy of the run may have it")
        try:
            for entry, content in archive_entries(recorded.tar):
                if content is None or leads_out(entry.name):
                    raise RefusedError(f"{recorded.tar} holds {entry.name!r}, which leads out of the code")
                path = target / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(entry.mode & 0o777)
        except tarfile.TarError as error:
            raise CorruptRunError(f"{recorded.tar} is not whole ({error})") from error
        names = recorded.sources.get("files", [])
        shown_names = ", ".join([*names[:3], "..."] if len(names) > 3 else names)
        self.messages.append(f"code: restored {shown_names}, digest as recorded")

    def link(self, path: str, root: str) -> None:
        """Symlink a file or folder of the original checkout that the run does not hold."""
        target = self.into / "code" / path
        if leads_out(path):
            raise RefusedError(f"--link {path} leads out of the code; give a path below {root}")
        if not os.path.exists(os.path.join(root, path)):
            raise MissingRequirementError(
                MissingRequirement(f"--link {path}", f"there is no such file in {root}")
            )
        if os.path.lexists(target):
            raise RefusedError(f"--link {path}: the restored code has it already")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.join(root, path))


def missing_commit(repository: RecordedRepository) -> MissingRequirement:
    bundle = "no bundle" if repository.bundle is None else "a bundle that lacks its base"
    reason = f" ({repository.bundle_failure})" if repository.bundle_failure else ""
    remedy = f"{repository.root} does not have it, and the run has {bundle}{reason}"
    urls = ", ".join(repository.remotes.values())
    return MissingRequirement(
        f"commit {(repository.commit or '')[:12]} of {repository.label}",
        f"{remedy}; {f'fetch it from {urls}' if urls else 'find a clone that has it'} and give --repo DIR",
    )


def private_repository(into: Path, repository: RecordedRepository) -> Path:
    return into / "repositories" / repository.target.replace(os.sep, "-")


def fetch_sources(repository: RecordedRepository, local_folders: list[str]) -> list[tuple[str, str]]:
    """(URL, refspec) pairs to fetch in order: a bundle may need commits that only others have."""
    bundle = [(str(repository.bundle), "+HEAD:refs/kept/bundle")] if repository.bundle is not None else []
    origins = [*(folder for folder in local_folders if os.path.isdir(folder)), *repository.remotes.values()]
    return bundle + [
        fetch for origin in origins for fetch in ((origin, "+refs/heads/*:refs/kept/heads/*"), *bundle)
    ]


def _describe_state(repository: RecordedRepository) -> str:
    commit = f"commit {repository.commit[:12]}" if repository.commit else "a repository without commits"
    return f"{commit} and patch" if repository.patch is not None else commit


def _file_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


_PATH_HEADER = re.compile(
    rb"^(?:--- |\+\+\+ |rename (?:from|to) |copy (?:from|to) )(.*?)\t?\r?$", re.MULTILINE
)
_SYMLINK_MODE = re.compile(rb"^(?:new file mode|new mode) 120000$|^index [0-9a-f.]+ 120000$", re.MULTILINE)
_ADDED_LINE = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)


def check_paths(recorded: RecordedRun, *, trust: bool) -> None:
    """Refuse a run whose files would land outside the folder they are restored to."""
    for repository in recorded.repositories:
        if leads_out(repository.target) or repository.target.split(os.sep)[0] not in (
            "code",
            "packages",
            SCRIPT,
        ):
            raise RefusedError(
                f"{repository.label} would be restored outside the new folder; it is not touched"
            )
        if repository.patch is not None:
            check_patch(repository.patch.read_bytes(), repository.patch, trust=trust)


def check_patch(patch: bytes, patch_file: Path, *, trust: bool) -> None:
    for section in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE):
        for path in _patched_paths(section):
            if leads_out(path) or ".git" in path.lower().split("/"):
                raise RefusedError(
                    f"{patch_file} writes to {path!r}, outside the code; such a patch is not applied"
                )
            if not trust:
                _check_link(section, path, patch_file)


def leads_out(path: str) -> bool:
    """Whether a path is absolute or escapes its folder by `..`."""
    normal = os.path.normpath(path)
    return os.path.isabs(path) or normal == ".." or normal.startswith("../") or "\0" in path


def _check_link(section: bytes, path: str, patch_file: Path) -> None:
    if not _SYMLINK_MODE.search(section.partition(b"\n@@")[0]):
        return
    for target in map(os.fsdecode, _ADDED_LINE.findall(section.partition(b"\n@@")[2])):
        if os.path.isabs(target) or leads_out(os.path.join(os.path.dirname(path), target)):
            raise RefusedError(
                f"{patch_file} makes a link {path!r} that points out of the code, to {target!r}; "
                "--trust restores it"
            )


def _patched_paths(section: bytes) -> Iterator[str]:
    """Every path named in the headers of a section of a patch."""
    header = section.partition(b"\n@@")[0]
    for quoted in _PATH_HEADER.findall(header.partition(b"\nGIT binary patch")[0]):
        name = _unquote(quoted)
        if name != "/dev/null":
            yield name[2:] if name[:2] in ("a/", "b/") else name
    diff_line = header.partition(b"\n")[0].removeprefix(b"diff --git ")
    if header.startswith(b"diff --git "):
        yield from (name[2:] for name in _paths_of_diff_line(diff_line))


def _paths_of_diff_line(paths: bytes) -> Iterator[str]:
    """The two paths of `a/PATH b/PATH`; they are the same, since renames are not detected."""
    if paths.startswith(b'"'):
        middle = (len(paths) - 1) // 2
        yield from (_unquote(paths[:middle]), _unquote(paths[middle + 1 :]))
    else:
        middle = len(paths) // 2
        yield from (os.fsdecode(paths[:middle]), os.fsdecode(paths[middle + 1 :]))


def _unquote(name: bytes) -> str:
    if not name.startswith(b'"'):
        return os.fsdecode(name)
    return os.fsdecode(name.strip(b'"').decode("unicode_escape").encode("latin-1", "replace"))


@dataclass(frozen=True, slots=True)
class PathMapping:
    """Maps recorded folders to where they are restored."""

    pairs: tuple[tuple[str, str], ...]

    def translate(self, path: str) -> str:
        """The new path of an absolute path; unchanged outside the recorded folders."""
        for old, new in self.pairs:
            if path == old:
                return new
            if path.startswith(os.path.join(old, "")):
                return os.path.join(new, os.path.relpath(path, old))
        return path

    def contains(self, path: str) -> bool:
        return self.translate(path) != path

    def translate_list(self, text: str) -> str:
        """Translate each path of a variable such as PYTHONPATH."""
        return os.pathsep.join(map(self.translate, text.split(os.pathsep)))

    def translate_argument(self, word: str, old_folder: str) -> str:
        """Translate an argument of the command: `/abs`, `--data=/abs`, or relative to the recorded folder."""
        option, equals, value = word.partition("=")
        if equals and option.startswith("-") and "/" not in option:
            return f"{option}={self._translate_value(value, old_folder)}"
        return word if word.startswith("-") else self._translate_value(word, old_folder)

    def _translate_value(self, value: str, old_folder: str) -> str:
        if os.path.isabs(value):
            return self.translate_list(value)
        absolute = os.path.normpath(os.path.join(old_folder, value)) if value and old_folder else ""
        if not absolute or not os.path.exists(absolute):
            return self.translate(absolute) if value.startswith("..") and self.contains(absolute) else value
        # Below the working directory a relative path still resolves; above it only an absolute one does.
        is_below = absolute.startswith(os.path.join(old_folder, ""))
        return value if is_below and self.contains(old_folder) else self.translate(absolute)


def map_paths(repositories: list[RecordedRepository], recorded: RecordedRun, into: Path) -> PathMapping:
    pairs = [
        (repository.root, str(into / repository.target)) for repository in repositories if repository.root
    ]
    if recorded.sources.get("root"):
        pairs.append((str(recorded.sources["root"]), str(into / recorded.sources_target)))
    return PathMapping(tuple(sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)))
