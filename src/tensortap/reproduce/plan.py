"""Reproduce a run: what it takes, what is missing, and running it in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tensortap.core.errors import RefusedError
from tensortap.metadata.machine import describe_hardware
from tensortap.metadata.redaction import Redactor, digest_key
from tensortap.reproduce import command as commands
from tensortap.reproduce import environment as environments
from tensortap.reproduce.code import (
    CodeRestorer,
    PathMapping,
    check_patch,
    check_paths,
    git,
    has_commit,
    is_unchanged,
    map_paths,
    missing_commit,
)
from tensortap.reproduce.recorded import (
    MissingRequirement,
    MissingRequirementError,
    RecordedRepository,
    RecordedRun,
    describe_exit,
)
from tensortap.reproduce.script import shell_script

Notify = Callable[[str], None]
RUN_LIST = "runs.txt"
_STOP_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class ReproductionOptions:
    """The user's options for a reproduction."""

    env: Literal["auto", "current", "fresh"] = "auto"
    repo: str | None = None  # a clone with the project's commit, if not the recorded one
    trust: bool = False
    links: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    answers: commands.ProvidedSecrets = field(default_factory=lambda: commands.ProvidedSecrets({}, {}))


@dataclass(frozen=True, slots=True)
class ReproductionResult:
    """What a reproduction produced."""

    into: Path
    exit_code: int
    run: Path | None  # the new run
    messages: tuple[str, ...]
    missing: tuple[MissingRequirement, ...]
    removal: str


