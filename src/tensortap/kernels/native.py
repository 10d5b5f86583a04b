"""The kernels compiled from C, if they could be built; otherwise numpy does the same work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from tensortap.kernels.decode import Array, float8_table

# The order of the list in _native.c; 8-bit floats share a loop there, and complex dtypes have none.
_DTYPE_ORDER = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu",
)  # fmt: skip
_DTYPE_CODES = {name: code for code, name in enumerate(_DTYPE_ORDER)}
_DTYPE_CODES |= dict.fromkeys(
    ("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), _DTYPE_CODES["float8_e4m3fn"]
)

library: Any = None
unavailable_reason = ""
try:
    import tensortap.kernels._native as library
except ImportError as error:
    unavailable_reason = (
        f"the compiled kernels are not there ({error}); numpy does their work, more slowly. "
        "Installing tensortap where there is a C compiler builds them"
    )

available: bool = library is not None
NativeArray = tuple[Array, int, Array | None]
# Elements per call; independent of the number of threads, so that the sums are too.
CHUNK_SIZE = 1 << 20
_MIN_NBYTES_FOR_THREADS = 8 << 20
_ChunkResult = TypeVar("_ChunkResult")


def supports(*dtypes: str) -> bool:
    """Whether the library is available and has loops for these dtypes."""
    return library is not None and has_loops_for(*dtypes)


def has_loops_for(*dtypes: str) -> bool:
    """Whether the library, if available, has loops for these dtypes."""
    return all(map(_DTYPE_CODES.__contains__, dtypes))


def accepts(*arrays: Array) -> bool:
    """Whether the arrays can be passed to the library as they lie in memory."""
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return False
    return True


def as_native(bits: Array, dtype: str) -> NativeArray:
    """A contiguous array as arguments of the library: bytes, dtype code, and a lookup table if the dtype
    needs one."""
    placed = bits if bits.flags.aligned else bits.copy()
    return placed, *dtype_code(dtype)


@lru_cache(maxsize=64)
def dtype_code(dtype: str) -> tuple[int, Array | None]:
    """The code of a dtype, and its lookup table if it needs one."""
    return _DTYPE_CODES[dtype], float8_table(dtype) if dtype.startswith("float8") else None


def map_chunks(account: Callable[[int], _ChunkResult], starts: range, threads: int) -> Iterator[_ChunkResult]:
    """The result of each chunk, in order."""
    if min(threads, len(starts)) < 2:
        yield from map(account, starts)
        return
    with ThreadPoolExecutor(min(threads, len(starts)), "tensortap-kernels") as pool:
        yield from pool.map(account, starts)


def choose_threads(requested: int | None, a: Array, b: Array) -> int:
    """The requested number of threads, else all cores; one for small arrays."""
    if a.nbytes + b.nbytes < _MIN_NBYTES_FOR_THREADS:
        return 1
    if requested is not None:
        return requested
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
