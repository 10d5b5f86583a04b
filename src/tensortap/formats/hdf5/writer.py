"""An open trace file: which dataset a value goes to, and when buffered rows are committed to disk."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tensortap.core.errors import UnsupportedValueError, WriteFailedError
from tensortap.formats.hdf5.ordered_file import OrderedFile, lock_file
from tensortap.formats.hdf5.schema import StepAndRank, StorageOptions, ValueDataset, create_file
from tensortap.formats.hdf5.values import StoredCell

_COMMIT_INTERVAL = 1.0  # seconds between automatic commits
_MAX_PENDING_NBYTES = 64 << 20
_MAX_HOLE_NBYTES = 64 << 20


class TraceWriter:
    """The open file with the datasets of each name."""

    def __init__(self, path: Path, how: StorageOptions) -> None:
        self.path, self.options = path, how
        self._process = os.getpid()
        self._parts: dict[str, list[ValueDataset]] = {}
        self._counts: dict[str, int] = {}
        self._pending_nbytes = self._holes = 0
        with _explain_os_errors(path):
            self._bytes = OrderedFile(path)
            self.library = create_file(path, self._bytes)
        self.is_open = True
        self.commit()

    def add(self, name: str, cell: StoredCell, at: StepAndRank) -> str:
        """Add a value; returns the key of its dataset."""
        if not self.is_open or os.getpid() != self._process:
            raise UnsupportedValueError(
                f"{self.path} is closed, or was opened by the process that this one was forked from"
            )
        part = self._dataset_for(name, cell, at)
        position = self._counts.get(name, 0)
        before = part.pending_nbytes
        with self._raising_write_errors():
            part.add(cell, at, position)
        self._pending_nbytes += part.pending_nbytes - before
        self._counts[name] = position + 1
        return part.key

    def commit_if_due(self) -> None:
        if self.is_open and (
            time.monotonic() - self._last > _COMMIT_INTERVAL or self._pending_nbytes > _MAX_PENDING_NBYTES
        ):
            self.commit(spares_space=self._pending_nbytes <= _MAX_PENDING_NBYTES)

    def commit(self, *, spares_space: bool = False) -> None:
        """Commit buffered rows to disk. With `spares_space`, a compressed chunk is not rewritten for a few
        more rows once the holes add up."""
        if not self.is_open or os.getpid() != self._process:
            return
        spares_space = spares_space and self._holes > _MAX_HOLE_NBYTES
        with _explain_os_errors(self.path):
            self.write_out(spares_space=spares_space)
            self._bytes.commit(self.library.flush)
        self._last = time.monotonic()

    def write_out(self, *, spares_space: bool = False) -> None:
        """Write everything to the library, so that it can be read in this process."""
        for part in [part for parts in self._parts.values() for part in parts if part.pending_nbytes]:
            if part.leaves_hole:
                if spares_space:
                    continue
                self._holes += part.chunk_bytes
            part.write()
        self._pending_nbytes = sum(part.pending_nbytes for parts in self._parts.values() for part in parts)

    def close(self) -> None:
        if not self.is_open or os.getpid() != self._process:
            return
        try:
            self.commit()
        finally:
            self.is_open = False
            with _explain_os_errors(self.path):
                self.library.close()
                self._bytes.close()

    @contextlib.contextmanager
    def _raising_write_errors(self) -> Iterator[None]:
        """Raise write errors of the disk before more is buffered."""
        with _explain_os_errors(self.path):
            self._bytes.retry_failed_writes()
            yield
            self._bytes.retry_failed_writes()

    def _dataset_for(self, name: str, cell: StoredCell, at: StepAndRank) -> ValueDataset:
        parts = self._parts.setdefault(name, [])
        for part in parts:
            if part.accepts(cell, at):
                return part
        with self._raising_write_errors():
            dataset = ValueDataset(self.library, name, len(parts) + 1, cell, at, self.options)
        parts.append(dataset)
        return dataset


def move_existing_aside(path: Path, existing_ok: bool) -> None:
    with _explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give the name of a file for the trace")
        if not existing_ok:
            raise ValueError(
                f"{path} exists already, and existing_ok is False; give another name, or existing_ok=True to "
                f"keep the old one as {path.name}.old"
            )
        _check_not_open_elsewhere(path)
        os.replace(path, f"{path}.old")


def _check_not_open_elsewhere(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock_file(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explain_os_errors(path: Path) -> Iterator[None]:
    """OS errors as WriteFailedError with a full sentence."""
    try:
        yield
    except BlockingIOError:
        raise WriteFailedError(
            f"{path} is open elsewhere, in this or another program; close it there, or give another name"
        ) from None
    except WriteFailedError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        failed = WriteFailedError(f"cannot write to {path}: {reason}; what was flushed before is safe")
        failed.errno = error.errno
        raise failed from error
