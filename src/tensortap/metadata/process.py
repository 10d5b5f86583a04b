"""How the program was started and ended: command, environment, folder, launchers, outcome."""

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
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tensortap.core.filesystem import working_directory
from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.core.launchers import LAUNCHER_COMMANDS
from tensortap.core.settings import setting
from tensortap.metadata.redaction import EnvironmentPolicy, Redactor

# China has kept this offset since 1991, so it serves where the zone files are missing.
_SHANGHAI = timezone(timedelta(hours=8), "Asia/Shanghai")


def timestamp_zone(name: str | None) -> tzinfo:
    """The zone of run folders and timestamps: "local", "UTC" or a zone name; None reads TENSORTAP_TZ."""
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


def format_timestamp(moment: datetime) -> str:
    """The moment to the second with its offset, `2025-10-28T14:30:41+08:00`."""
    return moment.isoformat(timespec="seconds")


def runtime_info(
    redactor: Redactor, policy: EnvironmentPolicy, folder: str, moment: datetime
) -> dict[str, Any]:
    """The content of runtime_info.json."""
    return {
        "command": describe_command(redactor),
        "environment_variables": redactor.variables(environment_without_launch_spec(), policy),
        "working_directory": folder,
        "timestamp": format_timestamp(moment),
    }


def describe_command(redactor: Redactor) -> dict[str, Any]:
    argv = redactor.arguments(_program_arguments())
    return {"executable": sys.executable, "argv": argv, "full_command": shlex.join(argv)}


def _program_arguments() -> list[str]:
    """sys.argv, with the code of `python -c`, which Python leaves out."""
    words = list(getattr(sys, "argv", []))
    is_code = words[:1] == ["-c"] and len(sys.orig_argv) > len(words)
    return ["-c", sys.orig_argv[-len(words)], *words[1:]] if is_code else words


_ENVIRONMENT_FOLDERS = ("bin", "lib", "lib64", "Scripts")
_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """The main script, and the `folder` where the command was run; empty if deleted."""

    folder: str
    script: str | None = None

    @property
    def folders(self) -> list[str]:
        """Where the project may be: the start folder, then that of the main script."""
        folders = [self.folder, os.path.dirname(self.script) if self.script else ""]
        return list(dict.fromkeys(folder for folder in folders if folder))


def find_program_start(*, here: str = "", folder: str = "") -> ProgramStart:
    """`here` is the start folder of this process, if known; `folder` that of the command which started this
    process and perhaps others."""
    start_folder = here or _start_folder() or working_directory()
    return ProgramStart(folder or start_folder, _main_script(start_folder))


def _main_script(folder: str) -> str | None:
    """The file that runs as `__main__`; at exit, when Python has dropped `__file__`, from sys.argv."""
    file = _main_file() or next(iter(sys.argv), "")
    path = os.path.join(folder, file) if isinstance(file, str) and file else ""
    if not os.path.isabs(path):  # the folder was deleted
        return None
    path = os.path.realpath(path)
    return path if os.path.isfile(path) and not is_installed_file(path) else None


def is_installed_file(file: str) -> bool:
    """Whether the file is installed in the interpreter's environment, so no part of a project."""
    prefixes = (
        os.path.join(prefix, folder, "")
        for prefix in (sys.prefix, sys.base_prefix)
        for folder in _ENVIRONMENT_FOLDERS
    )
    return file.startswith(tuple(prefixes)) or any(part in file for part in _PACKAGE_FOLDERS)


def resolve_file(file: str) -> str:
    """The real path of a file that a module was imported from, looked up once per process."""
    return _resolve(file) if os.path.isabs(file) else os.path.realpath(file)


@cache
def _resolve(path: str) -> str:
    """As os.path.realpath, with the answers for the folders above shared by all files below them."""
    folder, name = os.path.split(path)
    if name in ("", os.curdir, os.pardir) or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_resolve(folder), name)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder, or lies in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def _start_folder() -> str:
    """The start folder, from the script's path as typed and as Python made it absolute; empty if unknown."""
    file = _main_file()
    if not isinstance(file, str) or not os.path.isabs(file) or is_installed_file(file):
        return ""
    script = next(iter(sys.argv), "")
    if script in sys.orig_argv and not os.path.isabs(script) and file.endswith(os.sep + script):
        return file.removesuffix(os.sep + script)
    return _start_folder_of_module(file)


