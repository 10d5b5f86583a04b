"""Read a repository with git, without changing it: commits, the working tree as a patch, untracked files."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensortap.metadata.redaction import count_secrets, without_credentials

TIMEOUT = 10.0
LOG_ENTRIES = 50
# The only inherited GIT_* variables: GIT_DIR or GIT_INDEX_FILE, set in hooks, would point elsewhere.
_PASSED_VARIABLES = (
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH",
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone must not fetch what it lacks
    "LC_ALL": "C",
    "LANGUAGE": "C",
}
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.safecrlf=false",
    "core.quotePath=true",
    "log.showSignature=false",
    "i18n.logOutputEncoding=UTF-8",
)
_UNFINISHED_MARKERS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


class GitError(Exception):
    """git is missing, refused, failed or timed out; the message is one sentence."""


class NoRepositoryError(GitError):
    """The folder is in no repository, or in one that git refuses to read."""


@dataclass(frozen=True)
class Repository:
    """The paths of a repository, and methods to run git in it."""

    root: str
    folder: str  # .git, or the worktree's own folder under it
    common: str  # .git of the main worktree
    objects: str
    index: str
    is_shallow: bool
    deadline: float = field(compare=False)

    def run(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        config: Iterable[str] = (),
    ) -> bytes:
        return run_git(
            self.root, *arguments, variables=variables, stdin=stdin, config=config, deadline=self.deadline
        )

    def text(self, *arguments: str) -> str:
        return os.fsdecode(self.run(*arguments)).strip()

    def text_or_none(self, *arguments: str) -> str | None:
        try:
            return self.text(*arguments) or None
        except GitError:
            return None


def find_repository(folder: str) -> Repository:
    """The repository that contains a folder."""
    deadline = time.monotonic() + TIMEOUT
    options = [
        "--show-toplevel",
        "--git-dir",
        "--git-common-dir",
        "--git-path",
        "objects",
        "--git-path",
        "index",
    ]
    try:
        output = run_git(folder, "rev-parse", *options, "--is-shallow-repository", deadline=deadline)
    except GitError as error:
        raise NoRepositoryError(str(error)) from None
    *paths, shallow = os.fsdecode(output).splitlines()
    root, git_dir, common, objects, index = (os.path.normpath(os.path.join(folder, path)) for path in paths)
    return Repository(root, git_dir, common, objects, index, shallow == "true", deadline)


def run_git(
    folder: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    config: Iterable[str] = (),
    deadline: float,
) -> bytes:
    """Run git and return its output; raises GitError with its error message."""
    options = [argument for setting in (*_CONFIG, *config) for argument in ("-c", setting)]
    process = _start_git(
        ["git", "-C", folder, *options, *arguments], git_environment() | dict(variables or {})
    )
    try:
        output, errors = process.communicate(stdin, timeout=max(deadline - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        _kill_group(process)
        raise GitError(f"git {arguments[0]} took longer than {TIMEOUT:g} s") from None
    if process.returncode:
        raise GitError(f"git {arguments[0]} failed: {_error_line(errors)}")
    return output


def git_environment() -> dict[str, str]:
    """The environment without variables that would point git elsewhere."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_PASSED_VARIABLES)
    }
    return inherited | _ENVIRONMENT


def head_commit(repository: Repository) -> str | None:
    """The hash of the current commit; None before the first."""
    return repository.text_or_none("rev-parse", "--verify", "--quiet", "HEAD^{commit}")


def current_branch(repository: Repository) -> str:
    """The branch, also before its first commit; "HEAD" when detached."""
    return repository.text_or_none("symbolic-ref", "--quiet", "--short", "HEAD") or "HEAD"


def recent_commits(repository: Repository) -> list[dict[str, str]]:
    """The last commits, newest first."""
    layout = "--format=%H%x00%an%x00%ad%x00%s"
    output = repository.run(
        "log", "-z", f"-{LOG_ENTRIES}", "--no-color", "--date=short", layout, "HEAD", "--"
    )
    fields = output.decode("utf-8", "replace").split("\0")
    keys = ("commit", "author", "date", "message")
    return [dict(zip(keys, fields[start : start + 4], strict=True)) for start in range(0, len(fields) - 3, 4)]


