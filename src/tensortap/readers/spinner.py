"""A terminal spinner with new lines above it; an interrupt ends the spinner, nothing else."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_TICK_SECONDS = 0.1  # seconds
_MAX_NEW_LINES = 10  # lines per tick
_MAX_WIDTH = 160


def show_spinner(
    state: Callable[[], str],
    new_lines: Callable[[], list[str]],
    *,
    seconds: float | None = None,
    out: TextIO | None = None,
) -> None:
    """Show the state until Ctrl-C or for some seconds; only once where it cannot be animated."""
    out = out or sys.stdout
    if not _can_animate(out):
        print(*new_lines()[-_MAX_NEW_LINES:], state(), sep="\n", file=out)
        return
    frames, count = _frames_for(out), 0
    end = None if seconds is None else time.monotonic() + seconds
    try:
        while end is None or time.monotonic() < end:
            _show(f"{frames[count % len(frames)]} {state()}", new_lines(), out)
            count += 1
            time.sleep(_TICK_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        print(file=out, flush=True)


def print_new_lines(new_lines: Callable[[], list[str]], *, seconds: float | None = None) -> None:
    """Print new lines until Ctrl-C or for some seconds; fit for a pipe."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        for line in new_lines():
            print(line, flush=True)
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(_TICK_SECONDS)


def _show(status: str, lines: list[str], out: TextIO) -> None:
    width = min(shutil.get_terminal_size().columns - 1, _MAX_WIDTH)
    hidden = len(lines) - _MAX_NEW_LINES
    if hidden > 0:
        lines = [f"... and {hidden} more", *lines[-_MAX_NEW_LINES:]]
    for line in lines:
        out.write("\r" + line[:width].ljust(width) + "\n")
    out.write("\r" + status[:width].ljust(width))
    out.flush()


def _can_animate(out: TextIO) -> bool:
    """Whether the stream is a terminal or a notebook cell."""
    return out.isatty() or type(out).__module__.startswith("ipykernel")


def _frames_for(out: TextIO) -> str:
    try:
        _FRAMES.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return _ASCII_FRAMES
    return _FRAMES
