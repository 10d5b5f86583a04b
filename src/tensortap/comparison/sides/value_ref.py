"""Picklable references to stored values, which any process can load."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensortap.comparison.sides.leaf import (
    Operand,
    as_operand,
    is_array_like,
    is_big_int,
    is_composite_array,
    is_number,
)
from tensortap.core.errors import CorruptRunError
from tensortap.formats import safetensors
from tensortap.frameworks.base import Framework, framework_named
from tensortap.frameworks.pytree import leaves
from tensortap.readers.stored_record import ValueReader

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile


_MAX_OPEN = 16  # runs and files kept open per process
FileStamp = tuple[int, int]  # mtime and size of a file, to notice that it was rewritten
FileViews = dict[tuple[str, str], memoryview]  # by run and file


class RunValueRef(NamedTuple):
    """A value of a run, by its byte range: loading it needs no index."""

    path: str
    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    framework: str
    start: int
    length: int
    suffix: str
    stamp: int  # changes when the files of the run are rewritten

    def load(self) -> Any:
        values = _open_values(self.path, self.stamp)
        if self.offset >= 0:
            location = (self.offset, self.nbytes, self.dtype, self.shape, self.framework)
            return values.array(self.file, *location)
        return values.deserialize(self.file, self.start, self.length, self.suffix, False)

    def view_bytes(self, nbytes: int, views: FileViews) -> memoryview | None:
        """The bytes of the array in its file, if there are `nbytes` of them; `views` caches mapped files."""
        offset, key = self.offset, self[:2]
        if offset < 0 or self.nbytes != nbytes:
            return None
        file_view, end = views.get(key), offset + nbytes
        if file_view is None or len(file_view) < end:
            file_view = views[key] = _open_values(self.path, self.stamp).view(self.file, end)
        return file_view[offset:end]

    def checksummed_bytes(self) -> memoryview:
        """The bytes its checksum was computed from."""
        end = self.start + self.length
        return _open_values(self.path, self.stamp).view(self.file, end)[end - self.nbytes : end]

    def operand(self) -> Operand | None:
        if self.offset < 0:
            return numeric_operand(self.load())
        values = _open_values(self.path, self.stamp)
        return Operand(values.bits(self.file, *self[2:6]), self.dtype)


class TraceValueRef(NamedTuple):
    """A value of a trace file, by its position in the series of its name."""

    path: str
    name: str
    position: int
    stamp: FileStamp

    def load(self) -> Any:
        return open_trace_file(self.path, self.stamp)[self.name][self.position]

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class FileLeafRef(NamedTuple):
    """A leaf of the (nested) value in a file."""

    path: str
    leaf: str
    stamp: FileStamp

    def load(self) -> Any:
        leaves_by_name = load_file_leaves(self.path, self.stamp)
        if self.leaf not in leaves_by_name:
            raise CorruptRunError(f"{self.path} has changed: there is no {self.leaf!r} in it any more")
        return leaves_by_name[self.leaf]

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class SafetensorsRef(NamedTuple):
    """A tensor of a .safetensors file, by its byte range in the file with this stamp."""

    path: str
    stamp: FileStamp
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def load(self) -> Any:
        return _tensor_framework().from_bits(safetensors.map_tensor(*self), self.dtype)

    def operand(self) -> Operand | None:
        return Operand(safetensors.map_tensor(*self), self.dtype)


class InMemoryRef(NamedTuple):
    """A value in the memory of this process; other processes get a copy."""

    value: Any

    def load(self) -> Any:
        return self.value

    def operand(self) -> Operand | None:
        return numeric_operand(self.value)


def numeric_operand(value: Any) -> Operand | None:
    """The numbers of an array or a number; None for anything else, and for composite arrays."""
    if is_number(value):
        return None if is_big_int(value) else as_operand(value)
    return as_operand(value) if is_array_like(value) and not is_composite_array(value) else None


def named_leaves(value: Any) -> dict[str, Any]:
    """The leaves of a value by name: top-level keys are names, and a lone value is called `value`."""
    return {_leaf_name(path): leaf for path, leaf in leaves(value)}


def _leaf_name(path: str) -> str:
    if path.startswith("['"):
        key, mark, suffix = path[2:].partition("']")
        return key + suffix if mark and "\\" not in key else path
    return path or "value"


@lru_cache(maxsize=1)
def _tensor_framework() -> Framework:
    """torch, or numpy if torch is not installed."""
    try:
        return framework_named("torch")
    except ImportError:
        return framework_named("numpy")


@lru_cache(maxsize=_MAX_OPEN)
def _open_values(path: str, written: int) -> ValueReader:
    return ValueReader(Path(path))


@lru_cache(maxsize=_MAX_OPEN)
def open_trace_file(path: str, written: FileStamp) -> TraceFile:
    """Open a trace file once per stamp."""
    from tensortap.readers.trace_file import TraceFile

    return TraceFile(path)


@lru_cache(maxsize=_MAX_OPEN)
def load_file_leaves(path: str, written: FileStamp) -> dict[str, Any]:
    """Load the leaves of a file by name, once per stamp."""
    from tensortap.formats import serializers

    return named_leaves(serializers.load(path))


# Values as they were written or handed over; all others are put together from several.
STORED_REFS = (RunValueRef, TraceValueRef, FileLeafRef, SafetensorsRef, InMemoryRef)
