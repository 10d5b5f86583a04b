"""What a run says about how it was made, read with care: its files may be old, damaged or a stranger's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tensortap.core.errors import CorruptRunError, NoRunError
from tensortap.formats.run_layout import OWN
from tensortap.metadata.sources import CODE, SOURCES

SCRIPT = "script"  # where a script is restored that does not lie in the project
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a reproduction wants and does not have."""

    what: str
    remedy: str
    stops: bool = True  # nothing is started without it


class LackingError(Exception):
    """A step found out that something is not to be had."""

    def __init__(self, *lacks: Lack) -> None:
        super().__init__("; ".join(f"{lack.what}: {lack.remedy}" for lack in lacks))
        self.lacks = lacks


@dataclass(frozen=True, slots=True)
class Part:
    """One repository of the run, and where it is restored to, below the new folder."""

    label: str
    root: str
    target: str
    commit: str | None = None
    tree: str | None = None
    patch: Path | None = None
    bundle: Path | None = None
    remotes: dict[str, str] = field(default_factory=dict)
    skipped: tuple[dict[str, Any], ...] = ()
    unkept: str = ""  # why there is no bundle
    folder: str = ""  # of an editable package, where it is installed from


class Recorded:
    """The facts of one run, whatever of them there is."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            raise NoRunError(f"{self.path} does not exist; give the folder of a run")
        if not (self.path / "runtime_info.json").is_file():
            raise NoRunError(
                f"{self.path} has no runtime_info.json, so nothing says how it was made; "
                "give the folder of a run that init(), capture(to=...) or tensortap run has made"
            )
        self.runtime = _object(self.path / "runtime_info.json")
        self.packages = _object(self.path / "packages.json")
        self.git_info = _object(self.path / "git_info.json")
        self.environment = _object(self.path / OWN / "environment.json")
        self.outcome = _object(self.path / OWN / "outcome.json")
        self._program = _object(self.path / OWN / "program.json")

    @property
    def is_own(self) -> bool:
        """Whether the current user made it; a stranger's names commands that nobody here has chosen."""
        own = self.path / OWN
        places = [self.path, *self.path.glob("*.json"), self.path / "project.patch", own, *own.glob("*.json")]
        places += [own / CODE, *(own / CODE).glob("*")]
        return all(place.lstat().st_uid == os.getuid() for place in places if os.path.lexists(place))

    @property
    def command(self) -> list[str]:
        """The interpreter, its options and the program's arguments."""
        words = self.environment.get("orig_argv")
        if not _is_texts(words) or not words:
            told = _dict(self.runtime, "command")
            words = [told.get("executable"), *told.get("argv", [])]
        if not _is_texts(words) or not words[0]:
            raise CorruptRunError(f"{self.path / 'runtime_info.json'} holds no command; nothing can be run")
        return [self.executable or words[0], *words[1:]]

    @property
    def watched(self) -> list[str]:
        """The program that `tensortap run` had started; empty when it was started without."""
        words = self._program.get("program")
        return list(words) if isinstance(words, list) and _is_texts(words) else []

    @property
    def watching(self) -> list[str]:
        """What `tensortap run` was asked for, as its options."""
        asked = _dict(self._program, "options")
        repeated = [("--tap", asked.get("patterns")), ("--when", asked.get("when"))]
        words = [word for option, given in repeated for one in given or () for word in (option, str(one))]
        single = [(option, asked.get(option[2:])) for option in ("--every", "--first", "--keep")]
        return words + [word for option, one in single if one is not None for word in (option, str(one))]

    @property
    def executable(self) -> str:
        return _text(_dict(self.runtime, "command").get("executable"))

    @property
    def launchers(self) -> list[list[str]]:
        """What had started the program, the nearest first."""
        found = _dict(self.environment, "launch").get("launchers")
        return [words for words in found if _is_texts(words)] if isinstance(found, list) else []

    @property
    def working_directory(self) -> str:
        return _place(self.runtime.get("working_directory"))

    @property
    def variables(self) -> dict[str, str]:
        found = _texts(self.runtime.get("environment_variables"))
        return {name: text for name, text in found.items() if name and not {"=", "\0"} & set(name)}

    @property
    def python_version(self) -> str:
        return _text(self.packages.get("python_version"))

    @property
    def distributions(self) -> list[dict[str, Any]]:
        """Name, version and origin of each package."""
        detailed = self.environment.get("packages")
        if isinstance(detailed, list) and detailed:
            found = [one for one in detailed if isinstance(one, dict)]
        else:
            found = [{"name": n, "version": v} for n, v in _dict(self.packages, "all_packages").items()]
        for one in found:
            if not _PACKAGE.fullmatch(f"{one.get('name')}=={one.get('version')}"):
                raise CorruptRunError(f"{self.path} names a package {one.get('name')!r}, which cannot be one")
        return found

    @property
    def exit_code(self) -> int | None:
        """How the program ended, as far as is known: below zero by a signal, a printed exception means 1."""
        told, number = self.outcome.get("exit_code"), self.outcome.get("signal")
        if isinstance(number, int):
            return -number
        if isinstance(told, int) or not self.outcome:
            return told
        return 1 if self.outcome.get("error") else 0

    @property
    def number(self) -> int:
        """Which of its process's runs it is."""
        found = self.environment.get("number")
        return found if isinstance(found, int) else 0

    @cached_property
    def sources(self) -> dict[str, Any]:
        """What is known of the kept files where there was no repository."""
        return _object(self.path / OWN / CODE / "sources.json")

    @property
    def tar(self) -> Path | None:
        return self._kept(SOURCES)

    @property
    def sources_target(self) -> str:
        """Where they are restored: beside the project, if a repository has that."""
        return SCRIPT if any(part.label == "project" for part in self.parts) else "code"

    @cached_property
    def parts(self) -> list[Part]:
        """The project's repository first, then submodules and editable packages."""
        project = self._project()
        others = self.environment.get("repositories")
        listed = [one for one in others if isinstance(one, dict)] if isinstance(others, list) else []
        return ([project] if project else []) + [self._part(one) for one in listed]

    def _project(self) -> Part | None:
        git, info = _dict(self.environment, "git"), _dict(self.git_info, "project_git_info")
        if not info:
            return None
        patch, bundle = self.path / "project.patch", _dict(git, "bundle")
        return Part(
            "project",
            _place(git.get("root")) or self.working_directory,
            "code",
            self._id(info.get("commit_id")),
            self._id(git.get("tree")),
            patch if patch.is_file() else None,
            self._kept(bundle.get("file")),
            _addresses(git.get("remotes")),
            _skipped(git),
            _text(bundle.get("reason")),
        )

    def _part(self, facts: dict[str, Any]) -> Part:
        bundle = _dict(facts, "bundle")
        label, target = _kind(facts)
        return Part(
            label,
            _place(facts.get("root")),
            target,
            self._id(facts.get("commit")),
            self._id(facts.get("tree")),
            self._kept(facts.get("patch")),
            self._kept(bundle.get("file")),
            _addresses(facts.get("remotes")),
            _skipped(facts),
            _text(bundle.get("reason")),
            _place(facts.get("folder")),
        )

    def _id(self, found: Any) -> str | None:
        """Of a commit or a tree; anything else would be an option to git."""
        if found and not (isinstance(found, str) and _ID.fullmatch(found)):
            raise CorruptRunError(f"{self.path} names {found!r} as a commit, which cannot be one")
        return found or None

    def _kept(self, name: Any) -> Path | None:
        """A file beside the facts; a name that leads elsewhere is none."""
        if not isinstance(name, str) or not name or name != os.path.basename(name):
            return None
        path = self.path / OWN / CODE / name
        return path if path.is_file() and not path.is_symlink() else None


