"""The secret that both sides of a link know: from the environment, or from a private file of the user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tensortap.core.errors import RefusedError
from tensortap.core.settings import setting

_TOKEN_FILE = Path(".config", "tensortap", "token")


def read_token() -> str | None:
    """`THING_TOKEN`, else the first line of `~/.config/tensortap/token`; None where neither is there."""
    return setting("THING_TOKEN") or _read_token_file(Path.home() / _TOKEN_FILE)


def _read_token_file(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            told = os.fstat(file.fileno())
            if told.st_uid != os.geteuid() or stat.S_IMODE(told.st_mode) & 0o077:
                raise RefusedError(f"the token in {path} can be read by others; chmod 600 it, and change it")
            return file.readline().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
