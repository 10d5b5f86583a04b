"""The .npy format: a cached header in front of the elements, as `np.load` reads it."""

import warnings
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from tensortap.core.errors import TensortapError, UntrustedFileError, damaged_file_error
from tensortap.formats.payload import Payload

SUFFIX = ".npy"
_ALIGNMENT = 64
_DAMAGE_ERRORS = (EOFError, SyntaxError, TokenError, TypeError, OverflowError, MemoryError, UnpicklingError)


def encode(bits: np.ndarray[Any, Any]) -> Payload:
    return Payload(SUFFIX, bits, npy_header(bits.dtype, bits.shape))


@lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Version 1.0, or 3.0 where field names or their number need it; the data is aligned."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    is_plain = text.isascii() and len(text) < 65000
    magic, width = (b"\x93NUMPY\x01\x00", 2) if is_plain else (b"\x93NUMPY\x03\x00", 4)
    body = text.encode()
    body += b" " * (-(len(magic) + width + len(body) + 1) % _ALIGNMENT) + b"\n"
    return magic + len(body).to_bytes(width, "little") + body


def load(path: Path, is_trusted: bool) -> np.ndarray[Any, Any]:
    """The array, memory-mapped copy-on-write."""
    try:
        with _ignore_python2_header_warning():
            return np.lib.format.open_memmap(path, mode="c").view(np.ndarray)
    except (ValueError, *_DAMAGE_ERRORS):
        with open(path, "rb") as stream:
            return read(stream, str(path), is_trusted)


def read(stream: BinaryIO, label: str, is_trusted: bool) -> np.ndarray[Any, Any]:
    """The array in an open file; object arrays are pickles and need trust."""
    try:
        with _ignore_python2_header_warning():
            return np.lib.format.read_array(stream, allow_pickle=is_trusted)
    except (ValueError, *_DAMAGE_ERRORS) as error:
        raise explain_read_error(error, label, ".npy file", is_trusted) from None


def explain_read_error(error: Exception, label: str, kind: str, is_trusted: bool) -> TensortapError:
    """Whether numpy refused a pickle, or the file is damaged."""
    if not is_trusted and "allow_pickle" in str(error):
        return UntrustedFileError(
            f"{label} holds pickled Python objects, and it is not known who made it; "
            f"pass trust=True if you do"
        )
    return damaged_file_error(label, kind, str(error))


def _ignore_python2_header_warning() -> "warnings.catch_warnings[None]":
    """numpy warns of headers written by Python 2, or damaged so that they look like it."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
