"""Pack files: many values in one append-only file that becomes an ordinary .npz when it is closed."""

import contextlib
import os
from typing import NamedTuple

from tensortap.formats.files import drive_for, write_all, write_parts
from tensortap.formats.payload import Payload
from tensortap.formats.zip_stored import Member, descriptor, descriptor_size, directory, local_header
from tensortap.kernels.hashing import crc32


class Place(NamedTuple):
    """Where a value lies: its payload from `start`, its numbers from `offset`, `length` bytes in all."""

    start: int
    offset: int
    length: int
    checksum: str | None


class PackWriter:
    """Appends members to a new file. Until `close`, the index alone knows where they are."""

    def __init__(self, path: str, *, has_spare_core: bool = False) -> None:
        self.name = os.path.basename(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._drive = drive_for(os.path.dirname(path), has_spare_core=has_spare_core)
        self._members: list[Member] = []
        self._seen: dict[str, int] = {}
        self._names: set[str] = set()
        self.size = 0

    @property
    def count(self) -> int:
        return len(self._members)

    def append(self, stem: str, payload: Payload, body: memoryview) -> Place:
        """Add a value; when it cannot be written whole, the file is as it was before."""
        name = self._member_name(stem, payload.suffix)
        length = len(payload.head) + len(body)
        header = local_header(name, self.size, length)
        start = self.size + len(header)
        try:
            checksum, crc = write_parts(
                self._fd,
                header + payload.head,
                body,
                lambda whole: descriptor(whole, length),
                self._drive,
                self.size,
                crc32(payload.head),
            )
        except BaseException:
            # Also an interrupt: what follows must begin where the index says.
            self._restore()
            raise
        self._members.append(Member(name, crc, length, self.size))
        self.size = start + length + descriptor_size(length)
        return Place(start, start + len(payload.head), length, checksum)

    def take_back(self) -> None:
        """Undo the last append."""
        last = self._members.pop()
        self._names.discard(last.name.decode())
        self.size = last.offset
        self._restore()

    def close(self) -> None:
        """Write the directory: from now on `np.load` opens the file."""
        try:
            write_all(self._fd, [directory(self._members, self.size)])
        finally:
            os.close(self._fd)

    def _member_name(self, stem: str, suffix: str) -> bytes:
        name = stem + suffix
        while name in self._names:  # `x` for the second time is `x.2`, unless that is somebody's name
            number = self._seen[stem] = self._seen.get(stem, 1) + 1
            name = f"{stem}.{number}{suffix}"
        self._names.add(name)
        return name.encode()

    def _restore(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