def ending(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(f"{path} is not whole ({error}); a copy of the run may have it") from None
    if not isinstance(found, dict):
        raise CorruptRunError(f"{path} holds {type(found).__name__} instead of an object")
    return found


def _kind(facts: dict[str, Any]) -> tuple[str, str]:
    """What a repository beside the project's is called, and where it is restored."""
    path, name = _text(facts.get("path")), _text(facts.get("package"))
    if facts.get("kind") == "package":
        return f"package {name}", os.path.join("packages", name)
    if facts.get("kind") == "script":
        return f"script {path}", SCRIPT
    return f"submodule {path}", os.path.join("code", path)


def _dict(facts: dict[str, Any], key: str) -> dict[str, Any]:
    found = facts.get(key)
    return found if isinstance(found, dict) else {}


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def _texts(found: Any) -> dict[str, str]:
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def _addresses(found: Any) -> dict[str, str]:
    return {name: url for name, url in _texts(found).items() if not url.startswith("-")}


def _place(found: Any) -> str:
    return found if isinstance(found, str) and os.path.isabs(found) and "\0" not in found else ""


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(word, str) for word in found)


def _skipped(facts: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    found = facts.get("skipped")
    listed = found if isinstance(found, list) else []
    return tuple(one for one in listed if isinstance(one, dict) and isinstance(one.get("path"), str))
