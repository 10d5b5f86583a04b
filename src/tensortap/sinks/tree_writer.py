"""Schedule the output of call trees (one is written live, the others are buffered), and write log files, one
per process and thread, so that lines never interleave."""

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
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from tensortap.core.errors import WriteFailedError
from tensortap.core.interpreter import call_at_child_exit, call_in_forked_children, is_multiprocessing_child
from tensortap.core.settings import setting
from tensortap.render.call_tree_values import CallLine, colour_line, fit_line, make_encodable

MAX_PENDING_LINES = 10_000  # of a buffered tree; beyond that they are written as one block
STALE_AFTER = 2.0  # seconds without output after which the live tree gives way to one that has ended
_importing_pid = os.getpid()
logger = logging.getLogger("tensortap.tree")
"""The logger of all trees: lines go to stderr until you add a handler."""
# Lines are formatted already: a parent logger would add its own format, and print them twice.
logger.propagate = False
logger.setLevel(logging.INFO)


class LoggedTree(Protocol):
    """A tree as the scheduler sees it."""

    thread_name: str
    file: str

    @property
    def thread(self) -> int: ...

    def continuation_header(self) -> CallLine:
        """The header line of a tree that was interrupted by others."""


@dataclass(slots=True, eq=False)
class _TreeState:
    """Buffered lines and phase of one open tree."""

    tree: LoggedTree
    lane: int
    pending: list[CallLine] = field(default_factory=list)
    has_begun: bool = False
    phase: Literal["open", "resting", "over"] = "open"


class OutputScheduler:
    """Writes the first open tree live, and buffers the lines of the others until it ends."""

    def __init__(self) -> None:
        self._registered_pid: int | None = None  # the process that will flush at exit
        self._last_write: tuple[_TreeState | None, float] = (None, 0.0)  # which tree, and when
        self._reset()

    def put(self, tree: LoggedTree, lines: Sequence[CallLine]) -> None:
        if not lines or not logger.isEnabledFor(logging.INFO):
            return
        with self._lock:
            state = self._states.get(tree) or self._register(tree)
            state.phase = "open"
            if state.lane not in self._live_by_lane and not shares_terminal():
                self._live_by_lane[state.lane] = state
            state.pending += lines
            if self._live_by_lane.get(state.lane) is state or len(state.pending) > MAX_PENDING_LINES:
                self._write(state)

    def write_now(self, tree: LoggedTree, lines: Sequence[CallLine]) -> None:
        """Write at once, even in the middle of another tree: the program logs it there."""
        with self._lock:
            if logger.isEnabledFor(logging.INFO):
                _write_lines(tree, lines)

    def end(self, tree: LoggedTree, *, for_now: bool = False) -> None:
        """The call has returned, or is suspended (`for_now`): its block is complete."""
        with self._lock:
            state = self._states.get(tree)
            if state is None:
                return
            state.phase = "resting" if for_now else "over"
            live = self._live_by_lane.get(state.lane)
            if live is None or live is state or time.monotonic() - self._last_write[1] > STALE_AFTER:
                self._write(state)
            if live is state:
                del self._live_by_lane[state.lane]
                self._hand_over(state.lane)
            self._forget(state)

    def flush(self) -> None:
        """Write all buffered lines."""
        with self._lock:
            for state in list(self._states.values()):
                self._write(state)

    def _register(self, tree: LoggedTree) -> _TreeState:
        self._register_fork_and_exit_handlers()
        state = self._states[tree] = _TreeState(tree, _lane_of(tree))
        return state

    def _hand_over(self, lane: int) -> None:
        """Write the completed blocks; then the oldest open tree becomes the live one."""
        for state in [state for state in self._states.values() if state.pending and state.lane == lane]:
            self._write(state)
            self._forget(state)
            if state.phase == "open":
                self._live_by_lane[lane] = state
                return

    def _forget(self, state: _TreeState) -> None:
        if state.phase == "over" and not state.pending:
            self._states.pop(state.tree, None)

    def _write(self, state: _TreeState) -> None:
        if not state.pending:
            return
        lines, state.pending = state.pending, []
        if state.has_begun and self._last_write[0] is not state:
            lines = [state.tree.continuation_header(), *lines]
        state.has_begun = True
        self._last_write = state, time.monotonic()
        _write_lines(state.tree, lines)

    def _register_fork_and_exit_handlers(self) -> None:
        if self._registered_pid == os.getpid():
            return
        if self._registered_pid is None:  # a fork inherits these
            atexit.register(self.flush)
            call_in_forked_children(self._reset)
        self._registered_pid = os.getpid()
        call_at_child_exit(self.flush)

    def _reset(self) -> None:
        """Initial state, also in a forked child: buffered lines are the parent's to write, and the lock may
        be held by a thread that does not exist in the child."""
        self._lock = threading.RLock()
        self._live_by_lane: dict[int, _TreeState] = {}
        self._states: dict[LoggedTree, _TreeState] = {}  # the oldest first
        self._last_write = None, 0.0


