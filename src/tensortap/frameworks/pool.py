"""Recycled buffers: a fresh allocation costs several times the copy it is made for."""

import mmap
import threading
from collections import defaultdict
from typing import Any

import numpy as np

_MIN_SIZE = 1 << 16
_COPY_WITH_GIL = 1 << 18  # bytes, copied in some ten microseconds
_MMAP_FROM = 1 << 20  # from here on buffers begin at a page


class Buffer:
    """Bytes lent by a pool; `release` gives them back, and nobody may touch them afterwards."""

    __slots__ = ("_pool", "array", "whole")

    def __init__(self, pool: "BufferPool", data: np.ndarray[Any, Any], start: int, nbytes: int) -> None:
        self._pool = pool
        self.whole = data
        self.array = data[start : start + nbytes]

    def release(self) -> None:
        self._pool.take_back(self.whole)


class BufferPool:
    """Buffers by size class. Kept ones are bounded by `keep` bytes; the rest goes back to the system."""

    def __init__(self, keep: int = 256 << 20) -> None:
        self._keep = keep
        self._kept = 0
        self._free: dict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        self._lock = threading.Lock()

    def lend(self, nbytes: int, before: int = 0, after: int = 0) -> Buffer:
        """That many bytes, with room before and after them in `whole`."""
        size = size_class(before + nbytes + after)
        with self._lock:
            free = self._free[size]
            data = free.pop() if free else None
            if data is not None:
                self._kept -= size
        return Buffer(self, _allocate(size) if data is None else data, before, nbytes)

    def copy(self, bits: np.ndarray[Any, Any], before: int = 0, after: int = 0) -> Buffer:
        """A lent buffer that holds these bytes in C order."""
        buffer = self.lend(bits.nbytes, before, after)
        if 0 < bits.nbytes <= _COPY_WITH_GIL and bits.flags.c_contiguous:
            # numpy would give the interpreter's lock away for this, and the writer thread would take it.
            buffer.array.data[:] = bits.reshape(-1).view(np.uint8).data
        elif bits.nbytes:
            np.copyto(buffer.array.view(bits.dtype).reshape(bits.shape), bits)
        return buffer

    def take_back(self, data: np.ndarray[Any, Any]) -> None:
        with self._lock:
            if self._kept + data.nbytes <= self._keep:
                self._kept += data.nbytes
                self._free[data.nbytes].append(data)


def size_class(nbytes: int) -> int:
    """The next of four sizes per power of two, so that at most a quarter is lent for nothing."""
    if nbytes <= _MIN_SIZE:
        return _MIN_SIZE
    step = 1 << (nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


def _allocate(size: int) -> np.ndarray[Any, Any]:
    if size < _MMAP_FROM:
        return np.empty(size, np.uint8)
    # Private, not the default shared mapping: shared memory faults slower and gets no huge pages.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
