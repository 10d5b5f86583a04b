"""The recorded facts of how a run was made, untrusted: its files may be old, damaged or another user's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tensortap.core.errors import CorruptRunError, NoRunError
from tensortap.formats.run_layout import INTERNAL_FOLDER, nested_dict
from tensortap.metadata.source_archive import CODE_FOLDER, SOURCES_FILE

SCRIPT = "script"  # where a script is restored that does not lie in the project
_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """Something that a reproduction needs and does not have, and how to provide it."""

    what: str
    remedy: str
    is_blocking: bool = True  # the program is not started without it


class MissingRequirementError(Exception):
    """A step of the reproduction found that something it needs is missing."""

    def __init__(self, *missing: MissingRequirement) -> None:
        super().__init__("; ".join(f"{requirement.what}: {requirement.remedy}" for requirement in missing))
        self.missing = missing


@dataclass(frozen=True, slots=True)
class RecordedRepository:
    """A repository of the run, and its `target` below the new folder."""

    label: str
    root: str
    target: str
    commit: str | None = None
    tree: str | None = None
    patch: Path | None = None
    bundle: Path | None = None
    remotes: dict[str, str] = field(default_factory=dict)
    skipped: tuple[dict[str, Any], ...] = ()
    bundle_failure: str = ""  # why there is no bundle
    folder: str = ""  # of an editable package, where it is installed from


class RecordedRun:
    """The metadata of a run, as far as it was recorded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            raise NoRunError(f"{self.path} does not exist; give the folder of a run")
        if not (self.path / "runtime_info.json").is_file():
            raise NoRunError(
                f"{self.path} has no runtime_info.json, so nothing says how it was made; "
                "give the folder of a run that init(), capture(to=...) or tensortap run has made"
            )
        self.runtime = _read_object(self.path / "runtime_info.json")
        self.packages = _read_object(self.path / "packages.json")
        self.git_info = _read_object(self.path / "git_info.json")
        self.environment = _read_object(self.path / INTERNAL_FOLDER / "environment.json")
        self.outcome = _read_object(self.path / INTERNAL_FOLDER / "outcome.json")
        self._program = _read_object(self.path / INTERNAL_FOLDER / "program.json")

    @property
    def is_own(self) -> bool:
        """Whether all its files belong to the current user; otherwise its commands are not trusted."""
        own = self.path / INTERNAL_FOLDER
        paths = [self.path, *self.path.glob("*.json"), self.path / "project.patch", own, *own.glob("*.json")]
        paths += [own / CODE_FOLDER, *(own / CODE_FOLDER).glob("*")]
        return all(path.lstat().st_uid == os.getuid() for path in paths if os.path.lexists(path))

    @property
    def command(self) -> list[str]:
        """The interpreter, its options and the program's arguments."""
        words = self.environment.get("orig_argv")
        if not _is_str_list(words) or not words:
            command = nested_dict(self.runtime, "command")
            words = [command.get("executable"), *command.get("argv", [])]
        if not _is_str_list(words) or not words[0]:
            raise CorruptRunError(f"{self.path / 'runtime_info.json'} holds no command; nothing can be run")
        return [self.executable or words[0], *words[1:]]

    @property
    def wrapped_program(self) -> list[str]:
        """The command that `tensortap run` wrapped; empty when the program was started without it."""
        words = self._program.get("program")
        return list(words) if isinstance(words, list) and _is_str_list(words) else []

    @property
    def wrapper_options(self) -> list[str]:
        """The command-line options that `tensortap run` was given."""
        options = nested_dict(self._program, "options")
        repeated = [("--tap", options.get("patterns")), ("--when", options.get("when"))]
        words = [
            word for option, values in repeated for value in values or () for word in (option, str(value))
        ]
        single = [(option, options.get(option[2:])) for option in ("--every", "--first", "--keep")]
        return words + [
            word for option, value in single if value is not None for word in (option, str(value))
        ]

    @property
    def executable(self) -> str:
        return _str_or_empty(nested_dict(self.runtime, "command").get("executable"))

    @property
    def launchers(self) -> list[list[str]]:
        """The command lines of the launchers, innermost first."""
        launchers = nested_dict(self.environment, "launch").get("launchers")
        return [words for words in launchers if _is_str_list(words)] if isinstance(launchers, list) else []

    @property
    def working_directory(self) -> str:
        return _absolute_path(self.runtime.get("working_directory"))

    @property
    def variables(self) -> dict[str, str]:
        variables = _str_values(self.runtime.get("environment_variables"))
        return {name: value for name, value in variables.items() if name and not {"=", "\0"} & set(name)}

    @property
    def python_version(self) -> str:
        return _str_or_empty(self.packages.get("python_version"))

    @property
    def distributions(self) -> list[dict[str, Any]]:
        """Name, version and origin of each package."""
        detailed = self.environment.get("packages")
        if isinstance(detailed, list) and detailed:
            packages = [package for package in detailed if isinstance(package, dict)]
        else:
            versions = nested_dict(self.packages, "all_packages")
            packages = [{"name": name, "version": version} for name, version in versions.items()]
        for facts in packages:
            if not _PACKAGE.fullmatch(f"{facts.get('name')}=={facts.get('version')}"):
                raise CorruptRunError(
                    f"{self.path} names a package {facts.get('name')!r}, which cannot be one"
                )
        return packages

    @property
    def exit_code(self) -> int | None:
        """The exit code, None if unknown: negative for a signal, 1 for an uncaught exception."""
        code, signal_number = self.outcome.get("exit_code"), self.outcome.get("signal")
        if isinstance(signal_number, int):
            return -signal_number
        if isinstance(code, int) or not self.outcome:
            return code
        return 1 if self.outcome.get("error") else 0

    @property
    def number(self) -> int:
        """The position among the runs of its process."""
        number = self.environment.get("number")
        return number if isinstance(number, int) else 0

    @cached_property
    def sources(self) -> dict[str, Any]:
        """Facts about the archived source files, where there was no repository."""
        return _read_object(self.path / INTERNAL_FOLDER / CODE_FOLDER / "sources.json")

    @property
    def tar(self) -> Path | None:
        return self._code_file(SOURCES_FILE)

    @property
    def sources_target(self) -> str:
        """Where the archived sources are restored: beside the project if a repository holds that."""
        return SCRIPT if any(repository.label == "project" for repository in self.repositories) else "code"

    @cached_property
    def repositories(self) -> list[RecordedRepository]:
        """The project's repository first, then submodules and editable packages."""
        project = self._project_repository()
        others = self.environment.get("repositories")
        listed = [facts for facts in others if isinstance(facts, dict)] if isinstance(others, list) else []
        return ([project] if project else []) + [self._repository(facts) for facts in listed]

    def _project_repository(self) -> RecordedRepository | None:
        git, info = nested_dict(self.environment, "git"), nested_dict(self.git_info, "project_git_info")
        if not info:
            return None
        patch, bundle = self.path / "project.patch", nested_dict(git, "bundle")
        return RecordedRepository(
            "project",
            _absolute_path(git.get("root")) or self.working_directory,
            "code",
            self._object_id(info.get("commit_id")),
            self._object_id(git.get("tree")),
            patch if patch.is_file() else None,
            self._code_file(bundle.get("file")),
            _remote_urls(git.get("remotes")),
            _skipped_files(git),
            _str_or_empty(bundle.get("reason")),
        )

    def _repository(self, facts: dict[str, Any]) -> RecordedRepository:
        bundle = nested_dict(facts, "bundle")
        label, target = _label_and_target(facts)
        return RecordedRepository(
            label,
            _absolute_path(facts.get("root")),
            target,
            self._object_id(facts.get("commit")),
            self._object_id(facts.get("tree")),
            self._code_file(facts.get("patch")),
            self._code_file(bundle.get("file")),
            _remote_urls(facts.get("remotes")),
            _skipped_files(facts),
            _str_or_empty(bundle.get("reason")),
            _absolute_path(facts.get("folder")),
        )

    def _object_id(self, value: Any) -> str | None:
        """A validated id of a commit or tree; anything else could be an option to git."""
        if value and not (isinstance(value, str) and _OBJECT_ID.fullmatch(value)):
            raise CorruptRunError(f"{self.path} names {value!r} as a commit, which cannot be one")
        return value or None

    def _code_file(self, name: Any) -> Path | None:
        """The path of a file in the code folder; None for a name that leads elsewhere."""
        if not isinstance(name, str) or not name or name != os.path.basename(name):
            return None
        path = self.path / INTERNAL_FOLDER / CODE_FOLDER / name
        return path if path.is_file() and not path.is_symlink() else None


def describe_exit(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(f"{path} is not whole ({error}); a copy of the run may have it") from None
    if not isinstance(content, dict):
        raise CorruptRunError(f"{path} holds {type(content).__name__} instead of an object")
    return content


def _label_and_target(facts: dict[str, Any]) -> tuple[str, str]:
    """The label of a repository beside the project's, and where it is restored."""
    path, name = _str_or_empty(facts.get("path")), _str_or_empty(facts.get("package"))
    if facts.get("kind") == "package":
        return f"package {name}", os.path.join("packages", name)
    if facts.get("kind") == "script":
        return f"script {path}", SCRIPT
    return f"submodule {path}", os.path.join("code", path)


def _str_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _str_values(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def _remote_urls(value: Any) -> dict[str, str]:
    return {name: url for name, url in _str_values(value).items() if not url.startswith("-")}


def _absolute_path(value: Any) -> str:
    return value if isinstance(value, str) and os.path.isabs(value) and "\0" not in value else ""


def _is_str_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _skipped_files(facts: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    skipped = facts.get("skipped")
    entries = skipped if isinstance(skipped, list) else []
    return tuple(entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str))