def remote_urls(repository: Repository) -> dict[str, str]:
    """The URL of each remote, without credentials."""
    output = repository.text_or_none("config", "-z", "--get-regexp", r"^remote\..*\.url$") or ""
    pairs = (entry.partition("\n") for entry in output.split("\0") if entry)
    return {
        key.removeprefix("remote.").removesuffix(".url"): without_credentials(url) for key, _, url in pairs
    }


def unfinished_operations(repository: Repository) -> list[str]:
    """Unfinished operations such as merge and rebase."""
    names = (
        word
        for file, word in _UNFINISHED_MARKERS.items()
        if os.path.exists(os.path.join(repository.folder, file))
    )
    return sorted(set(names))


def list_submodules(repository: Repository) -> list[dict[str, str]]:
    """Path and recorded commit of each submodule; its uncommitted changes are not in the patch."""
    if not os.path.exists(os.path.join(repository.root, ".gitmodules")):
        return []
    entries = os.fsdecode(repository.run("ls-files", "--stage", "-z")).split("\0")
    gitlinks = (entry.partition("\t") for entry in entries if entry.startswith("160000"))
    return [{"path": path, "commit": facts.split()[1]} for facts, _, path in gitlinks]


def repository_details(repository: Repository) -> dict[str, Any]:
    """What environment.json adds to git_info.json about a repository."""
    return {
        "root": repository.root,
        "describe": repository.text_or_none("describe", "--tags", "--always"),
        "remotes": remote_urls(repository),
        "is_shallow": repository.is_shallow,
        "is_sparse": repository.text_or_none("config", "--bool", "core.sparseCheckout") == "true",
        "under_way": unfinished_operations(repository),
        "submodules": list_submodules(repository),
    }


def _start_git(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        # In its own session, so that a filter started by git is killed with it at the timeout.
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
    except FileNotFoundError:
        raise GitError("there is no git program on PATH") from None
    except (OSError, ValueError) as error:
        raise GitError(f"git could not be started: {error}") from None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.communicate()


def _error_line(errors: bytes) -> str:
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["it said nothing"])[0]


_DIFF = (
    "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
    "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--submodule=short",
    "--ignore-submodules=none", "-U3", "--inter-hunk-context=0", "--diff-algorithm=myers",
)  # fmt: skip
# The objects are deleted a moment later: neither compress nor fsync them.
_TEMPORARY_OBJECTS = ("core.fsync=none", "core.compression=0")
# Treat every blob as big, so that all go into one pack: loose objects would take a millisecond each.
_ONE_PACK = "core.bigFileThreshold=1"


@dataclass
class WorktreeState:
    """The uncommitted state of a repository, ready to be written beside a run."""

    tree: str
    patch: bytes
    is_dirty: bool
    skipped: list[dict[str, Any]] = field(default_factory=list)
    unmerged: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        return "dirty" if self.is_dirty else "clean"


def read_worktree(repository: Repository, run_folder: str) -> WorktreeState:
    """The tree and patch of the files on disk: staged or not, deleted, untracked, binary."""
    with tempfile.TemporaryDirectory(prefix="tensortap-") as temporary:
        private = PrivateIndex(repository, temporary)
        unmerged = private.unmerged()
        private.run("add", "--update", config=(_ONE_PACK,))
        untracked = UntrackedFiles(repository.root, run_folder)
        private.add(untracked.select(private.names("ls-files", "--others", "--exclude-standard")))
        tree = os.fsdecode(private.run("write-tree")).strip()
        patch = private.run(*_DIFF, base_tree(repository), tree)
    return WorktreeState(tree, patch, bool(patch) or untracked.has_omitted, untracked.skipped, unmerged)


def base_tree(repository: Repository) -> str:
    """The commit that the patch is relative to; the empty tree before the first."""
    return head_commit(repository) or repository.text("hash-object", "-t", "tree", "--stdin")


