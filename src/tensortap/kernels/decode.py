"""Stored bytes as arrays that numpy can compute with, in cache-sized blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE, DTypeInfo
from tensortap.core.errors import UnsupportedValueError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_FLOAT8_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def dtype_info(dtype: str) -> DTypeInfo:
    """The row of the dtype table; an unknown name raises."""
    known = DTYPE_TABLE.get(dtype)
    if known is None:
        raise UnsupportedValueError(f"no number type {dtype!r}; known are {', '.join(DTYPE_TABLE)}")
    return known


def decode(bits: Array, dtype: str) -> Array:
    """The elements of an array of the storage dtype: the array itself if numpy has the dtype, else the
    smallest numpy dtype that represents every value."""
    if dtype_info(dtype).native:
        return bits
    if dtype == "bfloat16":
        return _decode_bfloat16(bits)
    if dtype == "complex32":
        return _decode_complex32(bits)
    # Every code is in the table; "clip" and `out` skip checks that cost three times the rest.
    return np.take(float8_table(dtype), bits, out=np.empty(bits.shape, np.float32), mode="clip")


@lru_cache(maxsize=len(_FLOAT8_DTYPES))
def float8_table(dtype: str) -> Array:
    """The value of each of the 256 codes, from the definition of the format."""
    value = _FLOAT8_DECODERS[dtype]
    table = np.array([value(code) for code in range(256)], np.float32)
    table.flags.writeable = False
    return table


def _decode_bfloat16(bits: Array) -> Array:
    wide = np.asarray(bits.astype(np.uint32))
    np.left_shift(wide, 16, out=wide)
    return wide.view(np.float32)


def _decode_complex32(bits: Array) -> Array:
    halves = np.ascontiguousarray(bits).view(np.float16).astype(np.float32)
    return halves.view(np.complex64).reshape(bits.shape)


def _decode_float8(code: int, mantissa_bits: int, bias: int) -> float:
    """Sign, exponent, fraction; a zero exponent is subnormal."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    scale = 1 << mantissa_bits
    if exponent == 0:
        return float(sign * fraction / scale * 2.0 ** (1 - bias))
    return float(sign * (1 + fraction / scale) * 2.0 ** (exponent - bias))


def _e4m3fn(code: int) -> float:
    return np.nan if code & 0x7F == 0x7F else _decode_float8(code, 3, 7)


def _e4m3fnuz(code: int) -> float:
    return np.nan if code == 0x80 else _decode_float8(code, 3, 8)


def _e5m2(code: int) -> float:
    if code & 0x7C != 0x7C:
        return _decode_float8(code, 2, 15)
    if code & 0x03:
        return np.nan
    return -np.inf if code & 0x80 else np.inf


def _e5m2fnuz(code: int) -> float:
    return np.nan if code == 0x80 else _decode_float8(code, 2, 16)


def _e8m0fnu(code: int) -> float:
    return np.nan if code == 0xFF else float(2.0 ** (code - 127))


_FLOAT8_DECODERS: dict[str, Callable[[int], float]] = dict(
    zip(_FLOAT8_DTYPES, (_e4m3fn, _e4m3fnuz, _e5m2, _e5m2fnuz, _e8m0fnu), strict=True)
)


# Two float64 scratch arrays of this size fit the L2 cache, and stay below 2 MiB.
BLOCK_SIZE = 1 << 16


def block_size(*dtypes: str) -> int:
    """Elements per block; complex ones take twice the memory."""
    return BLOCK_SIZE // 2 if any(dtype_info(dtype).family == "complex" for dtype in dtypes) else BLOCK_SIZE


def iterate_blocks(arrays: Sequence[Array], size: int) -> Iterator[tuple[Array, ...]]:
    """Iterate arrays of one shape together in C order; each block is flat, contiguous and read-only.

    A block is valid until the next iteration.
    """
    if all(array.flags.c_contiguous for array in arrays):
        yield from _contiguous_blocks([array.view(np.ndarray).reshape(-1) for array in arrays], size)
    else:
        yield from _buffered_blocks(arrays, size)


def decode_block(block: Array, dtype: str) -> Array:
    """The decoded block; float16 as float32, which numpy computes ten times faster."""
    decoded = decode(block, dtype)
    return decoded.astype(np.float32) if decoded.dtype == np.float16 else decoded


def _contiguous_blocks(flat: list[Array], size: int) -> Iterator[tuple[Array, ...]]:
    for start in range(0, flat[0].size, size):
        yield tuple(array[start : start + size] for array in flat)


def _buffered_blocks(arrays: Sequence[Array], size: int) -> Iterator[tuple[Array, ...]]:
    walk = np.nditer(  # type: ignore[call-overload]  # numpy's stubs know "contig" only as "config"
        list(arrays),
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly", "contig"]] * len(arrays),
        order="C",
        buffersize=size,
    )
    with walk:
        for block in walk:
            # A single operand is yielded bare, several as a tuple.
            yield block if isinstance(block, tuple) else (block,)
