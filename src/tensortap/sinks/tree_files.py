"""Log files for trees: one per process and thread, so that nothing is ever mixed."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tensortap.core.errors import WriteFailedError
from tensortap.core.settings import setting

_MOST_OPEN = 64  # a program that makes a thread per request must not run out of files
log = logging.getLogger("tensortap.tree.files")


class TreeFiles(logging.Handler):
    """A handler that writes `<folder>/process_<pid>_thread_<id>.log`, each from its first line on."""

    keeps_threads_apart = True

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.folder = Path("logs", setting("LTAG")) if folder is None else Path(folder)
        self.folder = self.folder.absolute()  # the program may go elsewhere
        self._files: dict[tuple[int, int], TextIO] = {}
        self._has_failed = False
        _make(self.folder)

    def emit(self, record: logging.LogRecord) -> None:
        self.put(record.thread or 0, [self.format(record)])

    def is_plain(self) -> bool:
        """Whether lines are written just as they are: making a log record takes longer than all the rest."""
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
            if len(self._files) >= _MOST_OPEN:
                self._files.pop(next(iter(self._files))).close()
            path = self.folder / f"process_{process}_thread_{thread}.log"
            file = self._files[key] = path.open("a", encoding="utf-8", errors="backslashreplace")
        return file


def _make(folder: Path) -> None:
    """Said at the door: later, inside the program's functions, it could only be logged."""
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
