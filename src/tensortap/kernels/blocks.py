"""Arrays in pieces that fit the cache: whatever their size and strides, the scratch stays small."""

from collections.abc import Iterator, Sequence

import numpy as np

from tensortap.kernels.numbers import Array, decode, dtype_info

# Two float64 scratch arrays of this many numbers fit the second-level cache, and stay below 2 MiB.
BLOCK_SIZE = 1 << 16


def block_size(*dtypes: str) -> int:
    """How many numbers a block holds; complex ones take twice the room."""
    return BLOCK_SIZE // 2 if any(dtype_info(dtype).family == "complex" for dtype in dtypes) else BLOCK_SIZE


def iterate_blocks(arrays: Sequence[Array], size: int) -> Iterator[tuple[Array, ...]]:
    """Walk arrays of one shape together in C order; each block is flat, contiguous and read only.

    A block is valid until the next one is asked for."""
    if all(array.flags.c_contiguous for array in arrays):
        yield from _contiguous_blocks([array.view(np.ndarray).reshape(-1) for array in arrays], size)
    else:
        yield from _buffered_blocks(arrays, size)


def decode_block(block: Array, dtype: str) -> Array:
    """The block decoded; halves as float32, with which numpy is an order of magnitude faster."""
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
            # One operand comes bare, several come as a tuple.
            yield block if isinstance(block, tuple) else (block,)
