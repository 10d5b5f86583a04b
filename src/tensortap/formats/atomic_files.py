"""Atomic file writes: a file appears complete under its final name, or not at all."""

import contextlib
import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.formats.payload import Payload, TailBuilder
from tensortap.kernels.hashing import RunningChecksum, checksum, crc32

LARGE_NBYTES = 1 << 20
DIRECT_ALIGNMENT = 4096  # O_DIRECT writes whole pages
_MIN_NBYTES_FOR_THREAD = 16 << 20  # from here on a checksum thread pays
_BLOCK_NBYTES = 4 << 20  # hashed, then written while still in the cache
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
_NO_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}
_O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)


class AtomicFolder:
    """Writes new files into a folder; remembers what its file system supports."""

    def __init__(self, path: str, scratch: str, *, has_spare_core: bool = False) -> None:
        self.path = path
        self._scratch = scratch
        self._has_tmpfile = _O_TMPFILE is not None and os.path.isdir("/proc/self/fd")
        self._strategy = choose_write_strategy(path, has_spare_core=has_spare_core)
        self._has_direct = hasattr(os, "O_DIRECT")
        self._counter = itertools.count()

    def write_new(self, names: Iterable[str], payload: Payload, body: memoryview) -> tuple[str, str | None]:
        """Write a new file under the first of these names that is free; returns the name and the checksum."""
        if self._has_tmpfile:
            try:
                return self._write_unnamed(names, payload, body)
            except _Unsupported:
                self._has_tmpfile = False
        return self._write_and_rename(names, payload, body)

    def _write_unnamed(
        self, names: Iterable[str], payload: Payload, body: memoryview
    ) -> tuple[str, str | None]:
        # Unnamed until it is complete: even a kill leaves nothing behind.
        fd = self._open_unnamed()
        try:
            checksum = self._write(fd, payload, body)
            source = f"/proc/self/fd/{fd}"
            for name in names:
                try:
                    # A directory descriptor makes Python use linkat, which follows the link in /proc.
                    os.link(source, f"{self.path}/{name}", src_dir_fd=fd)
                except FileExistsError:
                    continue
                return name, checksum
            raise _names_taken_error(self.path)
        finally:
            os.close(fd)

    def _open_unnamed(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | (_O_TMPFILE or 0), 0o666)
        except OSError as error:
            if error.errno in _NO_TMPFILE:
                raise _Unsupported from None
            raise

    def _write_and_rename(
        self, names: Iterable[str], payload: Payload, body: memoryview
    ) -> tuple[str, str | None]:
        draft = f"{self._scratch}/{os.getpid()}-{threading.get_ident()}-{next(self._counter)}.tmp"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                checksum = self._write(fd, payload, body)
            finally:
                os.close(fd)
            return self._claim(names, draft), checksum
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)

    def _write(self, fd: int, payload: Payload, body: memoryview) -> str | None:
        if payload.staging is not None and self._has_direct:
            with contextlib.suppress(_Unsupported):
                return write_direct(fd, payload, payload.staging, body)
            self._has_direct = False
        return write_parts(fd, payload.head, body, payload.tail, self._strategy)[0]

    def _claim(self, names: Iterable[str], draft: str) -> str:
        for name in names:
            with contextlib.suppress(FileExistsError):
                _link_or_rename(draft, f"{self.path}/{name}")
                return name
        raise _names_taken_error(self.path)


class _Unsupported(Exception):
    """The file system has no O_TMPFILE, or no O_DIRECT."""


def _names_taken_error(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "every name is taken", path)


