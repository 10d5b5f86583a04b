"""Where the lines of trees go, and whose turn it is: one tree at a time writes as it happens, others wait."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tensortap.core.settings import setting
from tensortap.formats.call_tree_labels import Line, coloured, encodable, fitted
from tensortap.sinks.tree_files import TreeFiles

MOST_HELD = 10_000  # lines of a waiting tree; then they are written as one block
SILENCE = 2.0  # seconds after which a tree that is suspended gives way to one that has ended
_home = os.getpid()
logger = logging.getLogger("tensortap.tree")
"""The logger of all trees: lines go to stderr until you add a handler."""
# Lines have a shape of their own: another logger's format would spoil it, and a second copy the terminal.
logger.propagate = False
logger.setLevel(logging.INFO)


class Writer(Protocol):
    """A tree as the desk knows it."""

    thread_name: str
    file: str

    @property
    def thread(self) -> int: ...

    def go_on(self) -> Line:
        """The header of a tree that was interrupted by others."""


@dataclass(slots=True, eq=False)
class _Turn:
    """What the desk knows of one open tree."""

    tree: Writer
    lane: int
    held: list[Line] = field(default_factory=list)
    has_begun: bool = False
    state: Literal["open", "resting", "over"] = "open"


class Desk:
    """Knows which tree writes as it happens (the first that is open), and what the others have to say."""

    def __init__(self) -> None:
        self._process: int | None = None  # the one that will flush when it ends
        self._wrote: tuple[_Turn | None, float] = (None, 0.0)  # who did last, and when
        self._renew()

    def put(self, tree: Writer, lines: Sequence[Line]) -> None:
        if not lines or not logger.isEnabledFor(logging.INFO):
            return
        with self._lock:
            turn = self._turns.get(tree) or self._begun(tree)
            turn.state = "open"
            if turn.lane not in self._live and not is_child():
                self._live[turn.lane] = turn
            turn.held += lines
            if self._live.get(turn.lane) is turn or len(turn.held) > MOST_HELD:
                self._write(turn)

    def say(self, tree: Writer, lines: Sequence[Line]) -> None:
        """At once, also in the middle of another tree: the program asked for it there."""
        with self._lock:
            if logger.isEnabledFor(logging.INFO):
                _write(tree, lines)

    def end(self, tree: Writer, *, for_now: bool = False) -> None:
        """The call is over, or suspended: its block is complete."""
        with self._lock:
            turn = self._turns.get(tree)
            if turn is None:
                return
            turn.state = "resting" if for_now else "over"
            live = self._live.get(turn.lane)
            if live is None or live is turn or time.monotonic() - self._wrote[1] > SILENCE:
                self._write(turn)
            if live is turn:
                del self._live[turn.lane]
                self._next(turn.lane)
            self._forget(turn)

    def flush(self) -> None:
        """Write whatever waits."""
        with self._lock:
            for turn in list(self._turns.values()):
                self._write(turn)

    def _begun(self, tree: Writer) -> _Turn:
        self._remember_forks_and_exit()
        turn = self._turns[tree] = _Turn(tree, _lane(tree))
        return turn

    def _next(self, lane: int) -> None:
        """Blocks that are complete first; then the oldest open tree goes on as it happens."""
        for turn in [one for one in self._turns.values() if one.held and one.lane == lane]:
            self._write(turn)
            self._forget(turn)
            if turn.state == "open":
                self._live[lane] = turn
                return

    def _forget(self, turn: _Turn) -> None:
        if turn.state == "over" and not turn.held:
            self._turns.pop(turn.tree, None)

    def _write(self, turn: _Turn) -> None:
        if not turn.held:
            return
        lines, turn.held = turn.held, []
        if turn.has_begun and self._wrote[0] is not turn:
            lines = [turn.tree.go_on(), *lines]
        turn.has_begun = True
        self._wrote = turn, time.monotonic()
        _write(turn.tree, lines)

    def _remember_forks_and_exit(self) -> None:
        if self._process == os.getpid():
            return
        if self._process is None:  # what a fork inherits
            atexit.register(self.flush)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._renew)
        self._process = os.getpid()
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            # A child of multiprocessing that was forked ends without the usual exit, but runs these.
            sys.modules["multiprocessing.util"].Finalize(None, self.flush, exitpriority=0)

    def _renew(self) -> None:
        """Also in a forked child: what waits there is the parent's to write, and the lock may be held by a
        thread that does not exist any more."""
        self._lock = threading.RLock()
        self._live: dict[int, _Turn] = {}
        self._turns: dict[Writer, _Turn] = {}  # the oldest first
        self._wrote = None, 0.0


desk = Desk()  # one for the process, as the terminal is


def is_child() -> bool:
    """Whether another process may write to the same terminal."""
    processes = sys.modules.get("multiprocessing.process")
    return os.getpid() != _home or (processes is not None and processes.parent_process() is not None)


def encoding() -> str | None:
    """Of what lines are written to; None where anything can be."""
    streams = [getattr(handler, "stream", None) for handler in _handlers()] or [sys.stderr]
    found = [getattr(stream, "encoding", None) for stream in streams]
    return next((name for name in found if name and not name.lower().startswith("utf")), None)


def _handlers() -> list[logging.Handler]:
    """Those that show lines or keep them. Pytest hangs others on every logger, which only listen."""
    return [one for one in logger.handlers if not type(one).__module__.startswith("_pytest.")]


def _lane(tree: Writer) -> int:
    """Trees in different lanes cannot mix: files are kept apart by thread."""
    handlers = _handlers()
    is_apart = bool(handlers) and all(getattr(one, "keeps_threads_apart", False) for one in handlers)
    return tree.thread if is_apart else 0


def _write(tree: Writer, lines: Sequence[Line]) -> None:
    handlers = logger.handlers
    if len(handlers) == 1 and type(handlers[0]) is TreeFiles and handlers[0].is_plain():
        handlers[0].put(tree.thread, [line.plain() for line in lines])
        return
    if not handlers or not _handlers():
        _show(sys.stderr, lines)
    if handlers:
        name = encoding()
        for line in lines:
            text = line.plain()
            logger.handle(_log_record(tree, encodable(text, name) if name else text, line.lineno))


def _log_record(tree: Writer, text: str, lineno: int) -> logging.LogRecord:
    record = logging.LogRecord(logger.name, logging.INFO, tree.file, lineno, "%s", (text,), None)
    record.thread, record.threadName = tree.thread, tree.thread_name
    return record


def _show(stream: Any, lines: Sequence[Line]) -> None:
    """All in one write: two processes may share the terminal."""
    if stream is None:
        return
    name = getattr(stream, "encoding", None)
    with contextlib.suppress(OSError, ValueError):  # a closed stream, a pipe that nobody reads any more
        width, has_colour = _terminal(stream)
        texts = [coloured(line, width) if has_colour else fitted(line, width) for line in lines]
        stream.write("".join(f"{encodable(text, name)}\n" for text in texts))
        stream.flush()


def _terminal(stream: Any) -> tuple[int | None, bool]:
    try:
        if not stream.isatty():
            return None, False
    except AttributeError:
        return None, False
    is_plain = bool(setting("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return shutil.get_terminal_size().columns, not is_plain