class ReproductionPlan:
    """What reproducing the run at `path` takes; nothing is changed before `go`."""

    def __init__(self, path: str | os.PathLike[str], choices: ReproductionOptions) -> None:
        self.recorded = RecordedRun(path)
        self.choices = choices
        self.is_trusted = choices.trust or self.recorded.is_own
        self.refusal = _refusal_reason(self.recorded, trust=choices.trust)
        self.repositories = self.recorded.repositories
        self.secret_values, missing_secrets = commands.resolve_secrets(
            self.recorded, choices.answers, _redactor()
        )
        self.interpreter, self.differences = self._find_interpreter()
        if self.interpreter is not None:
            self.repositories = [
                repository for repository in self.repositories if not is_unchanged(repository)
            ]
        self.missing = [
            *commands.missing_program_text(self.recorded),
            *self._missing_code(),
            *self._missing_packages(),
            *missing_secrets,
        ]
        secret_notes = commands.notes_on_secrets(
            self.recorded, choices.answers, self.secret_values, _redactor()
        )
        self.notes = [*self._reasons_for_differences(), *secret_notes]

    @property
    def is_fresh(self) -> bool:
        """Whether a new environment must be created."""
        return self.interpreter is None

    def go(self, into: Path | None, notify: Notify) -> ReproductionResult:
        """Restore code and packages below `into`, and run the command; cleans up when interrupted."""
        self._check_permission(into)
        if any(requirement.is_blocking for requirement in self.missing):
            raise MissingRequirementError(*self.missing)
        folder, is_new = _prepare_folder(into, self.recorded.path.name)
        code = CodeRestorer(folder, {"project": self.choices.repo} if self.choices.repo else {})
        try:
            return self._restore_and_run(code, folder, notify)
        except BaseException:  # an interrupt too leaves nothing behind
            code.undo()
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def script(self, into: Path | None) -> str:
        folder = into or Path(tempfile.gettempdir()) / f"tensortap-again-{self.recorded.path.name}"
        python = (
            str(folder / "env" / "bin" / "python") if self.interpreter is None else self.interpreter.python
        )
        answers = self.choices.answers
        secrets = [secret for secret in commands.redacted_values(self.recorded) if not answers.omits(secret)]
        variables = {
            secret: value for secret, value in self.secret_values.items() if secret.kind == "variable"
        }
        command = self._build_command(folder, python, variables)
        requirements = environments.pip_requirements(self.recorded, {}) if self.is_fresh else None
        sources = {"project": self.choices.repo} if self.choices.repo else {}
        return shell_script(
            self.recorded, self.repositories, sources, folder, command, python, requirements, secrets
        )

    def _restore_and_run(self, code: CodeRestorer, folder: Path, notify: Notify) -> ReproductionResult:
        code.restore(self.recorded, self.repositories)
        root = self._project_root()
        for path in self.choices.links:
            code.link(path, root)
        for patch in self.choices.patches:
            self._apply_patch(patch, folder)
            code.messages.append(f"{patch} applied on top: this is no longer the code of the run")
        for line in code.messages:
            notify(line)
        python = self._provide_python(folder, notify)
        command = self._build_command(folder, python, self.secret_values)
        exit_code = _run_command(command, folder, self.recorded)
        run = find_started_run(
            folder / RUN_LIST, None if self.recorded.wrapped_program else self.recorded.number
        )
        missing = [
            requirement for requirement in (*self.missing, *code.missing) if not requirement.is_blocking
        ]
        return ReproductionResult(folder, exit_code, run, tuple(code.messages), tuple(missing), code.removal)

    def _build_command(
        self, folder: Path, python: str, secret_values: dict[commands.RedactedValue, str]
    ) -> commands.Command:
        """The command; for an existing interpreter, with restored editable packages first on PYTHONPATH."""
        mapping = self._path_mapping(folder)
        command = commands.build_command(self.recorded, python, mapping, folder, secret_values)
        packages = self._editable_packages() if self.interpreter else []
        package_folders = [mapping.translate(package.folder) for package in packages]
        import_paths = [
            os.path.join(package_folder, "src") for package_folder in package_folders
        ] + package_folders
        python_path = os.pathsep.join([*import_paths, *filter(None, [command.variables.get("PYTHONPATH")])])
        return (
            command
            if not import_paths
            else replace(command, variables=command.variables | {"PYTHONPATH": python_path})
        )

    def _editable_packages(self) -> list[RecordedRepository]:
        return [repository for repository in self.repositories if repository.folder]

    def _apply_patch(self, patch: str, folder: Path) -> None:
        content = Path(patch).read_bytes()
        check_patch(content, Path(patch), trust=self.choices.trust)
        git(folder / "code", "apply", "--binary", "--whitespace=nowarn", "-", stdin=content)

    def _provide_python(self, folder: Path, notify: Notify) -> str:
        if self.interpreter is not None:
            difference = f", though {self.differences.words()}" if self.differences else " as recorded"
            notify(f"packages: those of {self.interpreter.python}{difference}")
            return self.interpreter.python
        mapping = self._path_mapping(folder)
        editable = {
            package.label.removeprefix("package "): mapping.translate(package.folder)
            for package in self._editable_packages()
        }
        return environments.make_environment(self.recorded, folder, editable, notify)

    def _find_interpreter(self) -> tuple[environments.Interpreter | None, environments.PackageDifferences]:
        """An interpreter with the packages of the run, or None and how those of the current one differ."""
        current = environments.current_interpreter()
        differences = environments.compare_packages(self.recorded, current)
        if self.choices.env == "current" or (self.choices.env == "auto" and not differences):
            return current, differences
        recorded = self.recorded.executable
        if self.choices.env == "auto" and self.is_trusted and recorded not in ("", current.python):
            candidate = environments.query_interpreter(recorded)
            if candidate is not None and not environments.compare_packages(self.recorded, candidate):
                return candidate, environments.PackageDifferences()
        return None, differences

    def _missing_code(self) -> list[MissingRequirement]:
        return [
            missing_commit(repository)
            for repository in self.repositories
            if repository.commit and repository.bundle is None and not repository.remotes
            if not any(
                has_commit(folder, repository.commit) for folder in (self.choices.repo or "", repository.root)
            )
        ]

    def _missing_packages(self) -> list[MissingRequirement]:
        version = self.recorded.python_version
        is_available = not self.is_fresh or shutil.which("uv") or environments.find_python(version)
        missing = [] if is_available else [environments.missing_python(version)]
        if self.is_fresh and not self.recorded.distributions:
            remedy = "its Python did not tell them; --env current takes those of the one at hand"
            missing.append(MissingRequirement("the packages of the run", remedy))
        return missing

    def _reasons_for_differences(self) -> list[str]:
        """Reasons why bitwise equal values cannot be expected."""
        recorded_hardware, current_hardware = self.recorded.environment.get("hardware"), describe_hardware()
        notes = [
            f"{key} was {recorded_hardware[key]!r} and is {current_hardware[key]!r}: "
            "bitwise equality is not expected"
            for key in ("cpu", "gpus")
            if isinstance(recorded_hardware, dict)
            and key in recorded_hardware
            and recorded_hardware[key] != current_hardware[key]
        ]
        code = self.recorded.exit_code
        exit_description = self.recorded.outcome.get("error") or (describe_exit(code) if code else "")
        notes += (
            [f"the program ended with {exit_description}, and is expected to do so again"]
            if exit_description
            else []
        )
        notes += ["how the program ended before is not known"] if code is None else []
        if self.recorded.environment and "PYTHONHASHSEED" not in self.recorded.variables:
            notes.append("PYTHONHASHSEED was not set: the order of sets of text may be another")
        return notes

    def _check_permission(self, into: Path | None) -> None:
        if self.refusal:
            raise RefusedError(self.refusal)
        if not self.is_trusted:
            raise RefusedError(
                f"{self.recorded.path} was made by another user, and its command is not run; "
                "read the plan, and give --trust if you want it"
            )
        folder = Path(os.path.realpath(into)) if into is not None else None
        for root in filter(None, (repository.root for repository in self.recorded.repositories)):
            if folder is not None and folder.is_relative_to(os.path.realpath(root)):
                raise RefusedError(f"--into {into} lies in {root}, which is not touched; give another folder")

    def _project_root(self) -> str:
        project_roots = [
            repository.root for repository in self.recorded.repositories if repository.label == "project"
        ]
        return project_roots[0] if project_roots else str(self.recorded.sources.get("root", ""))

    def _path_mapping(self, folder: Path) -> PathMapping:
        return map_paths(self.repositories, self.recorded, folder)


