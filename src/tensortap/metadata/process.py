"""Command, cwd, launcher, exit.

Describe how the program was started: its command, environment, folder and time.

Where the program began, and with which file: it may have gone to another folder since.

Describe what started the program: launchers above it, its module, the run it repeats.

Write down how the program ended, as far as it can be known from inside.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.core.settings import setting
from tensortap.metadata.redaction import Policy, Redactor

# China has kept this offset since 1991, so it serves where the zone files are missing.
_SHANGHAI = timezone(timedelta(hours=8), "Asia/Shanghai")


def timestamp_zone(name: str | None) -> tzinfo:
    """The zone of run folders and timestamps: "local", "UTC" or a zone name; None asks TENSORTAP_TZ."""
    name = name or setting("TENSORTAP_TZ")
    if name.lower() == "local":
        return datetime.now().astimezone().tzinfo or UTC
    if name.upper() == "UTC":
        return UTC
    return _named_zone(name)


def _named_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, malformed, or a folder such as "Asia"
        if name == "Asia/Shanghai":
            return _SHANGHAI
        raise ValueError(
            f"no time zone {name!r} on this machine; give 'local', 'UTC' or a zone such as 'Asia/Shanghai'"
        ) from None


def timestamp(moment: datetime) -> str:
    """The moment to the second with its offset, `2025-10-28T14:30:41+08:00`."""
    return moment.isoformat(timespec="seconds")


def runtime_info(redactor: Redactor, policy: Policy, folder: str, moment: datetime) -> dict[str, Any]:
    """The content of runtime_info.json."""
    return {
        "command": command(redactor),
        "environment_variables": redactor.variables(environment_without_launch_spec(), policy),
        "working_directory": folder,
        "timestamp": timestamp(moment),
    }


def command(redactor: Redactor) -> dict[str, Any]:
    argv = redactor.arguments(_arguments())
    return {"executable": sys.executable, "argv": argv, "full_command": shlex.join(argv)}


def _arguments() -> list[str]:
    """Those of the program; code that was given with -c, which Python leaves out of them, is told too."""
    words = list(getattr(sys, "argv", []))
    is_code = words[:1] == ["-c"] and len(sys.orig_argv) > len(words)
    return ["-c", sys.orig_argv[-len(words)], *words[1:]] if is_code else words


def working_directory() -> str:
    """The current folder, or nothing once it has been removed under the program."""
    try:
        return os.getcwd()
    except OSError:
        return ""


_INSTALLED = ("bin", "lib", "lib64", "Scripts")
_PACKAGES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True, slots=True)
class Start:
    """`folder` is where the command was given, or nothing once that is gone."""

    folder: str
    script: str | None = None

    @property
    def folders(self) -> list[str]:
        """Where the project may be: the folder, else that of the main script."""
        folders = [self.folder, os.path.dirname(self.script) if self.script else ""]
        return list(dict.fromkeys(folder for folder in folders if folder))


def program_start(*, here: str = "", folder: str = "") -> Start:
    """`here` is where this process began, if somebody saw it; `folder`, where a command was given that
    started this process and perhaps others."""
    began = here or _began_in() or working_directory()
    return Start(folder or began, _main_script(began))


def _main_script(folder: str) -> str | None:
    """The file that runs as `__main__`; Python forgets it before the end of the program, its first argument
    then still tells."""
    file = _main_file() or next(iter(sys.argv), "")
    path = os.path.join(folder, file) if isinstance(file, str) and file else ""
    if not os.path.isabs(path):  # the folder is gone
        return None
    path = os.path.realpath(path)
    return path if os.path.isfile(path) and not is_of_environment(path) else None


def is_of_environment(file: str) -> bool:
    """A program that was installed beside the interpreter, and is no part of a project."""
    places = (os.path.join(prefix, one, "") for prefix in (sys.prefix, sys.base_prefix) for one in _INSTALLED)
    return file.startswith(tuple(places)) or any(part in file for part in _PACKAGES)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder, or lies in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def _began_in() -> str:
    """By the script's path as the command names it and as Python completed it then; nothing where they do
    not tell."""
    file = _main_file()
    if not isinstance(file, str) or not os.path.isabs(file) or is_of_environment(file):
        return ""
    word = next(iter(sys.argv), "")
    if word in sys.orig_argv and not os.path.isabs(word) and file.endswith(os.sep + word):
        return file.removesuffix(os.sep + word)
    return _began_with_module(file)


def _began_with_module(file: str) -> str:
    """With -m, the shell's folder if the module was found from there."""
    spec, shell = getattr(sys.modules.get("__main__"), "__spec__", None), os.environ.get("PWD", "")
    if spec is None or not os.path.isabs(shell) or shell not in sys.path:
        return ""
    place = os.path.join(shell, *spec.name.split("."))
    return shell if file == f"{place}.py" else ""


def _main_file() -> Any:
    return getattr(sys.modules.get("__main__"), "__file__", None)


_LAUNCHERS = frozenset((
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "orterun", "srun", "horovodrun",
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
))  # fmt: skip
_HIGHEST = 6
_numbers = count()  # which of the runs that this process makes


def launch(redactor: Redactor) -> dict[str, Any]:
    """Facts of the start that the command line alone does not tell."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {
        "module": spec.name if spec is not None else None,
        "launchers": [redactor.arguments(command) for command in _above(os.getppid())],
        "process": os.getpid(),
        "stdin_is_terminal": _is_terminal(),
    }


def next_number() -> int:
    """The n-th run of this process, from 0."""
    return next(_numbers)


def announce(folder: Path, number: int) -> None:
    """Tell whoever started this program, and asked for it, where a run begins."""
    place = setting("TENSORTAP_RUN_LIST")
    if place:
        with open(place, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{number}\t{os.getpid()}\t{folder}\n")


def _above(process: int) -> list[list[str]]:
    """The command lines of the launchers among the ancestors, the nearest first; Linux only."""
    found = []
    for _ in range(_HIGHEST):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        words = [os.fsdecode(word) for word in command]
        if is_launcher(words):
            found.append(words)
    return found


def is_launcher(command: list[str]) -> bool:
    """Whether the program, or the script or module that a Python runs, is one that starts others."""
    if not command or os.path.basename(command[0]) in _LAUNCHERS:
        return bool(command)
    words = iter(command[1:] if os.path.basename(command[0]).startswith("python") else ())
    for word in words:
        if word == "-m":
            return next(words, "") in _LAUNCHERS
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


OUTCOME = "outcome.json"
_begun: dict[Path, tuple[int, float, Callable[[], object]]] = {}


def remember_to_end(own: Path, before_end: Callable[[], object]) -> None:
    """At the end of this process, call `before_end` and write `own/outcome.json`."""
    if not _begun:
        atexit.register(_end)
    _begun[own] = os.getpid(), time.monotonic(), before_end


def forget(own: Path) -> None:
    """Leave it to somebody who will know more of the end."""
    _begun.pop(own, None)


def _end() -> None:
    while _begun:
        own, (process, begun, before_end) = _begun.popitem()
        # A forked child inherits the list, but not the run.
        if process == os.getpid() and own.is_dir():
            with suppress(OSError):
                before_end()
                facts = _facts(time.monotonic() - begun)
                (own / OUTCOME).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _facts(seconds: float) -> dict[str, Any]:
    """A printed exception is known here; a status given to sys.exit() is known to the parent alone."""
    error = getattr(sys, "last_type", None)
    return {"seconds": round(seconds, 3), "error": error.__name__ if error is not None else None}
