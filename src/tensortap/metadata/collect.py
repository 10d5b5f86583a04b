"""Collect facts, refresh on change.

Collect the facts beside a run, and write those that changed.

Notice that one of a few files changed, in microseconds.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from functools import partial
from os import F_OK, access, stat
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any, get_args

from tensortap.core.settings import setting
from tensortap.metadata.git import NoRepositoryError, Repository
from tensortap.metadata.machine import hardware, interpreter, randomness, system
from tensortap.metadata.monkeypatches import Modifications, runtime_modifications
from tensortap.metadata.packages import (
    Package,
    indexes,
    installed,
    package_details,
    package_set,
    packages_info,
)
from tensortap.metadata.problems import Problems
from tensortap.metadata.process import (
    Start,
    announce,
    is_below,
    launch,
    next_number,
    program_start,
    remember_to_end,
    runtime_info,
    timestamp_zone,
)
from tensortap.metadata.redaction import Policy, Redactor, digest_key
from tensortap.metadata.repositories import (
    PATCH,
    Place,
    Project,
    describe_project,
    describe_repositories,
    editable_packages,
    find_project,
    keep_unpublished,
    other_repositories,
    watched_paths,
)
from tensortap.metadata.source_archive import CODE, SOURCES, sources

OWN_FOLDER = ".tensortap"
_BETWEEN_LOOKS = 0.002


class Metadata:
    """The facts beside a run: collected once, written when they changed."""

    def __init__(
        self,
        folder: Path,
        *,
        timezone: str | None = None,
        env: Policy = "redact",
        start: Start | None = None,
    ) -> None:
        if env not in get_args(Policy):
            raise ValueError(f"env is {env!r}; give 'all', 'redact' or 'names'")
        # The place is that of the start, though the program may change its working directory later.
        self.folder = Path(os.path.abspath(folder))
        self._policy = env
        self._moment = datetime.now(timestamp_zone(timezone))
        self._start = start or program_start()
        self._strayed: Start | None = None
        self._redactor = Redactor(digest_key)
        self._logged: set[tuple[str, str]] = set()
        self._randomness: dict[str, Any] | None = None
        self._watch: Watch | None = None
        self._has_begun = False
        self._number = 0
        self._next_look = 0.0

    def write(self) -> None:
        """Collect everything, and write the files whose content changed."""
        problems = Problems(self._logged)
        if not self._has_begun:  # a folder that somebody deletes later does not come back by itself
            self._begin(problems)
        repository, reason = self._find(problems)
        project = self._describe(repository, problems)
        packages = problems.attempt("installed packages", installed) or []
        modified = problems.attempt("runtime modifications", runtime_modifications) or Modifications()
        self._write_json("runtime_info.json", self._runtime(problems))
        self._write_json("packages.json", problems.attempt("packages", lambda: packages_info(packages)) or {})
        self._write_json("git_info.json", _git_info(project, packages, repository, modified, problems))
        if project.patch is not None:
            self._write(PATCH, project.patch)
        git = project.extras if repository is not None else {"reason": reason}
        code = self._code(repository, packages, problems)
        about = {"git": git | code.pop("git"), **code}
        self._write_json(
            f"{OWN_FOLDER}/environment.json", self._environment(about, packages, modified, problems)
        )

    def refresh(self) -> bool:
        """Write again if the repository moved since the last look; cheap enough for every dump, because
        files are looked at once in a few milliseconds at most: no commit is quicker."""
        now = monotonic()
        if now < self._next_look or self._watch is None:
            return False
        self._next_look = now + _BETWEEN_LOOKS
        if not self._watch.has_moved():
            return False
        self.write()
        return True

    def _begin(self, problems: Problems) -> None:
        own = self.folder / OWN_FOLDER
        own.mkdir(parents=True, exist_ok=True)
        self._has_begun = True
        self._number = next_number()
        problems.attempt("list of runs", lambda: announce(self.folder, self._number))
        remember_to_end(own, self._keep_sources)

    def _keep_sources(self) -> dict[str, Any]:
        """Where no repository has them; at the end once more, with what was imported late. What was found
        before stays if nothing is found now: the program may have removed it."""
        if self._watch is not None and self._strayed is None:
            return {}
        facts, content = sources(self._strayed or self._start)
        place = f"{OWN_FOLDER}/{CODE}/{SOURCES}"
        if content or not (self.folder / place).exists():
            self._write(place, content)
            self._write_json(f"{OWN_FOLDER}/{CODE}/sources.json", facts)
        return {key: facts[key] for key in ("root", "reason") if key in facts}

    def _find(self, problems: Problems) -> tuple[Repository | None, str]:
        try:
            return find_project(self._start.folders), ""
        except NoRepositoryError as error:
            return None, str(error)
        except (OSError, ValueError) as error:
            problems.note("project", f"{type(error).__name__}: {error}")
            return None, "git gave an answer that could not be read"

    def _describe(self, repository: Repository | None, problems: Problems) -> Project:
        self._watch = None
        if repository is None:
            return Project()
        # Looked at before collecting: a commit made meanwhile is then noticed by the next refresh.
        self._watch = problems.attempt("repository files", lambda: Watch(watched_paths(repository)))
        folder = str(self.folder)
        return problems.attempt("git", lambda: describe_project(repository, folder, problems)) or Project()

    def _runtime(self, problems: Problems) -> dict[str, Any]:
        collect = partial(runtime_info, self._redactor, self._policy, self._start.folder, self._moment)
        return problems.attempt("runtime", collect) or {}

    def _code(
        self, repository: Repository | None, packages: list[Package], problems: Problems
    ) -> dict[str, Any]:
        """What restores the code beyond commit and patch."""
        attempt, own = problems.attempt, self.folder / OWN_FOLDER
        kept: dict[str, Any] = {"git": {}}
        if repository is not None:
            keep = partial(keep_unpublished, repository, own / CODE, "project")
            kept = {"git": {"bundle": attempt("unpublished commits", keep) or {}}}
        places = partial(other_repositories, repository, packages, self._start.script)
        others = attempt("other repositories", places) or []
        self._strayed = self._stray(repository, others)
        if repository is None or self._strayed is not None:
            kept["sources"] = attempt("sources", self._keep_sources) or {}
        else:  # an earlier description may not have known of the repository
            self._write(f"{OWN_FOLDER}/{CODE}/{SOURCES}", b"")
            self._write(f"{OWN_FOLDER}/{CODE}/sources.json", b"")
        describe = partial(describe_repositories, others, own, str(self.folder), problems)
        return kept | {"repositories": attempt("repositories", describe) or []}

    def _stray(self, repository: Repository | None, others: list[Place]) -> Start | None:
        """A script that none of the repositories has, though the program has one."""
        script = self._start.script
        if repository is None or script is None:
            return None
        roots = [repository.root, *(other.root for _, other in others)]
        is_kept = any(is_below(script, os.path.realpath(root)) for root in roots)
        return None if is_kept else Start(os.path.dirname(script), script)

    def _environment(
        self, about: dict[str, Any], packages: list[Package], modified: Modifications, problems: Problems
    ) -> dict[str, Any]:
        """What is worth knowing beyond the documented files."""
        attempt = problems.attempt
        if self._randomness is None:  # as the run began: later states would differ at every write
            self._randomness = attempt("random states", lambda: randomness(attempt)) or {}
        return {
            "orig_argv": attempt("orig_argv", lambda: self._redactor.arguments(sys.orig_argv)),
            "interpreter": attempt("interpreter", interpreter),
            "system": attempt("system", system),
            "hardware": attempt("hardware", hardware),
            "randomness": self._randomness,
            "packages": attempt("package details", lambda: package_details(packages)),
            "package_set": package_set(packages),
            "indexes": attempt("package indexes", indexes),
            "launch": attempt("launch", lambda: launch(self._redactor)),
            "number": self._number,
            "parent": setting("TENSORTAP_PARENT") or None,
            **about,
            "modules_looked_at": modified.looked_at,
            "modules_not_looked_at": modified.not_looked_at,
            "problems": problems.found,
        }

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self._write(name, _json(content))

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file whose content changed; a file without content is removed."""
        path = self.folder / name
        if not content:
            path.unlink(missing_ok=True)
            return
        if path.parent.name == CODE:  # made when there is something for it
            path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            _replace(path, content)


