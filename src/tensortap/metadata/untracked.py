"""Choose which untracked files go into the patch: no runs, no secrets, nothing large."""

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterable
from typing import Any

MAX_FILE = 1 << 20
MAX_TOTAL = 20 << 20
MAX_FILES = 5_000
MAX_LISTED = 1_000
_HASHED_WHOLE = 8 << 20
_OURS = ("runtime_info.json", "packages.json", "git_info.json", "project.patch", ".tensortap")
_SECRET_FILES = (
    ".env", ".env.*", ".env-*", ".env_*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks",
    "*.keystore", "*.kdbx", "*.ppk", "*.ovpn", "*.gpg", "*.asc", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "*credentials*", "*.secret", "*.secrets", "secrets.*", ".netrc", "_netrc", ".pgpass",
    ".npmrc", ".pypirc", ".htpasswd", ".dockercfg", "*service_account*.json", "*service-account*.json",
    "kubeconfig", ".boto", "*.tfstate",
)  # fmt: skip
# Public halves, and examples that are made to be shared.
_NOT_SECRET_FILES = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub")


class Untracked:
    """What of the untracked files is kept; `skipped` says what is not, and why."""

    def __init__(self, root: str, run_folder: str) -> None:
        self.skipped: list[dict[str, Any]] = []
        self.left_out = False
        self._root = root
        self._runs = {os.path.relpath(os.path.realpath(run_folder), root)}
        self._total = 0
        self._count = 0
        self._unlisted = 0

    def choose(self, paths: Iterable[str]) -> list[str]:
        paths = list(paths)
        self._skip_runs(paths)
        outside = [path for path in paths if not self._is_in_run(path)]
        chosen = [path for path in outside if self._keeps(path)]
        self.left_out = len(chosen) < len(outside)
        if self._unlisted:
            self.skipped.append({"path": "...", "reason": f"{self._unlisted} more, not listed"})
        return chosen

    def _skip_runs(self, paths: Iterable[str]) -> None:
        """Earlier runs under the project are results, not code."""
        found = {path.partition("/.tensortap/")[0] for path in paths if "/.tensortap/" in path}
        for run in sorted(found - self._runs):
            self._list(run, "a run folder")
        self._runs |= found

    def _is_in_run(self, path: str) -> bool:
        if "." in self._runs and path.partition("/")[0] in _OURS:
            return True
        parts = path.split("/")
        return any("/".join(parts[:depth]) in self._runs for depth in range(1, len(parts)))

    def _keeps(self, path: str) -> bool:
        reason, facts = self._objection(path)
        if reason:
            self._list(path, reason, **facts)
        return not reason

    def _objection(self, path: str) -> tuple[str, dict[str, Any]]:
        if path.endswith("/"):
            return "a repository of its own", {}
        full = os.path.join(self._root, path)
        try:
            found = os.lstat(full)
        except OSError as error:
            return f"cannot be read: {error.strerror}", {}
        return self._objection_to_file(path, full, found)

    def _objection_to_file(self, path: str, full: str, found: os.stat_result) -> tuple[str, dict[str, Any]]:
        size, is_link = found.st_size, stat.S_ISLNK(found.st_mode)
        if not is_link and not (stat.S_ISREG(found.st_mode) and os.access(full, os.R_OK)):
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

    def _list(self, path: str, reason: str, **facts: Any) -> None:
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
    """The digest of a file; of a very large one only its first and last megabytes, and it says so."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            digest.update(file.read(_HASHED_WHOLE if size <= _HASHED_WHOLE else MAX_FILE))
            if size > _HASHED_WHOLE:
                file.seek(-MAX_FILE, os.SEEK_END)
                digest.update(file.read(MAX_FILE))
    except OSError as error:
        return {"hash": "", "hash_of": f"nothing: {error.strerror}"}
    return {"hash": digest.hexdigest(), "hash_of": "all" if size <= _HASHED_WHOLE else "first and last MB"}


def _is_private_key(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first = file.readline(80)
    except OSError:
        return False
    return first.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in first
