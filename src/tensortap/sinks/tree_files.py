"""Log files for call trees: one per process and thread, so that lines never interleave."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tensortap.core.errors import WriteFailedError
from tensortap.core.settings import setting

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
