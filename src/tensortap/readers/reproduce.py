"""Run a run again: what it takes, what is missing, and doing it in a folder of its own."""

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
from tensortap.metadata.digest_key import digest_key
from tensortap.metadata.machine import hardware
from tensortap.metadata.redact import Redactor
from tensortap.readers import reproduce_command as commands
from tensortap.readers import reproduce_environment as environments
from tensortap.readers.reproduce_code import Restored, commit_lack, git, has_commit, is_unchanged
from tensortap.readers.reproduce_paths import Moves, check_patch, check_paths, moves
from tensortap.readers.reproduce_recorded import Lack, LackingError, Part, Recorded, ending
from tensortap.readers.reproduce_script import script

Tell = Callable[[str], None]
RUN_LIST = "runs.txt"
_PATIENCE = 5.0  # seconds for a program that was asked to stop


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user decides about a reproduction."""

    env: Literal["auto", "current", "fresh"] = "auto"
    repo: str | None = None  # where the project's commit is, if not where it was
    trust: bool = False
    links: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    answers: commands.Answers = field(default_factory=lambda: commands.Answers({}, {}))


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    into: Path
    exit_code: int
    run: Path | None  # the new run
    told: tuple[str, ...]
    lacks: tuple[Lack, ...]
    removal: str


class Plan:
    """What running `path` again takes; nothing is changed before `go`."""

    def __init__(self, path: str | os.PathLike[str], choices: Choices) -> None:
        self.recorded = Recorded(path)
        self.choices = choices
        self.is_trusted = choices.trust or self.recorded.is_own
        self.refusal = _refusal(self.recorded, trust=choices.trust)
        self.parts = self.recorded.parts
        self.known, hidden = commands.answered(self.recorded, choices.answers, _hide())
        self.interpreter, self.differences = self._interpreter()
        if self.interpreter is not None:
            self.parts = [part for part in self.parts if not is_unchanged(part)]
        self.lacks = [
            *commands.text_lacks(self.recorded),
            *self._code_lacks(),
            *self._python_lacks(),
            *hidden,
        ]
        answers = commands.answer_notes(self.recorded, choices.answers, self.known, _hide())
        self.notes = [*self._notes(), *answers]

    @property
    def is_fresh(self) -> bool:
        """Whether an environment has to be made."""
        return self.interpreter is None

    def go(self, into: Path | None, tell: Tell) -> Done:
        """Restore code and packages below `into`, and run the command; an interruption leaves nothing."""
        self._check_permission(into)
        if any(lack.stops for lack in self.lacks):
            raise LackingError(*self.lacks)
        place, is_ours = _place(into, self.recorded.path.name)
        code = Restored(place, {"project": self.choices.repo} if self.choices.repo else {})
        try:
            return self._done(code, place, tell)
        except BaseException:
            code.undo()
            if is_ours:
                shutil.rmtree(place, ignore_errors=True)
            raise

    def script(self, into: Path | None) -> str:
        place = into or Path(tempfile.gettempdir()) / f"tensortap-again-{self.recorded.path.name}"
        python = (
            str(place / "env" / "bin" / "python") if self.interpreter is None else self.interpreter.python
        )
        answers = self.choices.answers
        hidden = [one for one in commands.secrets(self.recorded) if not answers.leaves_out(one)]
        known = {one: value for one, value in self.known.items() if one.kind == "variable"}
        command = self._command(place, python, known)
        wanted = environments.requirements(self.recorded, {}) if self.is_fresh else None
        given = {"project": self.choices.repo} if self.choices.repo else {}
        return script(self.recorded, self.parts, given, place, command, python, wanted, hidden)

    def _done(self, code: Restored, place: Path, tell: Tell) -> Done:
        code.restore(self.recorded, self.parts)
        root = self._root()
        for path in self.choices.links:
            code.link(path, root)
        for patch in self.choices.patches:
            self._apply(patch, place)
            code.told.append(f"{patch} applied on top: this is no longer the code of the run")
        for line in code.told:
            tell(line)
        python = self._python(place, tell)
        command = self._command(place, python, self.known)
        exit_code = _run(command, place, self.recorded)
        run = begun(place / RUN_LIST, None if self.recorded.watched else self.recorded.number)
        lacks = [lack for lack in (*self.lacks, *code.lacks) if not lack.stops]
        return Done(place, exit_code, run, tuple(code.told), tuple(lacks), code.removal)

    def _command(self, place: Path, python: str, known: dict[commands.Secret, str]) -> commands.Command:
        """With restored packages in front, where the interpreter still knows where they were."""
        moved = self._moves(place)
        command = commands.build(self.recorded, python, moved, place, known)
        folders = [moved.path(part.folder) for part in self._packages()] if self.interpreter else []
        found = [os.path.join(folder, "src") for folder in folders] + folders
        path = os.pathsep.join([*found, *filter(None, [command.variables.get("PYTHONPATH")])])
        return command if not found else replace(command, variables=command.variables | {"PYTHONPATH": path})

    def _packages(self) -> list[Part]:
        return [part for part in self.parts if part.folder]

    def _apply(self, patch: str, place: Path) -> None:
        content = Path(patch).read_bytes()
        check_patch(content, Path(patch), trust=self.choices.trust)
        git(place / "code", "apply", "--binary", "--whitespace=nowarn", "-", stdin=content)

    def _python(self, place: Path, tell: Tell) -> str:
        if self.interpreter is not None:
            apart = f", though {self.differences.words()}" if self.differences else " as recorded"
            tell(f"packages: those of {self.interpreter.python}{apart}")
            return self.interpreter.python
        moved = self._moves(place)
        editable = {p.label.removeprefix("package "): moved.path(p.folder) for p in self._packages()}
        return environments.make_environment(self.recorded, place, editable, tell)

    def _interpreter(self) -> tuple[environments.Interpreter | None, environments.Differences]:
        """The Python that has the packages of the run, if there is one; and what the present one lacks."""
        here = environments.present()
        apart = environments.differences(self.recorded, here)
        if self.choices.env == "current" or (self.choices.env == "auto" and not apart):
            return here, apart
        recorded = self.recorded.executable
        if self.choices.env == "auto" and self.is_trusted and recorded not in ("", here.python):
            other = environments.ask(recorded)
            if other is not None and not environments.differences(self.recorded, other):
                return other, environments.Differences()
        return None, apart

    def _code_lacks(self) -> list[Lack]:
        return [
            commit_lack(part)
            for part in self.parts
            if part.commit and part.bundle is None and not part.remotes
            if not any(has_commit(place, part.commit) for place in (self.choices.repo or "", part.root))
        ]

    def _python_lacks(self) -> list[Lack]:
        version = self.recorded.python_version
        is_there = not self.is_fresh or shutil.which("uv") or environments.find_python(version)
        lacks = [] if is_there else [environments.python_lack(version)]
        if self.is_fresh and not self.recorded.distributions:
            remedy = "its Python did not tell them; --env current takes those of the one at hand"
            lacks.append(Lack("the packages of the run", remedy))
        return lacks

    def _notes(self) -> list[str]:
        """What keeps the numbers from being expected to be the same."""
        was, now = self.recorded.environment.get("hardware"), hardware()
        notes = [
            f"{key} was {was[key]!r} and is {now[key]!r}: bitwise equality is not expected"
            for key in ("cpu", "gpus")
            if isinstance(was, dict) and key in was and was[key] != now[key]
        ]
        code = self.recorded.exit_code
        ended = self.recorded.outcome.get("error") or (ending(code) if code else "")
        notes += [f"the program ended with {ended}, and is expected to do so again"] if ended else []
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
        place = Path(os.path.realpath(into)) if into is not None else None
        for root in filter(None, (part.root for part in self.recorded.parts)):
            if place is not None and place.is_relative_to(os.path.realpath(root)):
                raise RefusedError(f"--into {into} lies in {root}, which is not touched; give another folder")

    def _root(self) -> str:
        project = [part.root for part in self.recorded.parts if part.label == "project"]
        return project[0] if project else str(self.recorded.sources.get("root", ""))

    def _moves(self, place: Path) -> Moves:
        return moves(self.parts, self.recorded, place)


def begun(listed: Path, number: int | None) -> Path | None:
    """The run of that number that a program began, in the first process that has one; None asks for the
    very first, which is that of `tensortap run`."""
    text = listed.read_text(encoding="utf-8", errors="surrogateescape") if listed.exists() else ""
    runs = [line.split("\t", 2) for line in text.splitlines()]
    return next((Path(folder) for told, _, folder in runs if number is None or int(told) == number), None)


def _run(command: commands.Command, place: Path, recorded: Recorded) -> int:
    """The program's exit code; what it prints goes to stderr, where it is not taken for our answer."""
    variables = command.variables | {
        "TENSORTAP_PARENT": str(recorded.path),
        "TENSORTAP_RUN_LIST": str(place / RUN_LIST),
    }
    os.makedirs(command.folder, exist_ok=True)
    sys.stderr.flush()
    try:
        child = subprocess.Popen(
            command.words, cwd=command.folder, env=variables, stdout=2, umask=command.umask
        )
    except OSError as error:
        raise LackingError(Lack(command.words[0], f"cannot be started: {error.strerror}")) from None
    try:
        return child.wait()
    except BaseException:
        _stop(child)
        raise


def _stop(child: subprocess.Popen[bytes]) -> None:
    """A terminal has interrupted the program too; one that does not end is asked, and then made to."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE)
            return


def _place(into: Path | None, name: str) -> tuple[Path, bool]:
    if into is None:
        return Path(tempfile.mkdtemp(prefix=f"tensortap-again-{name}-")), True
    place = into.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"--into {place} is not empty; give a new folder")
    is_new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    return place, is_new


def _refusal(recorded: Recorded, *, trust: bool) -> str:
    """Why its files are not restored; nothing where they stay inside."""
    try:
        check_paths(recorded, trust=trust)
    except RefusedError as error:
        return str(error)
    return ""


def _hide() -> Callable[[str], str]:
    return Redactor(digest_key).hide
