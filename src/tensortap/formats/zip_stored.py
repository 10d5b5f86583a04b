"""An uncompressed zip file, written front to back: local headers, aligned data, then the directory."""

import struct
from typing import NamedTuple

ALIGNMENT = 64
_FLAGS = 0x0808  # sizes and checksum follow the data; the name is UTF-8
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_UNIX, _MODE = 3 << 8, 0o644 << 16
_DATE = 0x21  # 1980-01-01: the index has the time, and equal values give equal files
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_PADDING_ID = 0x5454


class ZipMember(NamedTuple):
    name: bytes
    crc: int
    size: int
    offset: int  # of the local header


def local_header(name: bytes, offset: int, size: int) -> bytes:
    """The header of a member, padded so that its data is aligned."""
    wide = struct.pack("<2H2Q", 1, 16, 0, 0) if size >= _FULL_32 else b""
    start = offset + _LOCAL.size + len(name) + len(wide) + 4
    padding = -start % ALIGNMENT
    extra = wide + struct.pack("<2H", _PADDING_ID, padding) + b"\0" * padding
    version = 45 if wide else 20
    return _LOCAL.pack(b"PK\3\4", version, _FLAGS, 0, 0, _DATE, 0, 0, 0, len(name), len(extra)) + name + extra


def data_descriptor(crc: int, size: int) -> bytes:
    """The record after the data, since the CRC is not known before."""
    return struct.pack("<4sLQQ" if size >= _FULL_32 else "<4s3L", b"PK\7\x08", crc, size, size)


def data_descriptor_size(size: int) -> int:
    return 24 if size >= _FULL_32 else 16


def directory(members: list[ZipMember], offset: int) -> bytes:
    """The end of the file, from `offset` on: after it, any zip reader opens the file."""
    rows = b"".join(directory_row(member) for member in members)
    return rows + _end_records(len(members), len(rows), offset)


def directory_after_first(members: list[ZipMember], first: ZipMember, offset: int) -> bytes:
    """What follows the row of `first` in a directory that starts with it."""
    rows = b"".join(directory_row(member) for member in members)
    return rows + _end_records(len(members) + 1, len(directory_row(first)) + len(rows), offset)


def directory_row(member: ZipMember) -> bytes:
    """The row of a member in the central directory."""
    name, crc, size, offset = member
    if size >= _FULL_32 or offset >= _FULL_32:
        extra = struct.pack("<2H3Q", 1, 24, size, size, offset)
        return _central_row(name, crc, _FULL_32, _FULL_32, 45, len(extra)) + extra
    return _central_row(name, crc, size, offset, 20, 0)


def _central_row(name: bytes, crc: int, size: int, offset: int, version: int, extra: int) -> bytes:
    date = (b"PK\1\2", _UNIX | version, version, _FLAGS, 0, 0, _DATE)
    return _CENTRAL.pack(*date, crc, size, size, len(name), extra, 0, 0, 0, _MODE, offset) + name


def _end_records(count: int, size: int, start: int) -> bytes:
    return _zip64_end_record(count, size, start) + _end_record(count, size, start)


def _zip64_end_record(count: int, size: int, start: int) -> bytes:
    if count < _FULL_16 and start + size < _FULL_32:
        return b""
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    return end + struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)


def _end_record(count: int, size: int, start: int) -> bytes:
    count, size, start = min(count, _FULL_16), min(size, _FULL_32), min(start, _FULL_32)
    return struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, start, 0)
