"""A line that turns while the user looks, with news above it; an interrupt ends the looking, nothing else."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_TURNS, _PLAIN_TURNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_TICK = 0.1  # seconds
_MOST_NEWS = 10  # lines per tick
_WIDEST = 160


def spin(
    state: Callable[[], str],
    news: Callable[[], list[str]],
    *,
    seconds: float | None = None,
    out: TextIO | None = None,
) -> None:
    """Show the state until Ctrl-C or for some seconds; where nobody can see it turn, once."""
    out = out or sys.stdout
    if not _turns_here(out):
        print(*news()[-_MOST_NEWS:], state(), sep="\n", file=out)
        return
    turns, count = _turns(out), 0
    end = None if seconds is None else time.monotonic() + seconds
    try:
        while end is None or time.monotonic() < end:
            _show(f"{turns[count % len(turns)]} {state()}", news(), out)
            count += 1
            time.sleep(_TICK)
    except KeyboardInterrupt:
        pass
    finally:
        print(file=out, flush=True)


def follow(news: Callable[[], list[str]], *, seconds: float | None = None) -> None:
    """Print the news, a line each, until Ctrl-C or for some seconds; fit for a pipe."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        for line in news():
            print(line, flush=True)
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(_TICK)


def _show(line: str, lines: list[str], out: TextIO) -> None:
    width = min(shutil.get_terminal_size().columns - 1, _WIDEST)
    hidden = len(lines) - _MOST_NEWS
    if hidden > 0:
        lines = [f"... and {hidden} more", *lines[-_MOST_NEWS:]]
    for one in lines:
        out.write("\r" + one[:width].ljust(width) + "\n")
    out.write("\r" + line[:width].ljust(width))
    out.flush()


def _turns_here(out: TextIO) -> bool:
    """A terminal, or the cell of a notebook."""
    return out.isatty() or type(out).__module__.startswith("ipykernel")


def _turns(out: TextIO) -> str:
    try:
        _TURNS.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return _PLAIN_TURNS
    return _TURNS
