"""Values to bytes by type, and files to values by suffix."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from zipfile import BadZipFile

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import (
    MissingExtraError,
    UnknownFormatError,
)
from tensortap.core.registry import Registry
from tensortap.formats import npy, pkl
from tensortap.formats.payload import Payload, payload_from_bytes
from tensortap.formats.run_layout import is_own_run
from tensortap.frameworks.base import Description, Framework, framework_of


class Serializer(Protocol):
    """How values of a type of your own become bytes, and come back."""

    suffix: str

    def save(self, value: Any, stream: BinaryIO) -> None: ...

    def load(self, stream: BinaryIO) -> Any: ...


@dataclass(slots=True)
class EncodedValue:
    payload: Payload
    description: Description
    framework: str


serializers: Registry[Serializer] = Registry("serializers")


def register_serializer(types: type | tuple[type, ...], serializer: Serializer) -> None:
    """Write values of these classes, and read files of its suffix, with a serializer of your own."""
    serializers.add(types, serializer)


def encode(value: Any, *, plain: bool = False) -> EncodedValue:
    """The value as bytes. `plain` prefers .npy for every array, as packs do."""
    own = serializers.for_type(type(value))
    framework = framework_of(value)
    description = framework.describe(value)
    payload = (
        _encode_registered(own, value)
        if own is not None
        else _encode_built_in(value, framework, description, plain)
    )
    return EncodedValue(payload, description, framework.name)


def load(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """The value in a file of any known suffix.

    Pickles run code when they are read: those of your own runs are trusted, others build nothing but
    numbers, containers, arrays and tensors unless you say `trust=True`.
    """
    path = Path(path)
    suffix = _suffix_of(path.name)
    if suffix not in known_suffixes():
        raise _unknown_suffix_error(suffix, str(path))
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}; give the path of a dumped value")
    return _load_file(path, suffix, trust or is_own_run(path))


def read(suffix: str, data: bytes | memoryview, label: str, *, is_trusted: bool) -> Any:
    """The value in these bytes, stored in a pack under that suffix."""
    stream = io.BytesIO(data)
    if suffix not in known_suffixes():
        raise _unknown_suffix_error(suffix, label)
    own = _registered_suffixes().get(suffix)
    return own.load(stream) if own is not None else _built_in_reader(suffix)(stream, label, is_trusted)


def known_suffixes() -> list[str]:
    return [*_BUILT_IN_READERS, *_registered_suffixes()]


def _encode_registered(own: Serializer, value: Any) -> Payload:
    stream = io.BytesIO()
    own.save(value, stream)
    return payload_from_bytes(own.suffix, stream.getvalue())


def _encode_built_in(value: Any, framework: Framework, description: Description, plain: bool) -> Payload:
    if framework.suffix == pkl.SUFFIX:
        return pkl.encode(value)
    is_block = description.layout == "strided" and description.dtype in DTYPE_TABLE
    if framework.suffix == ".pt" and not (plain and is_block):
        return _encode_tensor(value, framework, description, is_block)
    if description.layout != "strided":
        return _encode_objects(value) if description.layout == "object" else pkl.encode(value)
    payload = npy.encode(framework.bits(value))
    payload.is_raw = is_block
    return payload


def _encode_tensor(value: Any, framework: Framework, description: Description, is_block: bool) -> Payload:
    pt = _torch_format()
    if is_block:
        return pt.encode(framework.bits(value), description.dtype)  # type: ignore[no-any-return]
    if description.layout == "strided":
        framework.bits(value)  # raises for a tensor without values, before torch writes foreign memory
    return pt.encode_any(value)  # type: ignore[no-any-return]


def _encode_objects(value: np.ndarray[Any, Any]) -> Payload:
    """As numpy does: a header, then the pickled array."""
    payload = pkl.encode(np.asarray(value))
    dtype = value.dtype if value.dtype.kind != "T" else np.dtype(object)
    payload.suffix, payload.head = npy.SUFFIX, npy.npy_header(dtype, value.shape)
    return payload


def _load_file(path: Path, suffix: str, is_trusted: bool) -> Any:
    own = _registered_suffixes().get(suffix)
    if own is None and suffix in _MEMORY_MAPPED:
        return _MEMORY_MAPPED[suffix]()(path, is_trusted)
    with open(path, "rb") as stream:
        return (
            own.load(stream) if own is not None else _built_in_reader(suffix)(stream, str(path), is_trusted)
        )


def _suffix_of(name: str) -> str:
    """The longest suffix of a registered serializer, else the last suffix."""
    own = [suffix for suffix in _registered_suffixes() if name.endswith(suffix)]
    return max(own, key=len) if own else Path(name).suffix.lower()


def _unknown_suffix_error(suffix: str, label: str) -> UnknownFormatError:
    return UnknownFormatError(
        f"no serializer reads {suffix or 'a file without suffix'!r} ({label}); "
        f"known are {', '.join(known_suffixes())}; register_serializer adds one"
    )


def _registered_suffixes() -> dict[str, Serializer]:
    return {part.suffix: part for part in serializers.plugins()}


def _built_in_reader(suffix: str) -> Callable[[BinaryIO, str, bool], Any]:
    return _BUILT_IN_READERS[suffix]()


@lru_cache(maxsize=1)
def _torch_format() -> Any:
    try:
        from tensortap.formats import pt
    except ImportError:
        raise MissingExtraError(
            "a .pt file is read and written with torch, so: pip install 'tensortap[torch]'"
        ) from None
    return pt


def _read_npz(stream: BinaryIO, label: str, is_trusted: bool) -> dict[str, Any]:
    try:
        with np.load(stream, allow_pickle=is_trusted) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, TypeError, EOFError, BadZipFile, zlib.error, NotImplementedError) as error:
        raise npy.explain_read_error(error, label, ".npz file", is_trusted) from None


_BUILT_IN_READERS: dict[str, Callable[[], Callable[[BinaryIO, str, bool], Any]]] = {
    ".pt": lambda: _torch_format().read,
    ".pth": lambda: _torch_format().read,
    ".npy": lambda: npy.read,
    ".npz": lambda: _read_npz,
    ".pkl": lambda: pkl.read,
    ".pickle": lambda: pkl.read,
}
_MEMORY_MAPPED: dict[str, Callable[[], Callable[[Path, bool], Any]]] = {
    ".pt": lambda: _torch_format().load,
    ".pth": lambda: _torch_format().load,
    ".npy": lambda: npy.load,
}
