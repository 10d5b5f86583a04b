"""Collect the metadata of a run, and write the files that changed."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from functools import partial
from os import F_OK, access, stat
from pathlib import Path
from time import monotonic
from typing import Any, get_args

from tensortap.core.filesystem import replace_file
from tensortap.core.settings import setting
from tensortap.metadata.git import NoRepositoryError, Repository
from tensortap.metadata.machine import (
    describe_hardware,
    describe_interpreter,
    describe_randomness,
    describe_system,
)
from tensortap.metadata.monkeypatches import RuntimeModifications, find_modifications
from tensortap.metadata.packages import (
    Package,
    list_installed,
    package_details,
    package_indexes,
    packages_digest,
    packages_info,
)
from tensortap.metadata.problems import Problems
from tensortap.metadata.process import (
    ProgramStart,
    append_to_run_list,
    describe_launch,
    find_program_start,
    is_below,
    next_run_number,
    runtime_info,
    timestamp_zone,
    write_outcome_at_exit,
)
from tensortap.metadata.redaction import EnvironmentPolicy, Redactor, digest_key
from tensortap.metadata.repositories import (
    PATCH_FILE,
    LabelledRepository,
    ProjectFacts,
    bundle_unpublished,
    describe_project,
    describe_repositories,
    editable_packages,
    find_other_repositories,
    find_project,
    paths_that_change,
)
from tensortap.metadata.source_archive import CODE_FOLDER, SOURCES_FILE, archive_sources

OWN_FOLDER = ".tensortap"
_CHECK_INTERVAL = 0.002


class Metadata:
    """The facts beside a run: collected once, written when they changed."""

    def __init__(
        self,
        folder: Path,
        *,
        timezone: str | None = None,
        env: EnvironmentPolicy = "redact",
        start: ProgramStart | None = None,
    ) -> None:
        if env not in get_args(EnvironmentPolicy):
            raise ValueError(f"env is {env!r}; give 'all', 'redact' or 'names'")
        # Absolute from the start: the program may change its working directory later.
        self.folder = Path(os.path.abspath(folder))
        self._policy = env
        self._started_at = datetime.now(timestamp_zone(timezone))
        self._start = start or find_program_start()
        self._stray_script: ProgramStart | None = None
        self._redactor = Redactor(digest_key)
        self._logged: set[tuple[str, str]] = set()
        self._randomness: dict[str, Any] | None = None
        self._watch: FileWatch | None = None
        self._has_started = False
        self._run_number = 0
        self._next_check = 0.0

    def write(self) -> None:
        """Collect everything, and write the files whose content changed."""
        problems = Problems(self._logged)
        if not self._has_started:  # once: a folder that the user deletes later is not recreated
            self._start_run(problems)
        repository, reason = self._find_project(problems)
        project = self._describe_project(repository, problems)
        packages = problems.attempt("installed packages", list_installed) or []
        modified = problems.attempt("runtime modifications", find_modifications) or RuntimeModifications()
        self._write_json("runtime_info.json", self._runtime_facts(problems))
        self._write_json("packages.json", problems.attempt("packages", lambda: packages_info(packages)) or {})
        self._write_json("git_info.json", _git_info(project, packages, repository, modified, problems))
        if project.patch is not None:
            self._write(PATCH_FILE, project.patch)
        git = project.extras if repository is not None else {"reason": reason}
        code = self._code_facts(repository, packages, problems)
        code_facts = {"git": git | code.pop("git"), **code}
        self._write_json(
            f"{OWN_FOLDER}/environment.json",
            self._environment_facts(code_facts, packages, modified, problems),
        )

    def refresh(self) -> bool:
        """Write again if the repository changed since the last check; cheap enough for every dump, because
        files are checked at most every few milliseconds, and no commit is faster."""
        now = monotonic()
        if now < self._next_check or self._watch is None:
            return False
        self._next_check = now + _CHECK_INTERVAL
        if not self._watch.has_changed():
            return False
        self.write()
        return True

    def _start_run(self, problems: Problems) -> None:
        internal_folder = self.folder / OWN_FOLDER
        internal_folder.mkdir(parents=True, exist_ok=True)
        self._has_started = True
        self._run_number = next_run_number()
        problems.attempt("list of runs", lambda: append_to_run_list(self.folder, self._run_number))
        write_outcome_at_exit(internal_folder, self._archive_sources)

    def _archive_sources(self) -> dict[str, Any]:
        """Archive sources that no repository has; again at exit, for late imports. An earlier archive stays
        if nothing is found now: the program may have deleted the files."""
        if self._watch is not None and self._stray_script is None:
            return {}
        facts, content = archive_sources(self._stray_script or self._start)
        archive = f"{OWN_FOLDER}/{CODE_FOLDER}/{SOURCES_FILE}"
        if content or not (self.folder / archive).exists():
            self._write(archive, content)
            self._write_json(f"{OWN_FOLDER}/{CODE_FOLDER}/sources.json", facts)
        return {key: facts[key] for key in ("root", "reason") if key in facts}

    def _find_project(self, problems: Problems) -> tuple[Repository | None, str]:
        try:
            return find_project(self._start.folders), ""
        except NoRepositoryError as error:
            return None, str(error)
        except (OSError, ValueError) as error:
            problems.note("project", f"{type(error).__name__}: {error}")
            return None, "git gave an answer that could not be read"

    def _describe_project(self, repository: Repository | None, problems: Problems) -> ProjectFacts:
        self._watch = None
        if repository is None:
            return ProjectFacts()
        # Before collecting, so that a commit made meanwhile is noticed by the next refresh.
        self._watch = problems.attempt("repository files", lambda: FileWatch(paths_that_change(repository)))
        folder = str(self.folder)
        return (
            problems.attempt("git", lambda: describe_project(repository, folder, problems)) or ProjectFacts()
        )

    def _runtime_facts(self, problems: Problems) -> dict[str, Any]:
        collect = partial(runtime_info, self._redactor, self._policy, self._start.folder, self._started_at)
        return problems.attempt("runtime", collect) or {}

    def _code_facts(
        self, repository: Repository | None, packages: list[Package], problems: Problems
    ) -> dict[str, Any]:
        """What is needed to restore the code beyond commit and patch: bundle, sources, other repositories."""
        attempt, internal_folder = problems.attempt, self.folder / OWN_FOLDER
        code_facts: dict[str, Any] = {"git": {}}
        if repository is not None:
            keep_bundle = partial(bundle_unpublished, repository, internal_folder / CODE_FOLDER, "project")
            code_facts = {"git": {"bundle": attempt("unpublished commits", keep_bundle) or {}}}
        find_others = partial(find_other_repositories, repository, packages, self._start.script)
        repositories = attempt("other repositories", find_others) or []
        self._stray_script = self._find_stray_script(repository, repositories)
        if repository is None or self._stray_script is not None:
            code_facts["sources"] = attempt("sources", self._archive_sources) or {}
        else:  # an earlier write may not have known of the repository
            self._write(f"{OWN_FOLDER}/{CODE_FOLDER}/{SOURCES_FILE}", b"")
            self._write(f"{OWN_FOLDER}/{CODE_FOLDER}/sources.json", b"")
        describe = partial(describe_repositories, repositories, internal_folder, str(self.folder), problems)
        return code_facts | {"repositories": attempt("repositories", describe) or []}

    def _find_stray_script(
        self, repository: Repository | None, other_repositories: list[LabelledRepository]
    ) -> ProgramStart | None:
        """The start of a script that lies in none of the repositories; None if it is covered."""
        script = self._start.script
        if repository is None or script is None:
            return None
        roots = [repository.root, *(repository_beside.root for _, repository_beside in other_repositories)]
        is_covered = any(is_below(script, os.path.realpath(root)) for root in roots)
        return None if is_covered else ProgramStart(os.path.dirname(script), script)

    def _environment_facts(
        self,
        about: dict[str, Any],
        packages: list[Package],
        modified: RuntimeModifications,
        problems: Problems,
    ) -> dict[str, Any]:
        """The content of environment.json: what the documented files do not have."""
        attempt = problems.attempt
        if self._randomness is None:  # at the start of the run: later states would differ at every write
            self._randomness = attempt("random states", lambda: describe_randomness(attempt)) or {}
        return {
            "orig_argv": attempt("orig_argv", lambda: self._redactor.arguments(sys.orig_argv)),
            "interpreter": attempt("interpreter", describe_interpreter),
            "system": attempt("system", describe_system),
            "hardware": attempt("hardware", describe_hardware),
            "randomness": self._randomness,
            "packages": attempt("package details", lambda: package_details(packages)),
            "package_set": packages_digest(packages),
            "indexes": attempt("package indexes", package_indexes),
            "launch": attempt("launch", lambda: describe_launch(self._redactor)),
            "number": self._run_number,
            "parent": setting("TENSORTAP_PARENT") or None,
            **about,
            "modules_looked_at": modified.checked,
            "modules_not_looked_at": modified.unchecked,
            "problems": problems.entries,
        }

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self._write(name, _to_json_bytes(content))

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file whose content changed; a file without content is removed."""
        path = self.folder / name
        if not content:
            path.unlink(missing_ok=True)
            return
        if path.parent.name == CODE_FOLDER:  # created on demand
            path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            replace_file(path, content)


