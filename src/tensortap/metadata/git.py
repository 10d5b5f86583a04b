"""Ask the git program about a repository, without changing a byte of it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensortap.metadata.redact import without_credentials

TIMEOUT = 10.0
LOG_ENTRIES = 50
# Of the inherited GIT_* variables only these pass: GIT_DIR or GIT_INDEX_FILE, set in hooks, would mislead.
_PASSED = (
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
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


class GitError(Exception):
    """git is missing, refused, failed or took too long; the message is one sentence."""


class NoRepositoryError(GitError):
    """The folder is in no repository, or git will not read the one it is in."""


@dataclass(frozen=True)
class Repository:
    """Where the parts of one repository are, and how to ask git about it."""

    root: str
    folder: str  # .git, or the worktree's own folder under it
    common: str  # .git of the main worktree
    objects: str
    index: str
    is_shallow: bool
    deadline: float = field(compare=False)

    def ask(
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
        return os.fsdecode(self.ask(*arguments)).strip()

    def text_or_none(self, *arguments: str) -> str | None:
        try:
            return self.text(*arguments) or None
        except GitError:
            return None


def find_repository(folder: str) -> Repository:
    """The repository a folder lies in."""
    deadline = time.monotonic() + TIMEOUT
    asked = [
        "--show-toplevel",
        "--git-dir",
        "--git-common-dir",
        "--git-path",
        "objects",
        "--git-path",
        "index",
    ]
    try:
        answer = run_git(folder, "rev-parse", *asked, "--is-shallow-repository", deadline=deadline)
    except GitError as error:
        raise NoRepositoryError(str(error)) from None
    *paths, shallow = os.fsdecode(answer).splitlines()
    root, own, common, objects, index = (os.path.normpath(os.path.join(folder, path)) for path in paths)
    return Repository(root, own, common, objects, index, shallow == "true", deadline)


def run_git(
    folder: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    config: Iterable[str] = (),
    deadline: float,
) -> bytes:
    """What git prints; GitError with its own words when it fails."""
    options = [part for setting in (*_CONFIG, *config) for part in ("-c", setting)]
    process = _start(["git", "-C", folder, *options, *arguments], git_environment() | dict(variables or {}))
    try:
        output, errors = process.communicate(stdin, timeout=max(deadline - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        _end(process)
        raise GitError(f"git {arguments[0]} took longer than {TIMEOUT:g} s") from None
    if process.returncode:
        raise GitError(f"git {arguments[0]} failed: {_last_words(errors)}")
    return output


def git_environment() -> dict[str, str]:
    """The program's environment without what would point git elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_PASSED)}
    return kept | _ENVIRONMENT


def head(repository: Repository) -> str | None:
    """The id of the current commit; None before the first."""
    return repository.text_or_none("rev-parse", "--verify", "--quiet", "HEAD^{commit}")


def branch(repository: Repository) -> str:
    """The branch, also before its first commit; "HEAD" when detached."""
    return repository.text_or_none("symbolic-ref", "--quiet", "--short", "HEAD") or "HEAD"


def log(repository: Repository) -> list[dict[str, str]]:
    """The last commits, newest first."""
    layout = "--format=%H%x00%an%x00%ad%x00%s"
    output = repository.ask(
        "log", "-z", f"-{LOG_ENTRIES}", "--no-color", "--date=short", layout, "HEAD", "--"
    )
    fields = output.decode("utf-8", "replace").split("\0")
    keys = ("commit", "author", "date", "message")
    return [dict(zip(keys, fields[at : at + 4], strict=True)) for at in range(0, len(fields) - 3, 4)]


def remotes(repository: Repository) -> dict[str, str]:
    """Every remote's address, without credentials."""
    listed = repository.text_or_none("config", "-z", "--get-regexp", r"^remote\..*\.url$") or ""
    pairs = (entry.partition("\n") for entry in listed.split("\0") if entry)
    return {
        key.removeprefix("remote.").removesuffix(".url"): without_credentials(url) for key, _, url in pairs
    }


def under_way(repository: Repository) -> list[str]:
    """The merge, rebase or the like that is not finished."""
    names = (
        word for file, word in _UNDER_WAY.items() if os.path.exists(os.path.join(repository.folder, file))
    )
    return sorted(set(names))


def submodules(repository: Repository) -> list[dict[str, str]]:
    """Path and recorded commit of each; their own uncommitted changes are not in the patch."""
    if not os.path.exists(os.path.join(repository.root, ".gitmodules")):
        return []
    entries = os.fsdecode(repository.ask("ls-files", "--stage", "-z")).split("\0")
    found = (entry.partition("\t") for entry in entries if entry.startswith("160000"))
    return [{"path": path, "commit": facts.split()[1]} for facts, _, path in found]


def extras(repository: Repository) -> dict[str, Any]:
    """What environment.json adds to git_info.json about a repository."""
    return {
        "root": repository.root,
        "describe": repository.text_or_none("describe", "--tags", "--always"),
        "remotes": remotes(repository),
        "is_shallow": repository.is_shallow,
        "is_sparse": repository.text_or_none("config", "--bool", "core.sparseCheckout") == "true",
        "under_way": under_way(repository),
        "submodules": submodules(repository),
    }


def _start(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    try:
        # Its own session, so that at the time limit a filter git has started ends with it.
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
    except FileNotFoundError:
        raise GitError("there is no git program on PATH") from None
    except (OSError, ValueError) as error:
        raise GitError(f"git could not be started: {error}") from None


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.communicate()


def _last_words(errors: bytes) -> str:
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["it said nothing"])[0]
