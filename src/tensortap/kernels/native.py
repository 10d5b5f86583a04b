"""The kernels compiled from C, where they could be built; without them the numpy twins do the same work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from tensortap.kernels.numbers import Array, float8_table

# The order of the list in _native.c; types of eight bits share a loop there, and complex ones have none.
_ORDER = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu",
)  # fmt: skip
_CODES = {name: code for code, name in enumerate(_ORDER)}
_CODES |= dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), _CODES["float8_e4m3fn"])

library: Any = None
reason = ""
try:
    import tensortap.kernels._native as library
except ImportError as error:
    reason = (
        f"the compiled kernels are not there ({error}); numpy does their work, more slowly. "
        "Installing tensortap where there is a C compiler builds them"
    )

available: bool = library is not None
Source = tuple[Array, int, Array | None]
# Of numbers that one call to the library takes; the same for any number of threads, and so are the sums.
CHUNK = 1 << 20
_WORTH_THREADS = 8 << 20  # bytes
_Part = TypeVar("_Part")


def serves(*dtypes: str) -> bool:
    """Whether arrays of these types can be given to the library."""
    return library is not None and knows(*dtypes)


def knows(*dtypes: str) -> bool:
    """Whether the library, where it is there, has loops for these types."""
    return all(map(_CODES.__contains__, dtypes))


def takes(*arrays: Array) -> bool:
    """Whether the arrays can be given to the library as they lie in memory."""
    for array in arrays:
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return False
    return True


def source(bits: Array, dtype: str) -> Source:
    """A contiguous array as the library takes it: bytes, the code of the type, a table where it needs one."""
    placed = bits if bits.flags.aligned else bits.copy()
    return placed, *kind(dtype)


@lru_cache(maxsize=64)
def kind(dtype: str) -> tuple[int, Array | None]:
    """The code of a type, and its table where it needs one."""
    return _CODES[dtype], float8_table(dtype) if dtype.startswith("float8") else None


def mapped(account: Callable[[int], _Part], starts: range, threads: int) -> Iterator[_Part]:
    """What is found of each part, in order."""
    if min(threads, len(starts)) < 2:
        yield from map(account, starts)
        return
    with ThreadPoolExecutor(min(threads, len(starts)), "tensortap-kernels") as pool:
        yield from pool.map(account, starts)


def threads_for(asked: int | None, a: Array, b: Array) -> int:
    """As many as were asked for, or as there are processors, where the arrays are worth it."""
    if a.nbytes + b.nbytes < _WORTH_THREADS:
        return 1
    if asked is not None:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