class PrivateIndex:
    """A copy of the index; new objects go beside it, and the repository is only read."""

    def __init__(self, repository: Repository, folder: str) -> None:
        self._repository = repository
        index, objects = os.path.join(folder, "index"), os.path.join(folder, "objects")
        os.mkdir(objects)
        if os.path.exists(repository.index):
            # With its mtime: git compares it with the files' to detect racy changes.
            shutil.copy2(repository.index, index)
        self._variables = {
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quote_path(repository.objects),
        }
        # The filter of git-lfs would otherwise store the new contents in the repository.
        self._config = [f"lfs.storage={os.path.join(folder, 'lfs')}", *_TEMPORARY_OBJECTS]

    def run(self, *arguments: str, stdin: bytes = b"", config: tuple[str, ...] = ()) -> bytes:
        settings = (*self._config, *config)
        return self._repository.run(*arguments, variables=self._variables, stdin=stdin, config=settings)

    def names(self, *arguments: str) -> list[str]:
        return [os.fsdecode(name) for name in self.run(*arguments, "-z").split(b"\0") if name]

    def unmerged(self) -> list[str]:
        return sorted({entry.partition("\t")[2] for entry in self.names("ls-files", "--unmerged")})

    def add(self, paths: Iterable[str]) -> None:
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        if names:
            arguments = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            self.run(*arguments, stdin=names, config=(_ONE_PACK,))


def _quote_path(path: str) -> str:
    # The variable is a list: a path that contains its separator must be C-quoted.
    if os.pathsep not in path and not path.startswith('"'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


MAX_FILE = 1 << 20
MAX_TOTAL = 20 << 20
MAX_FILES = 5_000
MAX_LISTED = 1_000
_MAX_FULLY_HASHED = 8 << 20
_RUN_FILES = ("runtime_info.json", "packages.json", "git_info.json", "project.patch", ".tensortap")
_SECRET_FILES = (
    ".env", ".env.*", ".env-*", ".env_*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks",
    "*.keystore", "*.kdbx", "*.ppk", "*.ovpn", "*.gpg", "*.asc", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "*credentials*", "*.secret", "*.secrets", "secrets.*", ".netrc", "_netrc", ".pgpass",
    ".npmrc", ".pypirc", ".htpasswd", ".dockercfg", "*service_account*.json", "*service-account*.json",
    "kubeconfig", ".boto", "*.tfstate",
)  # fmt: skip
# Public keys, and examples that are meant to be shared.
_NOT_SECRET_FILES = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub")


class UntrackedFiles:
    """Selects the untracked files to keep; `skipped` lists the others with a reason."""

    def __init__(self, root: str, run_folder: str) -> None:
        self.skipped: list[dict[str, Any]] = []
        self.has_omitted = False
        self._root = root
        self._runs = {os.path.relpath(os.path.realpath(run_folder), root)}
        self._total = 0
        self._count = 0
        self._unlisted = 0

    def select(self, paths: Iterable[str]) -> list[str]:
        paths = list(paths)
        self._skip_runs(paths)
        outside = [path for path in paths if not self._is_in_run(path)]
        chosen = [path for path in outside if self._is_selected(path)]
        self.has_omitted = len(chosen) < len(outside)
        if self._unlisted:
            self.skipped.append({"path": "...", "reason": f"{self._unlisted} more, not listed"})
        return chosen

    def _skip_runs(self, paths: Iterable[str]) -> None:
        """Skip earlier runs below the project: they are results, not code."""
        runs = {path.partition("/.tensortap/")[0] for path in paths if "/.tensortap/" in path}
        for run in sorted(runs - self._runs):
            self._note_skipped(run, "a run folder")
        self._runs |= runs

    def _is_in_run(self, path: str) -> bool:
        if "." in self._runs and path.partition("/")[0] in _RUN_FILES:
            return True
        parts = path.split("/")
        return any("/".join(parts[:depth]) in self._runs for depth in range(1, len(parts)))

    def _is_selected(self, path: str) -> bool:
        reason, facts = self._reason_to_skip(path)
        if reason:
            self._note_skipped(path, reason, **facts)
        return not reason

    def _reason_to_skip(self, path: str) -> tuple[str, dict[str, Any]]:
        if path.endswith("/"):
            return "a repository of its own", {}
        full = os.path.join(self._root, path)
        try:
            status = os.lstat(full)
        except OSError as error:
            return f"cannot be read: {error.strerror}", {}
        return self._reason_to_skip_file(path, full, status)

    def _reason_to_skip_file(
        self, path: str, full: str, status: os.stat_result
    ) -> tuple[str, dict[str, Any]]:
        size, is_link = status.st_size, stat.S_ISLNK(status.st_mode)
        if not is_link and not (stat.S_ISREG(status.st_mode) and os.access(full, os.R_OK)):
            return "cannot be read: not a readable file", {}
        if is_secret_file(path) or (not is_link and _is_private_key(full)):
            return "looks like a secret", {"size": size}
        if size > MAX_FILE:
            return "larger than 1 MB", {"size": size, **file_hash(full, size)}
        if self._total + size > MAX_TOTAL:
            return "beyond 20 MB in total", {"size": size, **file_hash(full, size)}
        if self._count >= MAX_FILES:
            return f"beyond {MAX_FILES} files", {"size": size}
        self._total, self._count = self._total + size, self._count + 1
        return "", {}

    def _note_skipped(self, path: str, reason: str, **facts: Any) -> None:
        if len(self.skipped) < MAX_LISTED:
            self.skipped.append({"path": path, "reason": reason, **facts})
        else:
            self._unlisted += 1


def is_secret_file(path: str) -> bool:
    """Whether files of that name usually hold secrets."""
    name = os.path.basename(path).lower()
    matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRET_FILES)
    return matches and not any(fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_SECRET_FILES)


