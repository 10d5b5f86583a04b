"""The command of a run for its reproduction: arguments, variables, folder, and the secrets it needs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensortap.core.launchers import LAUNCHER_COMMANDS, is_launcher_variable
from tensortap.metadata.process import is_launcher
from tensortap.metadata.redaction import NOT_RECORDED
from tensortap.reproduce.code import PathMapping
from tensortap.reproduce.recorded import MissingRequirement, MissingRequirementError, RecordedRun

_REDACTED = re.compile(r"<redacted:[0-9a-f]{16}>")
# Variables of the machine and session, not of the run: taken from the current environment.
_SESSION_VARIABLES = frozenset((
    "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "TMPDIR", "TMP", "TEMP", "DISPLAY", "HOSTNAME",
    "WAYLAND_DISPLAY", "TMUX", "TMUX_PANE", "STY", "PWD", "OLDPWD", "SHLVL", "_", "LS_COLORS", "MAIL",
    "VIRTUAL_ENV_PROMPT", "PS1", "COLUMNS", "LINES",
))  # fmt: skip
_SESSION_PREFIXES = ("SSH_", "XDG_", "DBUS_", "VSCODE_", "PYTEST_", "BASH_FUNC_", "_TENSORTAP_")
_REPLACED_VARIABLES = ("TENSORTAP_PARENT", "TENSORTAP_RUN_LIST", "VIRTUAL_ENV")
_INTERACTIVE_PROGRAMS = dict.fromkeys(
    ("ipython", "ipython3", "IPython", "ipykernel", "ipykernel_launcher", "ipykernel_launcher.py"),
    "it was typed into a notebook or shell",
)
# The current tensortap records, whichever Python the program runs on.
_TENSORTAP_RUN = (
    sys.executable,
    "-c",
    "from tensortap.cli.main import main; raise SystemExit(main())",
    "run",
)


@dataclass(frozen=True, slots=True)
class RedactedValue:
    """A value that was redacted when the run was written."""

    kind: Literal["variable", "argument"]
    name: str  # of the variable; of the option, else `#3` for the third word of the command
    hidden: str

    @property
    def option(self) -> str:
        return f"--set-{'env' if self.kind == 'variable' else 'arg'} {self.name}=VALUE"


@dataclass(frozen=True, slots=True)
class Command:
    """The process to start: arguments, working directory, environment and umask."""

    words: list[str]
    folder: str
    variables: dict[str, str]
    umask: int = -1


AskForSecret = Callable[[RedactedValue], str | None]


@dataclass(frozen=True, slots=True)
class ProvidedSecrets:
    """The values that the user provides for redacted ones."""

    variables: Mapping[str, str]
    arguments: Mapping[str, str]
    unset: frozenset[str] = frozenset()
    ask: AskForSecret = lambda secret: None

    def of(self, secret: RedactedValue, hide: Callable[[str], str]) -> str | None:
        """The value as provided, as found by digest in the current environment, or as prompted for."""
        provided = self.variables if secret.kind == "variable" else self.arguments
        if secret.name in provided:
            return provided[secret.name]
        matching = (value for value in os.environ.values() if value and hide(value) == secret.hidden)
        current = next(matching, None)
        return current if current is not None or self.omits(secret) else self.ask(secret)

    def omits(self, secret: RedactedValue) -> bool:
        return secret.kind == "variable" and bool({secret.name, "all"} & self.unset)


def redacted_values(recorded: RecordedRun) -> list[RedactedValue]:
    """The redacted values of the run: variables by name, arguments by option or position."""
    variables = [
        RedactedValue("variable", name, value)
        for name, value in recorded.variables.items()
        if _REDACTED.fullmatch(value)
    ]
    return [*variables, *_redacted_arguments(outermost_command(recorded))]


def _redacted_arguments(words: list[str]) -> Iterator[RedactedValue]:
    for position, word in enumerate(words):
        for hidden in _REDACTED.findall(word):
            previous = words[position - 1] if position else ""
            option, equals, _ = word.partition("=")
            name = option if equals and "<" not in option else previous if previous.startswith("-") else ""
            yield RedactedValue("argument", name or f"#{position}", hidden)


def outermost_command(recorded: RecordedRun) -> list[str]:
    """The outermost command, which starts all processes of the run."""
    if recorded.wrapped_program:
        return recorded.wrapped_program
    outer = [words for words in recorded.launchers if is_launcher(words)]
    return outer[-1] if outer else recorded.command


def missing_program_text(recorded: RecordedRun) -> list[MissingRequirement]:
    """Nonempty for a program that was neither a file nor in its command line, so it cannot be repeated."""
    words = outermost_command(recorded)
    reason = (
        _reason_for_no_text(words[1:])
        if _is_python(words[0])
        else _INTERACTIVE_PROGRAMS.get(os.path.basename(words[0]), "")
    )
    remedy = f"{reason} and was not kept; save it as a file, and run that"
    return [MissingRequirement("the text of the program", remedy)] if reason else []


def _reason_for_no_text(words: list[str]) -> str:
    remaining = iter(words)
    for word in remaining:
        if word in ("-W", "-X"):
            next(remaining, None)
        elif word == "-m":
            return _INTERACTIVE_PROGRAMS.get(next(remaining, ""), "")
        elif word[:2] in ("-c", "-m") or not word.startswith("-"):
            return (
                _INTERACTIVE_PROGRAMS.get(os.path.basename(word), "")
                if not any(map(_is_script, remaining))
                else ""
            )
        elif word == "-":
            break
    return "it came from standard input"


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".ipynb"))


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def resolve_secrets(
    recorded: RecordedRun, answers: ProvidedSecrets, hide: Callable[[str], str]
) -> tuple[dict[RedactedValue, str], list[MissingRequirement]]:
    """The values of the redacted ones that can be resolved, and those that are missing."""
    values, missing = {}, []
    for secret in redacted_values(recorded):
        value = answers.of(secret, hide)
        if value is not None:
            values[secret] = value
        elif not answers.omits(secret):
            alternative = f", or --unset {secret.name} runs without it" if secret.kind == "variable" else ""
            missing.append(
                MissingRequirement(
                    f"{secret.kind} {secret.name}, which was hidden", f"{secret.option}{alternative}"
                )
            )
    return values, missing


def notes_on_secrets(
    recorded: RecordedRun,
    answers: ProvidedSecrets,
    secret_values: Mapping[RedactedValue, str],
    hide: Callable[[str], str],
) -> list[str]:
    """Notes on provided values that differ from the recorded ones by digest, or were not needed."""
    notes = [
        f"the value given for {secret.kind} {secret.name} is another than the run had, by its digest, "
        "or the run was made under another key, as that of another user"
        for secret, value in secret_values.items()
        if hide(value) != secret.hidden
    ]
    redacted = {(secret.kind, secret.name) for secret in redacted_values(recorded)}
    provided = [("variable", name) for name in answers.variables] + [
        ("argument", name) for name in answers.arguments
    ]
    unused = [f"{kind} {name} was not hidden, so the recorded one is used" for kind, name in provided
               if (kind, name) not in redacted]  # fmt: skip
    return notes + unused


def build_command(
    recorded: RecordedRun,
    python: str,
    mapping: PathMapping,
    into: Path,
    secret_values: dict[RedactedValue, str],
) -> Command:
    """The recorded command with translated paths, run by that Python."""
    words = outermost_command(recorded)
    launcher = LAUNCHER_COMMANDS.get(os.path.basename(words[0]))
    if launcher is not None and not launcher.can_rerun:
        raise MissingRequirementError(
            MissingRequirement(f"a launch by {words[0]}", f"start it yourself: {' '.join(words)}")
        )
    folder = mapping.translate(recorded.working_directory)
    if folder == recorded.working_directory:  # outside the code: its outputs must not land in the old folder
        folder = str(into / "work")
    value_of = {secret.hidden: value for secret, value in secret_values.items()}
    filled_words = [
        _REDACTED.sub(lambda match: value_of.get(match.group(), match.group()), word) for word in words
    ]
    command = [
        _new_program(filled_words, recorded, python),
        *_new_arguments(filled_words, recorded, python, mapping),
    ]
    wrapper = [*_TENSORTAP_RUN, *recorded.wrapper_options, "--to", str(into / "runs"), "--quiet", "--"]
    return Command(
        [*wrapper, *command] if recorded.wrapped_program else command,
        folder,
        _new_variables(recorded, python, mapping, secret_values, is_launched=bool(recorded.launchers)),
        _recorded_umask(recorded),
    )


def _new_program(words: list[str], recorded: RecordedRun, python: str) -> str:
    is_python = words[0] == recorded.executable or _is_python(words[0])
    return python if is_python else _new_console_script(words[0], recorded, python)


def _new_arguments(
    words: list[str], recorded: RecordedRun, python: str, mapping: PathMapping
) -> Iterator[str]:
    for word in words[1:]:
        translated = mapping.translate_argument(word, recorded.working_directory)
        yield _new_console_script(word, recorded, python) if translated == word else translated


def _new_console_script(word: str, recorded: RecordedRun, python: str) -> str:
    """The console script beside the new interpreter, for one beside the recorded interpreter."""
    if not recorded.executable or os.path.dirname(word) != os.path.dirname(recorded.executable):
        return word
    beside = os.path.join(os.path.dirname(python), os.path.basename(word))
    return beside if os.path.exists(beside) else word


def _new_variables(
    recorded: RecordedRun,
    python: str,
    mapping: PathMapping,
    secret_values: dict[RedactedValue, str],
    *,
    is_launched: bool,
) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if is_session_variable(name)}
    for name, value in recorded.variables.items():
        if (
            is_session_variable(name)
            or (is_launched and is_launcher_variable(name))
            or name in _REPLACED_VARIABLES
        ):
            continue
        if value == NOT_RECORDED:
            variables.update({name: os.environ[name]} if name in os.environ else {})
        elif not _REDACTED.fullmatch(value):
            variables[name] = mapping.translate_list(value)
    variables |= {secret.name: value for secret, value in secret_values.items() if secret.kind == "variable"}
    return variables | _interpreter_first(variables, python, recorded)


def _interpreter_first(variables: Mapping[str, str], python: str, recorded: RecordedRun) -> dict[str, str]:
    scripts = os.path.dirname(python)
    folders = [folder for folder in variables.get("PATH", "").split(os.pathsep) if folder]
    old_scripts = os.path.dirname(recorded.executable)
    kept = [folder for folder in folders if folder not in (scripts, old_scripts)]
    home = os.path.dirname(scripts)
    is_virtual = os.path.exists(os.path.join(home, "pyvenv.cfg"))
    return {"PATH": os.pathsep.join([scripts, *kept])} | ({"VIRTUAL_ENV": home} if is_virtual else {})


def is_session_variable(name: str) -> bool:
    return name in _SESSION_VARIABLES or name.startswith(_SESSION_PREFIXES)


def _recorded_umask(recorded: RecordedRun) -> int:
    system = recorded.environment.get("system")
    umask = system.get("umask") if isinstance(system, dict) else None
    return int(umask, 8) if isinstance(umask, str) and re.fullmatch(r"[0-7]{3,4}", umask) else -1
