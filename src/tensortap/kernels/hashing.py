"""Checksums of bytes, with the fastest library that is installed."""

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

Data = Any  # a C-contiguous buffer: bytes, a memoryview, a numpy array of any type


def checksum(data: Data) -> str | None:
    """`xxh3:` and 16 hexadecimal digits, or None where xxhash is not installed."""
    make = _xxh3()
    return None if make is None else _text(make(_bytes(data)))


class Checksum:
    """The checksum of pieces as they come."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        make = _xxh3()
        self._state = None if make is None else make()

    def update(self, data: Data) -> None:
        if self._state is not None:
            self._state.update(_bytes(data))

    def text(self) -> str | None:
        """The checksum of all pieces so far; the same as that of the whole."""
        return None if self._state is None else _text(self._state)


def crc32(data: Data, start: int = 0) -> int:
    """The CRC-32 of zip files; `start` is that of the bytes before."""
    return _crc32()(_bytes(data), start)


@lru_cache(maxsize=1)
def _xxh3() -> Callable[..., Any] | None:
    try:
        from xxhash import xxh3_64
    except ImportError:
        return None
    make: Callable[..., Any] = xxh3_64
    return make


@lru_cache(maxsize=1)
def _crc32() -> Callable[[Any, int], int]:
    try:
        from isal.isal_zlib import crc32 as fast
    except ImportError:
        return zlib.crc32
    quick: Callable[[Any, int], int] = fast
    return quick


def _text(state: Any) -> str:
    return f"xxh3:{state.hexdigest()}"


def _bytes(data: Data) -> Any:
    """The same memory as plain bytes; some number types have no buffer format of their own."""
    if not isinstance(data, np.ndarray):
        return data
    if not data.flags.c_contiguous:
        raise ValueError("the bytes of a checksum must lie in one block; make the array contiguous first")
    return data.reshape(-1).view(np.uint8).data
