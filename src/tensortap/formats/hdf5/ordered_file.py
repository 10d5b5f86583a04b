"""A file that is whole at every moment: changes in place reach the disk in an order that readers can bear.

HDF5 changes its tables of contents in place when it is flushed, in no safe order: a process that is killed
meanwhile leaves a file whose index points behind its end. Written through this file, data goes behind the
committed end at once, and changes of the tables wait until the library has handed over all of them. Then
they go out so that nothing points to what is not there yet: the length of the file, heaps of names and
texts, trees from the root down, new names, and last the headers with the lengths of the datasets.

This holds for the oldest layout of HDF5 (version 1 trees and headers, which are written as one block each)
in files that never use freed space again.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

_SUPERBLOCK, _CONTENT, _HEAP, _TREE, _LINKS, _HEADER = range(6)
_HEAP_HEADER, _NOTHING_FREE = 32, (1).to_bytes(8, "little")
_PRIORITY_BY_SIGNATURE = {b"HEAP": _HEAP, b"TREE": _TREE, b"SNOD": _LINKS}


class OrderedFile:
    """A new file for h5py, as a file-like object."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Shared, like HDF5 readers: others may read, none may write.
        lock_file(self._descriptor, fcntl.LOCK_SH)
        self._process = os.getpid()
        self._position = 0
        self._committed = 0  # bytes
        self._is_deferring = False
        self._pending: dict[int, bytes] = {}
        self._failure: OSError | None = None

    def commit(self, flush: Callable[[], object]) -> None:
        """Let the library flush, then apply its in-place changes in a safe order."""
        self._is_deferring = True
        try:
            flush()
        finally:
            self._is_deferring = False
        self.retry_failed_writes()
        self._mark_heaps_full()
        for address in sorted(
            self._pending, key=lambda address: _write_priority(address, self._pending[address])
        ):
            _write_all(self._descriptor, self._pending[address], address)
            del self._pending[address]
        self._committed = self._size()

    def _mark_heaps_full(self) -> None:
        """A heap whose names lie apart from its header is readable only if both agree on the free list; an
        empty free list agrees with the names before and after."""
        for address, data in self._pending.items():
            if data[:4] == b"HEAP" and len(data) == _HEAP_HEADER:
                before = os.pread(self._descriptor, _HEAP_HEADER, address)
                _write_all(self._descriptor, before[:16] + _NOTHING_FREE + before[24:], address)

    def retry_failed_writes(self) -> None:
        """Write what a full disk has refused so far, or raise its error."""
        if self._failure is None:
            return
        for address in sorted(address for address in self._pending if address >= self._committed):
            _write_all(self._descriptor, self._pending[address], address)
            del self._pending[address]
        self._failure = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._position, self._size())[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        target = memoryview(buffer).cast("B")
        count = os.preadv(self._descriptor, [target], self._position)
        target[count:] = bytes(len(target) - count)
        for address, data in self._pending.items():
            _overlay(target, self._position, data, address)
        self._position += len(target)
        return len(target)

    def write(self, data: memoryview) -> int:
        start, self._position = self._position, self._position + len(data)
        if os.getpid() != self._process:  # a forked child flushes its copy of the library's memory at exit
            return len(data)
        is_change = self._is_deferring and start < self._committed
        if is_change or not self._try_write(_write_all, data, start):
            self._pending[start] = bytes(data)
        return len(data)

    def truncate(self, size: int) -> int:
        if os.getpid() == self._process:
            self._try_write(os.ftruncate, size)
        return size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try_write(self, action: Callable[..., object], *arguments: object) -> bool:
        """Whether it succeeded. The library must not see an exception: it would continue regardless."""
        if self._failure is None:
            try:
                action(self._descriptor, *arguments)
            except OSError as error:
                self._failure = error
        return self._failure is None

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size


def lock_file(descriptor: int, kind: int) -> None:
    """Raises BlockingIOError if the file is locked elsewhere; file systems without locks are ignored."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _write_priority(address: int, data: bytes) -> tuple[int, int]:
    if address == 0:
        return _SUPERBLOCK, 0
    mark = _PRIORITY_BY_SIGNATURE.get(data[:4])
    if mark is not None:
        level = data[5] if mark == _TREE else 0
        return mark, -level
    # A header: version 1, and one link to it.
    return (_HEADER if data[:2] == b"\1\0" and data[4:8] == b"\1\0\0\0" else _CONTENT), 0


def _overlay(target: memoryview, position: int, data: bytes, address: int) -> None:
    start, end = max(position, address), min(position + len(target), address + len(data))
    if start < end:
        target[start - position : end - position] = data[start - address : end - address]


def _write_all(descriptor: int, data: memoryview | bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written