output_scheduler = OutputScheduler()  # one for the process, as the terminal is


def shares_terminal() -> bool:
    """Whether another process may write to the same terminal."""
    return os.getpid() != _importing_pid or is_multiprocessing_child()


def output_encoding() -> str | None:
    """The encoding of the output stream; None for Unicode ones."""
    streams = [getattr(handler, "stream", None) for handler in _output_handlers()] or [sys.stderr]
    encodings = [getattr(stream, "encoding", None) for stream in streams]
    return next((name for name in encodings if name and not name.lower().startswith("utf")), None)


def _output_handlers() -> list[logging.Handler]:
    """The handlers that print or store lines, without those pytest adds to every logger."""
    return [handler for handler in logger.handlers if not type(handler).__module__.startswith("_pytest.")]


def _lane_of(tree: LoggedTree) -> int:
    """The output lane of a tree, within which only one tree is live: per thread if files are, otherwise 0."""
    handlers = _output_handlers()
    is_split_by_thread = bool(handlers) and all(
        getattr(handler, "keeps_threads_apart", False) for handler in handlers
    )
    return tree.thread if is_split_by_thread else 0


def _write_lines(tree: LoggedTree, lines: Sequence[CallLine]) -> None:
    handlers = logger.handlers
    if len(handlers) == 1 and type(handlers[0]) is TreeFiles and handlers[0].is_plain():
        handlers[0].put(tree.thread, [line.plain() for line in lines])
        return
    if not handlers or not _output_handlers():
        _print_lines(sys.stderr, lines)
    if handlers:
        name = output_encoding()
        for line in lines:
            text = line.plain()
            logger.handle(_log_record(tree, make_encodable(text, name) if name else text, line.lineno))


def _log_record(tree: LoggedTree, text: str, lineno: int) -> logging.LogRecord:
    record = logging.LogRecord(logger.name, logging.INFO, tree.file, lineno, "%s", (text,), None)
    record.thread, record.threadName = tree.thread, tree.thread_name
    return record


def _print_lines(stream: Any, lines: Sequence[CallLine]) -> None:
    """Print all lines in one write: two processes may share the terminal."""
    if stream is None:
        return
    name = getattr(stream, "encoding", None)
    with contextlib.suppress(OSError, ValueError):  # a closed stream or broken pipe
        width, has_colour = _terminal_width_and_colour(stream)
        texts = [colour_line(line, width) if has_colour else fit_line(line, width) for line in lines]
        stream.write("".join(f"{make_encodable(text, name)}\n" for text in texts))
        stream.flush()


def _terminal_width_and_colour(stream: Any) -> tuple[int | None, bool]:
    try:
        if not stream.isatty():
            return None, False
    except AttributeError:
        return None, False
    is_plain = bool(setting("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return shutil.get_terminal_size().columns, not is_plain


_MAX_OPEN_FILES = 64  # a program that makes a thread per request must not run out of files
log = logging.getLogger("tensortap.tree.files")


class TreeFiles(logging.Handler):
    """A handler that writes `<folder>/process_<pid>_thread_<id>.log`, each created with its first line."""

    keeps_threads_apart = True

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.folder = Path("logs", setting("LTAG")) if folder is None else Path(folder)
        self.folder = self.folder.absolute()  # the program may change its working directory
        self._files: dict[tuple[int, int], TextIO] = {}
        self._has_failed = False
        _make_folder(self.folder)

    def emit(self, record: logging.LogRecord) -> None:
        self.put(record.thread or 0, [self.format(record)])

    def is_plain(self) -> bool:
        """Whether lines need no log record, which takes longer to create than everything else."""
        return self.formatter is None and not self.filters and self.level <= logging.INFO

    def put(self, thread: int, lines: Sequence[str]) -> None:
        if self._has_failed:
            return
        try:
            with self.lock:  # type: ignore[union-attr]
                file = self._file(os.getpid(), thread)
                file.write("\n".join([*lines, ""]))
                file.flush()
        except OSError as error:
            self._has_failed = True
            log.error("the tree is written no more: %s; the program goes on", error)

    def close(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            files, self._files = list(self._files.values()), {}
        for file in files:
            file.close()
        super().close()

    def _file(self, process: int, thread: int) -> TextIO:
        key = process, thread
        file = self._files.get(key)
        if file is None:
            if len(self._files) >= _MAX_OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            path = self.folder / f"process_{process}_thread_{thread}.log"
            file = self._files[key] = path.open("a", encoding="utf-8", errors="backslashreplace")
        return file


def _make_folder(folder: Path) -> None:
    """Create it, and raise now if that fails: inside the program's functions it could only be logged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
        reason = "no permission"
    except OSError as error:
        reason = error.strerror or str(error)
    raise WriteFailedError(
        f"cannot write log files in {str(folder)!r}: {reason}; give h4logger(folder) another folder"
    )
