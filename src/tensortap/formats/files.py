"""Bytes onto a disk: a file appears whole under its final name, or not at all."""

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensortap.formats.payload import Payload, Tail
from tensortap.kernels.hashing import Checksum, checksum, crc32

_LARGE = 1 << 20
_BLOCK = 4 << 20  # hashed, then written while still in the cache
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
_NO_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}
_O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)


class Folder:
    """A folder that new files are put into; remembers what its file system can do."""

    def __init__(self, path: str, scratch: str) -> None:
        self.path = path
        self._scratch = scratch
        self._has_tmpfile = _O_TMPFILE is not None and os.path.isdir("/proc/self/fd")
        self._may_reserve = can_reserve(path)
        self._counter = itertools.count()

    def put(self, names: Iterable[str], payload: Payload, body: memoryview) -> tuple[str, str | None]:
        """Write a new file under the first of these names that is free; return it and the checksum."""
        if self._has_tmpfile:
            with contextlib.suppress(_Unsupported):
                return self._put_nameless(names, payload, body)
            self._has_tmpfile = False
        return self._put_renamed(names, payload, body)

    def _put_nameless(
        self, names: Iterable[str], payload: Payload, body: memoryview
    ) -> tuple[str, str | None]:
        # A file without a name until it is whole: even a kill leaves no litter.
        fd = self._open_nameless()
        try:
            checksum = write_payload(fd, payload, body, self._may_reserve)
            # A directory descriptor makes Python use linkat, which follows the link in /proc.
            source = f"/proc/self/fd/{fd}"
            return self._claim(names, lambda path: os.link(source, path, src_dir_fd=fd)), checksum
        finally:
            os.close(fd)

    def _open_nameless(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | (_O_TMPFILE or 0), 0o666)
        except OSError as error:
            if error.errno in _NO_TMPFILE:
                raise _Unsupported from None
            raise

    def _put_renamed(
        self, names: Iterable[str], payload: Payload, body: memoryview
    ) -> tuple[str, str | None]:
        draft = f"{self._scratch}/{os.getpid()}-{threading.get_ident()}-{next(self._counter)}.tmp"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                checksum = write_payload(fd, payload, body, self._may_reserve)
            finally:
                os.close(fd)
            return self._claim(names, lambda path: _link_or_rename(draft, path)), checksum
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)

    def _claim(self, names: Iterable[str], link: Any) -> str:
        for name in names:
            try:
                link(f"{self.path}/{name}")
            except FileExistsError:
                continue
            return name
        raise FileExistsError(errno.EEXIST, "every name is taken", self.path)


class _Unsupported(Exception):
    """The file system has no nameless files."""


def can_reserve(path: str) -> bool:
    """Whether reserving space pays: only where a block device stands behind the file system, since the
    C library imitates it by writing on those that cannot."""
    return hasattr(os, "posix_fallocate") and os.major(os.stat(path).st_dev) != 0


def one_block(bits: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    if not bits.nbytes:
        return memoryview(b"")
    try:
        return memoryview(bits).cast("B")  # type: ignore[arg-type]
    except (TypeError, ValueError):  # numbers that memoryview has no name for
        return bits.reshape(-1).view(np.uint8).data


def write_payload(fd: int, payload: Payload, body: memoryview, may_reserve: bool) -> str | None:
    """Write head, body and tail; return the checksum of the body."""
    return write_parts(fd, payload.head, body, payload.tail, may_reserve)[0]


def write_parts(
    fd: int,
    head: bytes,
    body: memoryview,
    tail: Tail | None,
    may_reserve: bool = False,
    offset: int = 0,
    crc: int = 0,
) -> tuple[str | None, int]:
    """Write from `offset` on; the tail is made from the CRC, which goes on from `crc`. The checksum and the
    CRC of the body are returned."""
    if len(body) > _BLOCK:
        return _write_blocks(fd, head, body, tail, may_reserve, offset, crc)
    parts: list[Any] = [head, body]
    if tail is not None:
        crc = crc32(body, crc)
        parts.append(tail(crc))
    if may_reserve and len(body) >= _LARGE:
        os.posix_fallocate(fd, offset, len(head) + len(body))
    write_all(fd, parts)
    return checksum(body), crc


def _write_blocks(
    fd: int, head: bytes, body: memoryview, tail: Tail | None, may_reserve: bool, offset: int, crc: int
) -> tuple[str | None, int]:
    if may_reserve:
        os.posix_fallocate(fd, offset, len(head) + len(body))
    summed = Checksum()
    for at in range(0, len(body), _BLOCK):
        block = body[at : at + _BLOCK]
        summed.update(block)
        if tail is not None:
            crc = crc32(block, crc)
        write_all(fd, [block] if at else [head, block])
    if tail is not None:
        write_all(fd, [tail(crc)])
    return summed.text(), crc


def write_all(fd: int, parts: list[Any]) -> None:
    total = 0
    for part in parts:
        total += len(part)
    written = os.writev(fd, parts)
    if written < total:
        _write_rest(fd, memoryview(b"".join(parts))[written:])


def _write_rest(fd: int, rest: memoryview) -> None:
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
