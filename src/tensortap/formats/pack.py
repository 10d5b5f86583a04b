"""Pack files: many values in one append-only file that becomes an ordinary .npz when it is closed."""

import contextlib
import os
from functools import lru_cache
from typing import NamedTuple

from tensortap.formats.atomic_files import choose_write_strategy, write_all, write_parts
from tensortap.formats.payload import Payload
from tensortap.formats.zip_stored import (
    ZipMember,
    data_descriptor,
    data_descriptor_size,
    directory,
    local_header,
)
from tensortap.kernels.hashing import checksum, crc32

MAX_PACK_NBYTES = 1 << 30
MAX_MEMBERS = 60_000
_BUFFER_NBYTES = 1 << 20
_WRITE_THROUGH_NBYTES = 64 << 10  # larger values gain nothing from buffering


class PackLocation(NamedTuple):
    """Where a value is stored: payload from `start`, elements from `offset`, `length` bytes in all."""

    start: int
    offset: int
    length: int
    checksum: str | None


class PackWriter:
    """Appends members to a new file. Small ones are buffered until `flush`; until `close`, only the index
    knows where they are."""

    def __init__(self, path: str, *, has_spare_core: bool = False) -> None:
        self.name = os.path.basename(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._strategy = choose_write_strategy(os.path.dirname(path), has_spare_core=has_spare_core)
        self._members: list[ZipMember] = []
        self._seen: dict[str, int] = {}
        self._names: set[bytes] = set()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._written = 0  # the bytes from here to `size` are in the buffer
        self.size = 0

    @property
    def is_full(self) -> bool:
        return self.size >= MAX_PACK_NBYTES or len(self._members) >= MAX_MEMBERS

    @property
    def waiting(self) -> int:
        """The number of buffered bytes that are not on disk yet."""
        return self.size - self._written

    def append(self, stem: str, payload: Payload, body: memoryview) -> PackLocation:
        """Add a value; if it cannot be written completely, nothing changes.

        An interrupt may come between any two lines: `size` is authoritative, and set last.
        """
        name = self._member_name(stem, payload.suffix)
        head, at = payload.head, self.size
        length = len(head) + len(body)
        header = local_header(name, at, length)
        start = at + len(header)
        end = start + length + data_descriptor_size(length)
        if length >= _WRITE_THROUGH_NBYTES:
            summed, crc = self._write_now(header, head, body)
            self.size = self._written = end
        else:
            summed, crc = checksum(body), crc32(body, _head_crc(head))
            self._buffer_member(header + head, body, data_descriptor(crc, length))
            self.size = end
        self._members.append(ZipMember(name, crc, length, at))
        self._names.add(name)
        return PackLocation(start, start + len(head), length, summed)

    def flush(self) -> None:
        """Write the buffer; if that fails, it is kept."""
        waiting = self.size - self._written
        if not waiting:
            return
        os.lseek(self._fd, self._written, os.SEEK_SET)
        try:
            write_all(self._fd, [self._buffer[:waiting]])
        except BaseException:  # also on an interrupt: the buffer is written again from its start
            self._restore()
            raise
        self._written = self.size

    def undo_append(self) -> None:
        """Undo the last append."""
        member = self._members.pop()
        self._names.discard(member.name)
        self.size = member.offset
        if self.size < self._written:
            self._written = self.size
            self._restore()

    def close(self) -> None:
        """Write the zip directory: from then on `np.load` opens the file."""
        try:
            self.flush()
            self._restore()
            write_all(self._fd, [directory(self._members, self.size)])
        finally:
            os.close(self._fd)

    def _buffer_member(self, header: bytes, body: memoryview, closing: bytes) -> None:
        """Copy into the buffer, which is never freed: fresh memory costs more than the copy."""
        end = len(header) + len(body) + len(closing)
        if self.waiting + end > _BUFFER_NBYTES:
            self.flush()
        room = self._buffer[self.waiting : self.waiting + end]
        room[: len(header)] = header
        room[len(header) : end - len(closing)] = body
        room[end - len(closing) :] = closing

    def _write_now(self, header: bytes, head: bytes, body: memoryview) -> tuple[str | None, int]:
        self.flush()
        os.lseek(self._fd, self._written, os.SEEK_SET)
        length = len(head) + len(body)
        try:
            return write_parts(
                self._fd,
                header + head,
                body,
                lambda crc: data_descriptor(crc, length),
                self._strategy,
                self.size,
                _head_crc(head),
            )
        except BaseException:  # also on an interrupt: what follows must start where the index says
            self._restore()
            raise

    def _member_name(self, stem: str, suffix: str) -> bytes:
        name = (stem + suffix).encode()
        while name in self._names:  # a second `x` is `x.2`, unless that name is taken
            number = self._seen[stem] = self._seen.get(stem, 1) + 1
            name = f"{stem}.{number}{suffix}".encode()
        return name

    def _restore(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._written)
            os.lseek(self._fd, self._written, os.SEEK_SET)


@lru_cache(maxsize=1024)
def _head_crc(head: bytes) -> int:
    return crc32(head)