def find_started_run(run_list: Path, number: int | None) -> Path | None:
    """The run with that number, of the first process that has one; with None the very first, which is that of
    `tensortap run`."""
    text = run_list.read_text(encoding="utf-8", errors="surrogateescape") if run_list.exists() else ""
    runs = [line.split("\t", 2) for line in text.splitlines()]
    return next(
        (Path(folder) for run_number, _, folder in runs if number is None or int(run_number) == number), None
    )


def _run_command(command: commands.Command, folder: Path, recorded: RecordedRun) -> int:
    """Run the program and return its exit code; its output goes to stderr, apart from our own."""
    variables = command.variables | {
        "TENSORTAP_PARENT": str(recorded.path),
        "TENSORTAP_RUN_LIST": str(folder / RUN_LIST),
    }
    os.makedirs(command.folder, exist_ok=True)
    sys.stderr.flush()
    try:
        child = subprocess.Popen(
            command.words, cwd=command.folder, env=variables, stdout=2, umask=command.umask
        )
    except OSError as error:
        raise MissingRequirementError(
            MissingRequirement(command.words[0], f"cannot be started: {error.strerror}")
        ) from None
    try:
        return child.wait()
    except BaseException:  # Ctrl-C: the program must not outlive us
        _stop(child)
        raise


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Wait for the program, which the terminal has interrupted too; then send SIGTERM, then SIGKILL."""
    for signal_number in (0, signal.SIGTERM, signal.SIGKILL):
        child.send_signal(signal_number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_TIMEOUT)
            return


def _prepare_folder(into: Path | None, name: str) -> tuple[Path, bool]:
    if into is None:
        return Path(tempfile.mkdtemp(prefix=f"tensortap-again-{name}-")), True
    folder = into.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--into {folder} is not empty; give a new folder")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    return folder, is_new


def _refusal_reason(recorded: RecordedRun, *, trust: bool) -> str:
    """Why the files of the run are not restored; empty if all paths stay inside."""
    try:
        check_paths(recorded, trust=trust)
    except RefusedError as error:
        return str(error)
    return ""


def _redactor() -> Callable[[str], str]:
    return Redactor(digest_key).redact