def file_hash(path: str, size: int) -> dict[str, str]:
    """The digest of a file, for a very large one of its first and last megabyte; `hash_of` says which."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            digest.update(file.read(_MAX_FULLY_HASHED if size <= _MAX_FULLY_HASHED else MAX_FILE))
            if size > _MAX_FULLY_HASHED:
                file.seek(-MAX_FILE, os.SEEK_END)
                digest.update(file.read(MAX_FILE))
    except OSError as error:
        return {"hash": "", "hash_of": f"nothing: {error.strerror}"}
    return {
        "hash": digest.hexdigest(),
        "hash_of": "all" if size <= _MAX_FULLY_HASHED else "first and last MB",
    }


def _is_private_key(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first_line = file.readline(80)
    except OSError:
        return False
    return first_line.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in first_line


MAX_SCANNED = 1 << 20
_ADDED_LINE = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)


def find_suspicious_files(patch: bytes) -> list[dict[str, Any]]:
    """Path and reason of each file to review before sharing the patch."""
    scanned, suspicious = 0, []
    for section in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        header, _, body = section.partition(b"\n")
        reason = _suspicion(_path_from_header(header), body if scanned < MAX_SCANNED else b"")
        scanned += len(body)
        if reason:
            suspicious.append({"path": _path_from_header(header), "reason": reason})
    if scanned > MAX_SCANNED:
        suspicious.append({"path": "...", "reason": "the rest of the patch was not scanned: over 1 MB"})
    return suspicious


def _suspicion(path: str, body: bytes) -> str:
    if is_secret_file(path):
        return "files of this name usually hold secrets"
    if b"\nGIT binary patch\n" in body:
        return ""
    added = b"\n".join(_ADDED_LINE.findall(body[:MAX_SCANNED])).decode("utf-8", "replace")
    count = count_secrets(added)
    return f"added passages that look secret: {count}" if count else ""


def _path_from_header(header: bytes) -> str:
    """The path in `a/PATH b/PATH`: the same twice, since renames are not detected."""
    if not header.startswith(b'"'):
        return os.fsdecode(header[2 : 2 + (len(header) - 5) // 2])
    quoted = header[3 : 3 + (len(header) - 9) // 2]
    return os.fsdecode(quoted.decode("unicode_escape").encode("latin-1"))