def _start_folder_of_module(file: str) -> str:
    """With -m, the shell's folder if the module was found there."""
    spec, shell_folder = getattr(sys.modules.get("__main__"), "__spec__", None), os.environ.get("PWD", "")
    if spec is None or not os.path.isabs(shell_folder) or shell_folder not in sys.path:
        return ""
    module_path = os.path.join(shell_folder, *spec.name.split("."))
    return shell_folder if file == f"{module_path}.py" else ""


def _main_file() -> Any:
    return getattr(sys.modules.get("__main__"), "__file__", None)


_MAX_ANCESTORS = 6
_numbers = count()  # of the runs of this process


def describe_launch(redactor: Redactor) -> dict[str, Any]:
    """Facts of the launch beyond the command line: module, launchers, pid, stdin."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {
        "module": spec.name if spec is not None else None,
        "launchers": [redactor.arguments(command) for command in _launcher_commands(os.getppid())],
        "process": os.getpid(),
        "stdin_is_terminal": _is_stdin_terminal(),
    }


def next_run_number() -> int:
    """The number of the next run of this process, from 0."""
    return next(_numbers)


def append_to_run_list(folder: Path, number: int) -> None:
    """Append the run to the file that TENSORTAP_RUN_LIST names, for the process that started this one."""
    run_list = setting("TENSORTAP_RUN_LIST")
    if run_list:
        with open(run_list, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{number}\t{os.getpid()}\t{folder}\n")


def _launcher_commands(pid: int) -> list[list[str]]:
    """The command lines of the launchers among the ancestors, innermost first; Linux only."""
    commands = []
    for _ in range(_MAX_ANCESTORS):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        words = [os.fsdecode(word) for word in command]
        if is_launcher(words):
            commands.append(words)
    return commands


def is_launcher(command: list[str]) -> bool:
    """Whether the program, or the script or module that Python runs, is a known launcher."""
    if not command or os.path.basename(command[0]) in LAUNCHER_COMMANDS:
        return bool(command)
    words = iter(command[1:] if os.path.basename(command[0]).startswith("python") else ())
    for word in words:
        if word == "-m":
            return next(words, "") in LAUNCHER_COMMANDS
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word) in LAUNCHER_COMMANDS
    return False


def _is_stdin_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


OUTCOME_FILE = "outcome.json"
_started_runs: dict[Path, tuple[int, float, Callable[[], object]]] = {}


def write_outcome_at_exit(internal_folder: Path, before_end: Callable[[], object]) -> None:
    """At exit, call `before_end` and write `outcome.json` into that folder."""
    if not _started_runs:
        atexit.register(_write_outcomes)
    _started_runs[internal_folder] = os.getpid(), time.monotonic(), before_end


def cancel_outcome(internal_folder: Path) -> None:
    """Leave the outcome to the parent process, which knows the exit code."""
    _started_runs.pop(internal_folder, None)


def _write_outcomes() -> None:
    while _started_runs:
        internal_folder, (pid, started_at, before_end) = _started_runs.popitem()
        # A forked child inherits the list, but not the run.
        if pid == os.getpid() and internal_folder.is_dir():
            with suppress(OSError):
                before_end()
                facts = _outcome_facts(time.monotonic() - started_at)
                (internal_folder / OUTCOME_FILE).write_text(
                    json.dumps(facts, indent=2) + "\n", encoding="utf-8"
                )


def _outcome_facts(seconds: float) -> dict[str, Any]:
    """An uncaught exception is known here; the status of sys.exit() only to the parent."""
    error = getattr(sys, "last_type", None)
    return {"seconds": round(seconds, 3), "error": error.__name__ if error is not None else None}
