"""The .npy format: a cached header in front of the numbers, as `np.load` reads it."""

from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tensortap.core.errors import CorruptRunError, UntrustedFileError
from tensortap.formats.payload import Payload

SUFFIX = ".npy"
_ALIGNMENT = 64


def encode(bits: np.ndarray[Any, Any]) -> Payload:
    return Payload(SUFFIX, bits, header(bits.dtype, bits.shape))


@lru_cache(maxsize=1024)
def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Version 1.0, padded so that the numbers begin aligned."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("latin1")
    padding = -(10 + len(text) + 1) % _ALIGNMENT
    body = text + b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def load(path: Path, is_trusted: bool) -> np.ndarray[Any, Any]:
    """The array, memory-mapped: nothing is read before it is touched, and writing stays private."""
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]
    except ValueError:
        with open(path, "rb") as stream:
            return read(stream, str(path), is_trusted)


def read(stream: BinaryIO, label: str, is_trusted: bool) -> np.ndarray[Any, Any]:
    """The array in an open file; arrays of Python objects are pickles and want trust."""
    try:
        return np.lib.format.read_array(stream, allow_pickle=is_trusted)
    except (ValueError, EOFError) as error:
        if not is_trusted and "allow_pickle" in str(error):
            raise UntrustedFileError(
                f"{label} holds pickled Python objects, and it is not known who made it; "
                f"pass trust=True if you do"
            ) from None
        raise CorruptRunError(f"{label} is not a whole .npy file ({error}); dump it again") from None
