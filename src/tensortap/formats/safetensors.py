""".safetensors files (read and written) and .npz bundles of many arrays (written as a stream)."""

from __future__ import annotations

import json
import math
import mmap
import os
import zipfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError, damaged_file_error
from tensortap.kernels.decode import BLOCK_SIZE, decode, dtype_info, iterate_blocks

# Dtypes that numpy lacks are written as the smallest that represents every value.
_WIDER_DTYPES = {"complex32": "complex64"}
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_HEADER_ALIGNMENT = 8


class NamedArray(NamedTuple):
    """An array and its key, as bytes of the storage dtype of `dtype`; without one, in numpy's own dtype."""

    key: str
    bits: Array
    dtype: str


def write_npz(stream: BinaryIO, arrays: Iterable[NamedArray]) -> None:
    """An archive for `np.load`; keys are escaped so that none leads out of a folder when extracted."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for array in arrays:
            with archive.open(f"{archive_member_name(array.key)}.npy", "w", force_zip64=True) as member:
                _write_npy(member, array)


def write_safetensors(stream: BinaryIO, arrays: Sequence[NamedArray], facts: dict[str, str]) -> None:
    """The header, then the bytes of all arrays."""
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for array in arrays:
        begin, end = end, end + array.bits.nbytes
        entry = {
            "dtype": SAFETENSORS_DTYPES[array.dtype],
            "shape": list(array.bits.shape),
            "data_offsets": [begin, end],
        }
        header[array.key] = entry
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "backslashreplace")
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    stream.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        for (block,) in iterate_blocks([array.bits], BLOCK_SIZE):
            stream.write(block.tobytes())


def npz_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that represents every value of this dtype exactly."""
    known = dtype_info(_WIDER_DTYPES.get(dtype, dtype))
    return np.dtype(known.storage) if known.native else np.dtype(np.float32)


def archive_member_name(key: str) -> str:
    """A key as a safe archive member name: no folders, no control characters."""
    return "".join(f"%{ord(letter):02X}" if letter in "/\\%" or letter < " " else letter for letter in key)


def _write_npy(member: Any, array: NamedArray) -> None:
    if not array.dtype:
        np.lib.format.write_array(member, array.bits, allow_pickle=False)
        return
    target = npz_dtype(array.dtype)
    head = BytesIO()
    header = {
        "descr": np.lib.format.dtype_to_descr(target),
        "fortran_order": False,
        "shape": array.bits.shape,
    }
    np.lib.format.write_array_header_2_0(head, header)
    member.write(head.getvalue())
    for (block,) in iterate_blocks([array.bits], BLOCK_SIZE):
        member.write(decode(block, array.dtype).astype(target, copy=False).tobytes())


SUFFIX = ".safetensors"
_DTYPES = {code: dtype for dtype, code in SAFETENSORS_DTYPES.items()} | {
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_LENGTH_NBYTES = 8
_MAX_HEADER_NBYTES = 100_000_000  # the limit of the format
_METADATA_KEY = "__metadata__"
_MAX_OPEN_FILES = 16
Array = np.ndarray[Any, Any]


class TensorEntry(NamedTuple):
    """The header's entry for one tensor, and where its bytes are in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Modification time and size, to detect that the file was replaced."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def read_entries(path: Path) -> tuple[list[TensorEntry], list[str]]:
    """The tensors of a file in byte order, and a sentence for each that cannot be read here."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_NBYTES), "little")
        if size < _LENGTH_NBYTES or length > min(size - _LENGTH_NBYTES, _MAX_HEADER_NBYTES):
            raise _damaged_file_error(
                path, f"its header should take {length:,} bytes, and the file has {size:,}"
            )
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise _damaged_file_error(path, f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise _damaged_file_error(path, "its header names no tensors")
    start = _LENGTH_NBYTES + length
    parsed = [
        _parse_entry(path, name, row, start, size) for name, row in header.items() if name != _METADATA_KEY
    ]
    entries = sorted(
        (entry for entry in parsed if isinstance(entry, TensorEntry)), key=lambda entry: entry.offset
    )
    return entries, [problem for problem in parsed if isinstance(problem, str)]


def map_tensor(
    path: str, written: tuple[int, int], offset: int, nbytes: int, dtype: str, shape: Any
) -> Array:
    """The bytes of a tensor, memory-mapped copy-on-write; raises if the file changed since."""
    storage = np.dtype(DTYPE_TABLE[dtype].storage)
    if not nbytes:
        return np.empty(shape, storage)
    return np.frombuffer(_map_file(path, written), storage, nbytes // storage.itemsize, offset).reshape(shape)


def _parse_entry(path: Path, name: str, row: Any, start: int, size: int) -> TensorEntry | str:
    try:
        code, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
        are_whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged_file_error(
            path, f"its header tells too little of {name!r}: {type(error).__name__} {error}"
        ) from None
    if not are_whole or begin > end or start + end > size:
        raise _damaged_file_error(path, f"{name!r} does not lie within it")
    if code not in _DTYPES:
        return f"{name} is of the type {code}, which cannot be compared"
    dtype = _DTYPES[code]
    if end - begin != math.prod(shape) * DTYPE_TABLE[dtype].itemsize:
        raise _damaged_file_error(
            path, f"{name!r} has {end - begin:,} bytes, which are no {code} of {list(shape)}"
        )
    return TensorEntry(name, dtype, shape, start + begin, end - begin)


@lru_cache(maxsize=_MAX_OPEN_FILES)
def _map_file(path: str, written: tuple[int, int]) -> mmap.mmap:
    if file_stamp(path) != written:
        raise CorruptRunError(f"{path} has been written again meanwhile; compare it once more")
    with open(path, "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def _damaged_file_error(path: Path, why: str) -> CorruptRunError:
    return damaged_file_error(str(path), ".safetensors file", why, "save it again")