def _git_info(
    project: Project,
    packages: list[Package],
    repository: Repository | None,
    modified: Modifications,
    problems: Problems,
) -> dict[str, Any]:
    """The content of git_info.json."""
    status = project.info.get("status", "unknown")
    editable = partial(editable_packages, packages, repository, status, problems)
    return {
        "project_git_info": project.info,
        "packages_git_info": problems.attempt("editable packages", editable) or {},
        "runtime_modifications": modified.found,
    }


def _json(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n").encode()
    except UnicodeEncodeError:  # a name that is not UTF-8, kept by escapes
        return (json.dumps(content, indent=2, default=str) + "\n").encode()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class Watch:
    """Time, size and inode of some files as they were, and which were absent."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._present: list[tuple[str, int, int, int]] = []
        self._absent: list[str] = []
        for path in paths:
            self._look(path)

    def has_moved(self) -> bool:
        for path, time, size, inode in self._present:
            try:
                found = stat(path)
            except OSError:
                return True
            if found.st_mtime_ns != time or found.st_size != size or found.st_ino != inode:
                return True
        # For a file that is not there, asking is half the price of a failing stat.
        return any(access(path, F_OK) for path in self._absent) if self._absent else False

    def _look(self, path: str) -> None:
        try:
            found = stat(path)
        except OSError:
            self._absent.append(path)
        else:
            self._present.append((path, found.st_mtime_ns, found.st_size, found.st_ino))