def _git_info(
    project: ProjectFacts,
    packages: list[Package],
    repository: Repository | None,
    modified: RuntimeModifications,
    problems: Problems,
) -> dict[str, Any]:
    """The content of git_info.json."""
    status = project.info.get("status", "unknown")
    editable = partial(editable_packages, packages, repository, status, problems)
    return {
        "project_git_info": project.info,
        "packages_git_info": problems.attempt("editable packages", editable) or {},
        "runtime_modifications": modified.replaced,
    }


def _to_json_bytes(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n").encode()
    except UnicodeEncodeError:  # a name that is not UTF-8 is escaped
        return (json.dumps(content, indent=2, default=str) + "\n").encode()


class FileWatch:
    """Detects in microseconds that one of a few files changed, by mtime, size and inode."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._present: list[tuple[str, int, int, int]] = []
        self._absent: list[str] = []
        for path in paths:
            self._add(path)

    def has_changed(self) -> bool:
        for path, time, size, inode in self._present:
            try:
                status = stat(path)
            except OSError:
                return True
            if status.st_mtime_ns != time or status.st_size != size or status.st_ino != inode:
                return True
        # For a missing file, access() costs half of a failing stat().
        return any(access(path, F_OK) for path in self._absent) if self._absent else False

    def _add(self, path: str) -> None:
        try:
            status = stat(path)
        except OSError:
            self._absent.append(path)
        else:
            self._present.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
