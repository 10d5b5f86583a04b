"""Where the values of a side lie, in a form that any process can read them from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensortap.comparison.operands import Operand, comes_apart, is_array_like, is_long, is_number, operand
from tensortap.core.errors import CorruptRunError
from tensortap.formats import safetensors
from tensortap.frameworks.base import Framework, framework_named
from tensortap.frameworks.nested import leaves
from tensortap.readers.values import Values

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile

_OPEN = 16  # runs and files that a process keeps open
Stamp = tuple[int, int]  # of a file as it was written
Views = dict[tuple[str, str], memoryview]  # by run and file


class InRun(NamedTuple):
    """A value of a run, by the bytes it takes: a reader of one value needs no index."""

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
    written: int  # tells the files as they were from others that are written in their place

    def load(self) -> Any:
        values = _values(self.path, self.written)
        if self.offset >= 0:
            what = (self.offset, self.nbytes, self.dtype, self.shape, self.framework)
            return values.array(self.file, *what)
        return values.other(self.file, self.start, self.length, self.suffix, False)

    def view(self, nbytes: int, views: Views) -> memoryview | None:
        """The bytes of an array as they lie in its file, where it has that many; `views` remembers files."""
        offset, key = self.offset, self[:2]
        if offset < 0 or self.nbytes != nbytes:
            return None
        whole, end = views.get(key), offset + nbytes
        if whole is None or len(whole) < end:
            whole = views[key] = _values(self.path, self.written).view(self.file, end)
        return whole[offset:end]

    def written_bytes(self) -> memoryview:
        """What its checksum was made of."""
        end = self.start + self.length
        return _values(self.path, self.written).view(self.file, end)[end - self.nbytes : end]

    def operand(self) -> Operand | None:
        if self.offset < 0:
            return numbers_of(self.load())
        values = _values(self.path, self.written)
        return Operand(values.bits(self.file, *self[2:6]), self.dtype)


class InTrace(NamedTuple):
    """A value of a trace file, by its place among those of its name."""

    path: str
    name: str
    position: int
    written: Stamp

    def load(self) -> Any:
        return trace_file(self.path, self.written)[self.name][self.position]

    def operand(self) -> Operand | None:
        return numbers_of(self.load())


class InFile(NamedTuple):
    """A leaf of what one file holds."""

    path: str
    leaf: str
    written: Stamp

    def load(self) -> Any:
        held = file_leaves(self.path, self.written)
        if self.leaf not in held:
            raise CorruptRunError(f"{self.path} has changed: there is no {self.leaf!r} in it any more")
        return held[self.leaf]

    def operand(self) -> Operand | None:
        return numbers_of(self.load())


class InTensors(NamedTuple):
    """A tensor of a .safetensors file, by the bytes it takes in the file as it was written then."""

    path: str
    written: Stamp
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def load(self) -> Any:
        return _tensor_library().from_bits(safetensors.bits(*self), self.dtype)

    def operand(self) -> Operand | None:
        return Operand(safetensors.bits(*self), self.dtype)


class Held(NamedTuple):
    """A value in the memory of this process; another process gets a copy."""

    value: Any

    def load(self) -> Any:
        return self.value

    def operand(self) -> Operand | None:
        return numbers_of(self.value)


def numbers_of(value: Any) -> Operand | None:
    """The numbers of an array or a number; None for anything else, and for what comes apart."""
    if is_number(value):
        return None if is_long(value) else operand(value)
    return operand(value) if is_array_like(value) and not comes_apart(value) else None


def leaves_of(value: Any) -> dict[str, Any]:
    """The leaves of a value by name: a key at the top is a name of its own, and a lone value is `value`."""
    return {_name(path): leaf for path, leaf in leaves(value)}


def _name(path: str) -> str:
    if path.startswith("['"):
        key, mark, rest = path[2:].partition("']")
        return key + rest if mark and "\\" not in key else path
    return path or "value"


@lru_cache(maxsize=1)
def _tensor_library() -> Framework:
    """torch, or numpy where that is not installed."""
    try:
        return framework_named("torch")
    except ImportError:
        return framework_named("numpy")


@lru_cache(maxsize=_OPEN)
def _values(path: str, written: int) -> Values:
    return Values(Path(path))


@lru_cache(maxsize=_OPEN)
def trace_file(path: str, written: Stamp) -> TraceFile:
    """Opened once, as long as nobody writes to it: a value is read by name and place."""
    from tensortap.readers.trace_file import TraceFile

    return TraceFile(path)


@lru_cache(maxsize=_OPEN)
def file_leaves(path: str, written: Stamp) -> dict[str, Any]:
    """What a file holds by name; read once, as long as nobody writes to it."""
    from tensortap.formats import serializers

    return leaves_of(serializers.load(path))
