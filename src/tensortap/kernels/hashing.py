"""Checksums of bytes, with the fastest installed library."""

import zlib
from contextlib import suppress
from typing import Any

import numpy as np

BytesLike = Any  # a C-contiguous buffer: bytes, a memoryview, a numpy array of any type
_xxh3: Any = None
_xxh3_hexdigest: Any = None
_crc32: Any = zlib.crc32
with suppress(ImportError):
    import xxhash

    _xxh3, _xxh3_hexdigest = xxhash.xxh3_64, xxhash.xxh3_64_hexdigest
with suppress(ImportError):
    from isal import isal_zlib

    _crc32 = isal_zlib.crc32


def checksum(data: BytesLike) -> str | None:
    """`xxh3:` and 16 hexadecimal digits, or None where xxhash is not installed."""
    if _xxh3_hexdigest is None:
        return None
    return f"xxh3:{_xxh3_hexdigest(data if type(data) is memoryview else _byte_view(data))}"


class RunningChecksum:
    """A checksum that is updated chunk by chunk."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = None if _xxh3 is None else _xxh3()

    def update(self, data: BytesLike) -> None:
        if self._state is not None:
            self._state.update(_byte_view(data))

    def text(self) -> str | None:
        """The checksum of all chunks so far, equal to that of their concatenation."""
        return None if self._state is None else f"xxh3:{self._state.hexdigest()}"


def crc32(data: BytesLike, start: int = 0) -> int:
    """The CRC-32 of zip files, continued from `start`."""
    return int(_crc32(data if type(data) is memoryview else _byte_view(data), start))


def _byte_view(data: BytesLike) -> Any:
    """The same memory as uint8; some dtypes have no buffer format of their own."""
    if not isinstance(data, np.ndarray):
        return data
    if not data.flags.c_contiguous:
        raise ValueError("the bytes of a checksum must lie in one block; make the array contiguous first")
    return data.reshape(-1).view(np.uint8).data
