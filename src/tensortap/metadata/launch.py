"""Describe what started the program: launchers above it, its module, the run it repeats."""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from tensortap.core.settings import setting
from tensortap.metadata.redact import Redactor

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