def contiguous_bytes(bits: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    if not bits.nbytes:
        return memoryview(b"")
    try:
        return memoryview(bits).cast("B")  # type: ignore[arg-type]
    except (TypeError, ValueError):  # dtypes without a buffer format
        return bits.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """How to write: whether preallocating pays, and whether a second core may compute checksums, as it may
    when the program waits for us anyway."""

    may_reserve: bool = False
    has_spare_core: bool = False


def choose_write_strategy(path: str, *, has_spare_core: bool) -> WriteStrategy:
    """Preallocating pays only on a block device: elsewhere the C library emulates it by writing."""
    may_reserve = hasattr(os, "posix_fallocate") and os.major(os.stat(path).st_dev) != 0
    return WriteStrategy(may_reserve, has_spare_core and (os.cpu_count() or 1) > 1)


def write_parts(
    fd: int,
    head: bytes,
    body: memoryview,
    tail: TailBuilder | None,
    drive: WriteStrategy,
    offset: int = 0,
    crc: int = 0,
) -> tuple[str | None, int]:
    """Write from `offset` on; the tail is built from the CRC, which continues from `crc`. Returns the
    checksum and the CRC of the body."""
    if len(body) >= LARGE_NBYTES:
        return _write_large(fd, head, body, tail, drive, offset, crc)
    parts: list[Any] = [head, body]
    if tail is not None:
        crc = crc32(body, crc)
        parts.append(tail(crc))
    write_all(fd, parts)
    return checksum(body), crc


def _write_large(
    fd: int,
    head: bytes,
    body: memoryview,
    tail: TailBuilder | None,
    drive: WriteStrategy,
    offset: int,
    crc: int,
) -> tuple[str | None, int]:
    if drive.may_reserve:
        os.posix_fallocate(fd, offset, len(head) + len(body))
    sums = RunningChecksums(crc if tail is not None else None)
    if drive.has_spare_core and len(body) >= _MIN_NBYTES_FOR_THREAD:
        _write_with_checksum_thread(fd, head, body, sums)
    else:
        _write_blocks(fd, head, body, sums)
    if tail is not None:
        write_all(fd, [tail(sums.crc)])
    return sums.checksum.text(), sums.crc


class RunningChecksums:
    """The checksum of the blocks so far, and their CRC if requested."""

    def __init__(self, crc: int | None) -> None:
        self.checksum = RunningChecksum()
        self._wants_crc = crc is not None
        self.crc = crc or 0

    def add(self, block: memoryview) -> None:
        self.checksum.update(block)
        if self._wants_crc:
            self.crc = crc32(block, self.crc)


def _write_blocks(fd: int, head: bytes, body: memoryview, sums: RunningChecksums) -> None:
    for at in range(0, len(body), _BLOCK_NBYTES):
        block = body[at : at + _BLOCK_NBYTES]
        sums.add(block)
        write_all(fd, [block] if at else [head, block])


def _write_with_checksum_thread(fd: int, head: bytes, body: memoryview, sums: RunningChecksums) -> None:
    """Write while another thread computes the checksum; both release the GIL."""
    adding = threading.Thread(target=sums.add, args=(body,), name="tensortap-sums")
    adding.start()
    try:
        write_all(fd, [head, body])
    finally:
        adding.join()


def write_direct(fd: int, payload: Payload, staging: memoryview, body: memoryview) -> str | None:
    """Write past the page cache, which saves a tenth of the CPU time of a training step: one write from
    the staging memory, then truncate to the real length."""
    sums = RunningChecksums(0 if payload.tail is not None else None)
    sums.add(body)
    tail = payload.tail(sums.crc) if payload.tail is not None else b""
    end = len(payload.head) + len(body)
    staging[: len(payload.head)] = payload.head
    staging[end : end + len(tail)] = tail
    size = end + len(tail)
    _write_aligned(fd, staging[: -(-size // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT])
    os.ftruncate(fd, size)
    return sums.checksum.text()


def _write_aligned(fd: int, blocks: memoryview) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        written = os.write(fd, blocks)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        raise _Unsupported from None
    while written < len(blocks):
        written += os.write(fd, blocks[written:])


def write_all(fd: int, parts: list[Any]) -> None:
    total = 0
    for part in parts:
        total += len(part)
    written = os.writev(fd, parts)
    if written < total:
        _write_remaining(fd, parts, written)


def _write_remaining(fd: int, parts: list[Any], written: int) -> None:
    """One call writes at most 2 GiB, and less when the disk fills up."""
    for part in parts:
        rest = memoryview(part)[written:]
        written = max(0, written - len(part))
        while rest:
            rest = rest[os.write(fd, rest) :]


def _link_or_rename(draft: str, path: str) -> None:
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path) from None
        os.rename(draft, path)
