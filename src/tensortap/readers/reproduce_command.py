"""The command of a run, as it is started again: arguments, variables, folder, and the secrets it needs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensortap.metadata.launch import is_launcher
from tensortap.metadata.redact import NOT_RECORDED
from tensortap.readers.reproduce_paths import Moves
from tensortap.readers.reproduce_recorded import Lack, LackingError, Recorded

_HIDDEN = re.compile(r"<redacted:[0-9a-f]{16}>")
# Of the place and the session, not of the run: taken as they are now.
_SESSION = frozenset((
    "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "TMPDIR", "TMP", "TEMP", "DISPLAY", "HOSTNAME",
    "WAYLAND_DISPLAY", "TMUX", "TMUX_PANE", "STY", "PWD", "OLDPWD", "SHLVL", "_", "LS_COLORS", "MAIL",
    "VIRTUAL_ENV_PROMPT", "PS1", "COLUMNS", "LINES",
))  # fmt: skip
_SESSION_BEGINNINGS = ("SSH_", "XDG_", "DBUS_", "VSCODE_", "PYTEST_", "BASH_FUNC_", "_TENSORTAP_")
_LAUNCHED = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
))  # fmt: skip
_LAUNCHED_BEGINNINGS = ("TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_")
_SET_ANEW = ("TENSORTAP_PARENT", "TENSORTAP_RUN_LIST", "VIRTUAL_ENV")
_NOT_REPEATED = ("srun",)
_IS_TYPED = dict.fromkeys(
    ("ipython", "ipython3", "IPython", "ipykernel", "ipykernel_launcher", "ipykernel_launcher.py"),
    "it was typed into a notebook or shell",
)
# The present tensortap watches, whichever Python the program runs on.
_WATCH = (sys.executable, "-c", "from tensortap.cli.main import main; raise SystemExit(main())", "run")


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that was hidden when the run was written."""

    kind: Literal["variable", "argument"]
    name: str  # of the variable; of the option, else `#3` for the third word of the command
    hidden: str

    @property
    def option(self) -> str:
        return f"--set-{'env' if self.kind == 'variable' else 'arg'} {self.name}=VALUE"


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: everything that a process gets from its parent."""

    words: list[str]
    folder: str
    variables: dict[str, str]
    umask: int = -1


Ask = Callable[[Secret], str | None]


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user gave in place of the hidden values."""

    variables: Mapping[str, str]
    arguments: Mapping[str, str]
    unset: frozenset[str] = frozenset()
    ask: Ask = lambda secret: None

    def of(self, secret: Secret, hide: Callable[[str], str]) -> str | None:
        """The value: as given, as it still is in this environment, or as answered."""
        given = self.variables if secret.kind == "variable" else self.arguments
        if secret.name in given:
            return given[secret.name]
        same = (value for value in os.environ.values() if value and hide(value) == secret.hidden)
        found = next(same, None)
        return found if found is not None or self.leaves_out(secret) else self.ask(secret)

    def leaves_out(self, secret: Secret) -> bool:
        return secret.kind == "variable" and bool({secret.name, "all"} & self.unset)


def secrets(recorded: Recorded) -> list[Secret]:
    """What is hidden in the run: variables by name, arguments by option or position."""
    variables = [Secret("variable", n, v) for n, v in recorded.variables.items() if _HIDDEN.fullmatch(v)]
    return [*variables, *_hidden_arguments(program(recorded))]


def _hidden_arguments(words: list[str]) -> Iterator[Secret]:
    for position, word in enumerate(words):
        for hidden in _HIDDEN.findall(word):
            before = words[position - 1] if position else ""
            option, equals, _ = word.partition("=")
            named = option if equals and "<" not in option else before if before.startswith("-") else ""
            yield Secret("argument", named or f"#{position}", hidden)


def program(recorded: Recorded) -> list[str]:
    """The outermost command that starts all processes of the run again."""
    if recorded.watched:
        return recorded.watched
    outer = [words for words in recorded.launchers if is_launcher(words)]
    return outer[-1] if outer else recorded.command


def text_lacks(recorded: Recorded) -> list[Lack]:
    """A program that lies in no file and in no word of its command cannot be given again."""
    words = program(recorded)
    why = _why_no_text(words[1:]) if _is_python(words[0]) else _IS_TYPED.get(os.path.basename(words[0]), "")
    remedy = f"{why} and was not kept; save it as a file, and run that"
    return [Lack("the text of the program", remedy)] if why else []


