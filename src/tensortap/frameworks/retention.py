"""What is retained of a captured value (copy on write, copy, reference, statistics), and the buffer pool.

Buffers are recycled because a fresh allocation costs several times the copy it is made for.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from tensortap.frameworks.base import Framework, framework_of
from tensortap.frameworks.torch_if_loaded import loaded_torch_summary
from tensortap.kernels.statistics import statistics

RetentionPolicy = Callable[[Any], Any]


def retention_policy(keep: str | RetentionPolicy) -> RetentionPolicy:
    """The function for a `keep=` word; a user's function is returned as it is."""
    if callable(keep):
        return keep
    policy = _POLICIES.get(keep) if isinstance(keep, str) else None
    if policy is None:
        raise ValueError(
            f"keep is {keep!r}; give {', '.join(map(repr, _POLICIES))}, or a function of the value"
        )
    return policy


def keep_unchanged(value: Any) -> Any:
    """The value itself, with its autograd graph, for consumers that use it at once."""
    return value


def specialise_for_torch(keep: RetentionPolicy) -> RetentionPolicy:
    """The same policy for values known to be torch tensors."""
    if keep is not copy_on_write or sys.modules.get("torch") is None:
        return keep
    from tensortap.frameworks.torch_snapshots import share_copy_on_write

    return share_copy_on_write


def copy_on_write(value: Any) -> Any:
    """A snapshot that shares memory until either is written to, where supported; else a copy."""
    kind: type = type(value)
    share = _sharing_by_type.get(kind)  # a plain dict: this runs for every captured value
    return share(value) if share is not None else _resolve_sharing(kind, framework_of(value))(value)


def clone(value: Any) -> Any:
    """An independent copy."""
    framework = framework_of(value)
    if framework.name != "torch":
        return framework.snapshot(value)
    from tensortap.frameworks.torch_snapshots import copy_tensor

    return copy_tensor(value)


def detached_reference(value: Any) -> Any:
    """The value itself, detached: later in-place writes show."""
    return value.detach() if framework_of(value).name == "torch" else value


def copy_to_host(value: Any) -> Any:
    """A copy in host memory."""
    if framework_of(value).name != "torch" or value.device.type == "cpu":
        return copy_on_write(value)
    from tensortap.frameworks.torch_snapshots import copy_tensor_to_host

    return copy_tensor_to_host(value)


def summarise_value(value: Any) -> Any:
    """min, max, mean, std, norm and the number of NaN and Inf instead of the value."""
    framework = framework_of(value)
    if framework.name != "torch":
        return statistics(framework.bits(value), framework.describe(value).dtype)
    return loaded_torch_summary().summarise_tensor(value)


_POLICIES: dict[str, RetentionPolicy] = {
    "cow": copy_on_write,
    "clone": clone,
    "ref": detached_reference,
    "cpu": copy_to_host,
    "stats": summarise_value,
}


_sharing_by_type: dict[type, RetentionPolicy] = {}


def _resolve_sharing(kind: type, framework: Framework) -> RetentionPolicy:
    if framework.name != "torch":
        return framework.snapshot  # not cached: another framework may be registered for these values
    from tensortap.frameworks.torch_snapshots import (
        share_copy_on_write,  # torch is there already: the value is its own
    )

    return _sharing_by_type.setdefault(kind, share_copy_on_write)


_MIN_SIZE = 1 << 16
COPY_WITH_GIL = 1 << 18  # bytes, copied in some ten microseconds
_MMAP_FROM = 1 << 20  # from here on buffers are page-aligned


class Buffer:
    """Bytes borrowed from a pool; must not be used after `release`."""

    __slots__ = ("_pool", "array", "whole")

    def __init__(self, pool: BufferPool, data: np.ndarray[Any, Any], start: int, nbytes: int) -> None:
        self._pool = pool
        self.whole = data
        self.array = data[start : start + nbytes]

    def release(self) -> None:
        self._pool.reclaim(self.whole)


class BufferPool:
    """Recycled buffers by size class, at most `keep` bytes of free ones."""

    def __init__(self, keep: int = 256 << 20) -> None:
        self._keep = keep
        self._kept = 0
        self._free: dict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        self._lock = threading.Lock()

    def acquire(self, nbytes: int, before: int = 0, after: int = 0) -> Buffer:
        """A buffer of that many bytes, with room before and after them in `whole`."""
        size = size_class(before + nbytes + after)
        with self._lock:
            free = self._free[size]
            data = free.pop() if free else None
            if data is not None:
                self._kept -= size
        return Buffer(self, _allocate(size) if data is None else data, before, nbytes)

    def copy(self, bits: np.ndarray[Any, Any], before: int = 0, after: int = 0) -> Buffer:
        """A buffer that holds these bytes in C order."""
        buffer = self.acquire(bits.nbytes, before, after)
        if 0 < bits.nbytes <= COPY_WITH_GIL and bits.flags.c_contiguous:
            # numpy would release the GIL for this, and the writer thread would take it.
            buffer.array.data[:] = bits.reshape(-1).view(np.uint8).data
        elif bits.nbytes:
            np.copyto(buffer.array.view(bits.dtype).reshape(bits.shape), bits)
        return buffer

    def reclaim(self, data: np.ndarray[Any, Any]) -> None:
        with self._lock:
            if self._kept + data.nbytes <= self._keep:
                self._kept += data.nbytes
                self._free[data.nbytes].append(data)


def size_class(nbytes: int) -> int:
    """The next of four sizes per power of two, so that at most a quarter is wasted."""
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
