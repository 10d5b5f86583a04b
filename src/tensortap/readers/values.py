"""Read values from the files of a run: arrays are memory-mapped, other values go through their serializer."""

import mmap
import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError
from tensortap.formats import serializers
from tensortap.formats.run_layout import INTERNAL_FOLDER, is_own_run
from tensortap.frameworks.base import Framework, framework_named

_MAX_CACHED_FILES = 64
_MAX_MAPPED_FILES = 256  # a process may often open no more than 1024
Memory = mmap.mmap | bytearray
Array = np.ndarray[Any, Any]


class ValueReader:
    """Caches recent mappings; a pack that has grown is mapped again."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._mapped = lru_cache(maxsize=_MAX_CACHED_FILES)(self._map)
        self._alive: WeakSet[mmap.mmap] = WeakSet()

    def array(
        self, file: str, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...], framework: str
    ) -> Any:
        """An array or tensor over the file's own bytes; writing to it stays in this process."""
        bits = self.bits(file, offset, nbytes, dtype, shape)
        return _framework_or_numpy(framework).from_bits(bits, dtype)

    def view(self, file: str, end: int) -> memoryview:
        """The bytes of a file of the run, which must be at least `end` long."""
        return memoryview(self._memory(file, end))

    def bits(self, file: str, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> Array:
        number_type = DTYPE_TABLE.get(dtype)
        if number_type is None:
            raise CorruptRunError(
                f"the index names the number type {dtype!r} for a value of {self._run / file}, which is "
                "none; the other values of the run can still be read"
            )
        if nbytes == 0:
            return np.empty(shape, number_type.storage)
        memory = self._memory(file, offset + nbytes)
        return np.frombuffer(memory, number_type.storage, nbytes // number_type.itemsize, offset).reshape(
            shape
        )

    def deserialize(self, file: str, start: int, length: int, suffix: str, trust: bool) -> Any:
        path = self._run / file
        if not file.startswith(INTERNAL_FOLDER):
            self._mapped(file)  # raises for a file that is missing or outside the run
            return serializers.load(path, trust=trust)
        data = memoryview(self._memory(file, start + length))[start : start + length]
        trusted = trust or is_own_run(path)
        return serializers.read(suffix, data, f"{file} at byte {start}", is_trusted=trusted)

    def _memory(self, file: str, end: int) -> Memory:
        memory = self._mapped(file)
        if len(memory) < end:
            self._mapped.cache_clear()
            memory = self._mapped(file)
        if len(memory) < end:
            raise CorruptRunError(
                f"{self._run / file} ends at byte {len(memory)} before a value that should reach to {end}; "
                f"the other values of the run can still be read"
            )
        return memory

    def _map(self, file: str) -> Memory:
        path = os.path.join(self._run, file)
        if os.path.isabs(file) or ".." in file.split("/"):
            raise CorruptRunError(f"the index names {file!r}, which lies outside the run; it is not read")
        try:
            with open(path, "rb") as stream:
                # A mapping holds a file descriptor as long as a value of it lives, and those are limited.
                if len(self._alive) >= _MAX_MAPPED_FILES and not file.startswith(INTERNAL_FOLDER):
                    return bytearray(stream.read())
                # Copy-on-write: writing to a value never changes the file.
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
                self._alive.add(memory)
                return memory
        except FileNotFoundError:
            raise _missing_file_error(path) from None
        except ValueError:
            raise CorruptRunError(
                f"{path} is empty although the index lists a value in it; the others can still be read"
            ) from None


def _missing_file_error(path: str) -> CorruptRunError:
    return CorruptRunError(
        f"{path} is in the index but not on disk; the other values of the run can still be read"
    )


@lru_cache(maxsize=16)
def _framework_or_numpy(name: str) -> Framework:
    """The framework a value came from, or numpy where that is not installed."""
    try:
        return framework_named(name)
    except ImportError:
        return framework_named("numpy")
