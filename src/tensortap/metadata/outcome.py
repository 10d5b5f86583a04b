"""Write down how the program ended, as far as it can be known from inside."""

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