def _why_no_text(words: list[str]) -> str:
    left = iter(words)
    for word in left:
        if word in ("-W", "-X"):
            next(left, None)
        elif word == "-m":
            return _IS_TYPED.get(next(left, ""), "")
        elif word[:2] in ("-c", "-m") or not word.startswith("-"):
            return _IS_TYPED.get(os.path.basename(word), "") if not any(map(_is_script, left)) else ""
        elif word == "-":
            break
    return "it came from standard input"


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".ipynb"))


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def answered(
    recorded: Recorded, answers: Answers, hide: Callable[[str], str]
) -> tuple[dict[Secret, str], list[Lack]]:
    """The secrets that are known now, and those that are not."""
    known, lacks = {}, []
    for secret in secrets(recorded):
        value = answers.of(secret, hide)
        if value is not None:
            known[secret] = value
        elif not answers.leaves_out(secret):
            without = f", or --unset {secret.name} runs without it" if secret.kind == "variable" else ""
            lacks.append(Lack(f"{secret.kind} {secret.name}, which was hidden", f"{secret.option}{without}"))
    return known, lacks


def answer_notes(
    recorded: Recorded, answers: Answers, known: Mapping[Secret, str], hide: Callable[[str], str]
) -> list[str]:
    """Answers that are not what the run had, and those to a question that nobody asked."""
    notes = [
        f"the value given for {one.kind} {one.name} is another than the run had, by its digest, "
        "or the run was made under another key, as that of another user"
        for one, value in known.items()
        if hide(value) != one.hidden
    ]
    wanted = {(one.kind, one.name) for one in secrets(recorded)}
    given = [("variable", name) for name in answers.variables] + [("argument", n) for n in answers.arguments]
    unasked = [f"{kind} {name} was not hidden, so the recorded one is used" for kind, name in given
               if (kind, name) not in wanted]  # fmt: skip
    return notes + unasked


def build(recorded: Recorded, python: str, moves: Moves, into: Path, known: dict[Secret, str]) -> Command:
    """The recorded command in the new place, run by that Python."""
    words = program(recorded)
    if os.path.basename(words[0]) in _NOT_REPEATED:
        raise LackingError(Lack(f"a launch by {words[0]}", f"start it yourself: {' '.join(words)}"))
    folder = moves.path(recorded.working_directory)
    if folder == recorded.working_directory:  # not in the code: its outputs must not land in the old place
        folder = str(into / "work")
    told = {secret.hidden: value for secret, value in known.items()}
    filled = [_HIDDEN.sub(lambda found: told.get(found.group(), found.group()), word) for word in words]
    started = [_program(filled, recorded, python), *_arguments(filled, recorded, python, moves)]
    watch = [*_WATCH, *recorded.watching, "--to", str(into / "runs"), "--quiet", "--"]
    return Command(
        [*watch, *started] if recorded.watched else started,
        folder,
        _variables(recorded, python, moves, known, is_launched=bool(recorded.launchers)),
        _umask(recorded),
    )


def _program(words: list[str], recorded: Recorded, python: str) -> str:
    is_python = words[0] == recorded.executable or _is_python(words[0])
    return python if is_python else _script(words[0], recorded, python)


def _arguments(words: list[str], recorded: Recorded, python: str, moves: Moves) -> Iterator[str]:
    for word in words[1:]:
        moved = moves.argument(word, recorded.working_directory)
        yield _script(word, recorded, python) if moved == word else moved


def _script(word: str, recorded: Recorded, python: str) -> str:
    """A console script beside the recorded interpreter is now beside the new one."""
    if not recorded.executable or os.path.dirname(word) != os.path.dirname(recorded.executable):
        return word
    beside = os.path.join(os.path.dirname(python), os.path.basename(word))
    return beside if os.path.exists(beside) else word


def _variables(
    recorded: Recorded, python: str, moves: Moves, known: dict[Secret, str], *, is_launched: bool
) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if is_of_session(name)}
    for name, value in recorded.variables.items():
        if is_of_session(name) or (is_launched and _is_launched(name)) or name in _SET_ANEW:
            continue
        if value == NOT_RECORDED:
            found.update({name: os.environ[name]} if name in os.environ else {})
        elif not _HIDDEN.fullmatch(value):
            found[name] = moves.list_of_paths(value)
    found |= {secret.name: value for secret, value in known.items() if secret.kind == "variable"}
    return found | _interpreter_first(found, python, recorded)


def _interpreter_first(found: Mapping[str, str], python: str, recorded: Recorded) -> dict[str, str]:
    scripts = os.path.dirname(python)
    places = [place for place in found.get("PATH", "").split(os.pathsep) if place]
    old = os.path.dirname(recorded.executable)
    kept = [place for place in places if place not in (scripts, old)]
    home = os.path.dirname(scripts)
    is_virtual = os.path.exists(os.path.join(home, "pyvenv.cfg"))
    return {"PATH": os.pathsep.join([scripts, *kept])} | ({"VIRTUAL_ENV": home} if is_virtual else {})


def is_of_session(name: str) -> bool:
    return name in _SESSION or name.startswith(_SESSION_BEGINNINGS)


def _is_launched(name: str) -> bool:
    return name in _LAUNCHED or name.startswith(_LAUNCHED_BEGINNINGS)


def _umask(recorded: Recorded) -> int:
    system = recorded.environment.get("system")
    told = system.get("umask") if isinstance(system, dict) else None
    return int(told, 8) if isinstance(told, str) and re.fullmatch(r"[0-7]{3,4}", told) else -1
