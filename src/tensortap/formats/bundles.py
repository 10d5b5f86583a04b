"""Many arrays in one file that other programs read: .npz and .safetensors, written as a stream."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tensortap.kernels.decode import BLOCK_SIZE, decode, dtype_info, iterate_blocks

Array = np.ndarray[Any, Any]
# What numpy has no type for is written in the smallest one that holds every value.
_WIDER = {"complex32": "complex64"}
SAFETENSORS = {
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
_ALIGNED = 8


class Named(NamedTuple):
    """An array under its key, as bytes of the storage type of `dtype`; without one, as numpy has it."""

    key: str
    bits: Array
    dtype: str


def write_npz(stream: BinaryIO, arrays: Iterable[Named]) -> None:
    """What `np.load` reads; a key that would lead out of a folder when unpacked is made harmless."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for one in arrays:
            with archive.open(f"{member_name(one.key)}.npy", "w", force_zip64=True) as member:
                _write_npy(member, one)


def write_safetensors(stream: BinaryIO, arrays: Sequence[Named], facts: dict[str, str]) -> None:
    """Everything about the arrays first, then their bytes, one after the other."""
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for one in arrays:
        begin, end = end, end + one.bits.nbytes
        told = {"dtype": SAFETENSORS[one.dtype], "shape": list(one.bits.shape), "data_offsets": [begin, end]}
        header[one.key] = told
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "backslashreplace")
    text += b" " * (-len(text) % _ALIGNED)
    stream.write(len(text).to_bytes(8, "little") + text)
    for one in arrays:
        for (block,) in iterate_blocks([one.bits], BLOCK_SIZE):
            stream.write(block.tobytes())


def npz_dtype(dtype: str) -> np.dtype[Any]:
    """The type in which numpy holds such numbers, each exactly."""
    known = dtype_info(_WIDER.get(dtype, dtype))
    return np.dtype(known.storage) if known.native else np.dtype(np.float32)


def member_name(key: str) -> str:
    """A key as the name of a part of an archive: no folders, nothing that a program could trip over."""
    return "".join(f"%{ord(letter):02X}" if letter in "/\\%" or letter < " " else letter for letter in key)


def _write_npy(member: Any, one: Named) -> None:
    if not one.dtype:
        np.lib.format.write_array(member, one.bits, allow_pickle=False)
        return
    target = npz_dtype(one.dtype)
    head = BytesIO()
    told = {"descr": np.lib.format.dtype_to_descr(target), "fortran_order": False, "shape": one.bits.shape}
    np.lib.format.write_array_header_2_0(head, told)
    member.write(head.getvalue())
    for (block,) in iterate_blocks([one.bits], BLOCK_SIZE):
        member.write(decode(block, one.dtype).astype(target, copy=False).tobytes())
