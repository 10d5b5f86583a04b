"""The .pt format: the zip that `torch.load(weights_only=True)` reads, written without torch.save."""

import io
import math
import pickle
import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError, UntrustedFileError, damaged_file_error
from tensortap.formats.payload import Payload, TailBuilder, payload_from_bytes
from tensortap.formats.pkl import UNPICKLING_ERRORS, missing_class_error
from tensortap.formats.zip_stored import (
    ZipMember,
    data_descriptor,
    data_descriptor_size,
    directory_after_first,
    directory_row,
    local_header,
)
from tensortap.kernels.hashing import crc32

SUFFIX = ".pt"
_DATA_MEMBER = b"archive/data/0"

_REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")

# Storage classes named in torch's own files; later dtypes are named in the pickle.
_STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}


def encode(bits: np.ndarray[Any, Any], dtype: str) -> Payload:
    """A strided tensor: head and tail depend only on dtype and shape, except for the CRC."""
    head, tail = _head_and_tail(dtype, bits.shape, bits.nbytes)
    return Payload(SUFFIX, bits, head, tail)


def encode_any(value: Any) -> Payload:
    """What only torch can save: sparse, quantized, nested, rare dtypes."""
    stream = io.BytesIO()
    try:
        torch.save(value.detach().clone(), stream)  # torch.save writes the whole storage of a view
    except (RuntimeError, KeyError, TypeError, AttributeError, pickle.PicklingError) as error:
        raise UnsupportedValueError(
            f"torch cannot save a {type(value).__name__} of {value.dtype} ({_first_line(error)}); "
            f"dump the tensors it is made of, or convert it"
        ) from error
    return payload_from_bytes(SUFFIX, stream.getvalue())


def load(path: Path, is_trusted: bool) -> Any:
    """The tensor, memory-mapped where the file allows it."""
    return _load(str(path), str(path), is_trusted, may_map=True)


def read(stream: BinaryIO, label: str, is_trusted: bool) -> Any:
    return _load(stream, label, is_trusted, may_map=False)


def _load(source: Any, label: str, is_trusted: bool, may_map: bool) -> Any:
    try:
        return _torch_load(source, may_map, weights_only=True)
    except UNPICKLING_ERRORS as error:  # of these, only a refused global is not damage
        refused = _refused_global(error, _is_zipped(source))
        if refused is None:
            raise damaged_file_error(label, ".pt file", _first_line(error)) from None
    if not is_trusted:
        raise UntrustedFileError(
            f"{label} holds more than tensors ({refused}), and it is not known who made it; "
            f"pass trust=True if you do"
        )
    return _load_trusted(source, label, may_map)


def _load_trusted(source: Any, label: str, may_map: bool) -> Any:
    try:
        return _torch_load(source, may_map, weights_only=False)
    except (ImportError, AttributeError) as error:
        raise missing_class_error(label, error) from error
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise damaged_file_error(label, ".pt file", _first_line(error)) from None


def _refused_global(error: Exception, is_zipped: bool) -> str | None:
    """The global that torch refused to load, if that was the reason; None for a damaged file."""
    text = str(error)
    if not isinstance(error, pickle.UnpicklingError):
        return None
    if match := _REFUSED_GLOBAL.search(text):
        return match.group(1)
    is_sound = is_zipped or "Can only" in text or "must be imported" in text
    return "more than weights_only reads" if is_sound else None


def _torch_load(source: Any, may_map: bool, *, weights_only: bool) -> Any:
    if may_map and _is_zipped(source):
        return torch.load(source, map_location="cpu", weights_only=weights_only, mmap=True)
    if hasattr(source, "seek"):
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=weights_only)


def _is_zipped(source: Any) -> bool:
    if hasattr(source, "seek"):
        source.seek(0)
        return bool(source.read(4) == b"PK\3\4")
    with open(source, "rb") as stream:
        return stream.read(4) == b"PK\3\4"


def _first_line(error: Exception) -> str:
    """The first line of torch's message; its advice about weights_only does not apply here."""
    text = str(error).strip()
    if not text or "Weights only load failed" in text or isinstance(error, KeyError):
        return "its description cannot be read"
    return text.split("\n")[0].rstrip(".")[:120]


@lru_cache(maxsize=1024)
def _head_and_tail(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[bytes, TailBuilder]:
    """Everything before the elements, and a function that builds the rest from their CRC."""
    out = bytearray()
    members = [
        _append_member(out, b"archive/data.pkl", _tensor_pickle(dtype, shape)),
        _append_member(out, b"archive/version", b"3\n"),
        _append_member(out, b"archive/byteorder", b"little"),
    ]
    at = len(out)
    out += local_header(_DATA_MEMBER, at, nbytes)
    start = len(out) + nbytes + data_descriptor_size(nbytes)
    rest = directory_after_first(members, ZipMember(_DATA_MEMBER, 0, nbytes, at), start)

    def tail(crc: int) -> bytes:
        return data_descriptor(crc, nbytes) + directory_row(ZipMember(_DATA_MEMBER, crc, nbytes, at)) + rest

    return bytes(out), tail


def _append_member(out: bytearray, name: bytes, data: bytes) -> ZipMember:
    member = ZipMember(name, crc32(data), len(data), len(out))
    out += local_header(name, len(out), len(data)) + data + data_descriptor(member.crc, len(data))
    return member


def _tensor_pickle(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The pickle of `_rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())`, or of `_v3`
    with the dtype appended."""
    count, name = math.prod(shape), _STORAGES.get(dtype)
    if name is None:
        kind, rebuild = _pickle_global("torch.storage", "UntypedStorage"), "_rebuild_tensor_v3"
        count, last = count * DTYPE_TABLE[dtype].itemsize, _pickle_global("torch", dtype)
    else:
        kind, rebuild, last = _pickle_global("torch", name), "_rebuild_tensor_v2", b""
    storage = (
        _MARK
        + _pickle_text("storage")
        + kind
        + _pickle_text("0")
        + _pickle_text("cpu")
        + _pickle_int(count)
        + b"tQ"
    )
    arguments = (
        storage + _pickle_int(0) + _pickle_ints(shape) + _pickle_ints(_contiguous_strides(shape)) + b"\x89"
    )
    arguments += _pickle_global("collections", "OrderedDict") + b")R" + last
    return b"\x80\x02" + _pickle_global("torch._utils", rebuild) + _MARK + arguments + b"tR."


_MARK = b"("


def _pickle_global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _pickle_text(text: str) -> bytes:
    return b"X" + struct.pack("<L", len(text)) + text.encode()


def _pickle_int(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<l", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def _pickle_ints(numbers: tuple[int, ...]) -> bytes:
    return _MARK + b"".join(_pickle_int(number) for number in numbers) + b"t"


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
