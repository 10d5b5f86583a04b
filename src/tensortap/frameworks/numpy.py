"""The numpy framework: arrays and scalars."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement
from tensortap.frameworks.base import Description
from tensortap.frameworks.fingerprint import bytes_fingerprint
from tensortap.kernels.decode import decode

_Array = np.ndarray[Any, Any]
_DType = np.dtype[Any]
# The native dtypes, which need no conversion.
_NATIVE_DTYPES = {np.dtype(row.storage): name for name, row in DTYPE_TABLE.items() if row.native}


class _Numpy:
    name = "numpy"
    suffix = ".npy"

    def owns(self, kind: type) -> bool:
        return issubclass(kind, (np.ndarray, np.generic))

    def describe(self, value: Any) -> Description:
        kind, dtype = type(value), value.dtype
        if kind is np.ndarray and dtype in _NATIVE_DTYPES:
            return Description("ndarray", _NATIVE_DTYPES[dtype], value.shape, value.nbytes)
        return Description(kind.__name__, dtype_name(dtype), value.shape, value.nbytes, "cpu", _layout(value))

    def snapshot(self, value: Any) -> Any:
        """A copy of the same class; an object array keeps its objects."""
        return value if isinstance(value, np.generic) else value.copy(order="K")

    def mark(self, value: Any) -> Callable[[Any], bool]:
        if isinstance(value, np.generic):
            fingerprint = _fingerprint(value)
            return lambda other: type(other) is type(value) and _fingerprint(other) == fingerprint
        return _mark_array(value)

    def bits(self, value: Any) -> _Array:
        if type(value) is np.ndarray and value.dtype in _NATIVE_DTYPES:
            return value
        layout = _layout(value)
        if layout != "strided":
            raise UnsupportedValueError(
                f"a numpy array of shape {list(value.shape)} ({layout}) is not one block of bytes; "
                "capture its parts, or pickle it"
            )
        return storage_view(np.asarray(value))

    def to_numpy(self, value: Any) -> _Array:
        bits, name = self.bits(value), dtype_name(value.dtype)
        known = DTYPE_TABLE.get(name)
        if known is None and value.dtype.kind == "V" and value.dtype.names is None:
            return np.asarray(value).astype(np.float32)
        return bits if known is None or known.native else decode(bits, name)

    def from_bits(self, bits: _Array, dtype: str) -> _Array:
        """A view of the array as that dtype. One that numpy lacks needs `ml_dtypes`; without it the array
        comes back wider."""
        if dtype in DTYPE_TABLE and not DTYPE_TABLE[dtype].native:
            extended = _ml_dtype(dtype)
            return decode(bits, dtype) if extended is None else bits.view(extended)
        target = _parse_dtype(dtype)
        return bits if bits.dtype == target else bits.view(target)

    def placement(self, value: Any) -> Placement | None:
        return None


FRAMEWORK = _Numpy()


@lru_cache(maxsize=256)
def dtype_name(dtype: _DType) -> str:
    """The name in the dtype table, else numpy's own."""
    return str(dtype if dtype.isnative else dtype.newbyteorder("="))


def storage_view(array: _Array) -> _Array:
    """The array's own memory as its storage type, little-endian."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    known = DTYPE_TABLE.get(dtype_name(array.dtype))
    if known is not None and not known.native:
        return array.view(known.storage)
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.type is not np.void:
        return array.view(f"u{array.dtype.itemsize}")
    return array


def torch_compatible(bits: _Array) -> _Array:
    """The array itself if torch can wrap it, else a copy: torch takes no read-only memory and no odd
    strides."""
    steps_evenly = all(step >= 0 and step % bits.itemsize == 0 for step in bits.strides)
    if bits.flags.writeable and steps_evenly and bits.dtype.isnative:
        return bits
    return np.array(bits, bits.dtype.newbyteorder("="), order="C")


def _layout(value: Any) -> str:
    if value.dtype.hasobject or value.dtype.kind == "T":
        return "object"
    return "masked" if isinstance(value, np.ma.MaskedArray) else "strided"


def _mark_array(value: _Array) -> Callable[[Any], bool]:
    reference, fingerprint = weakref.ref(value), _fingerprint(value)

    def is_same(other: Any) -> bool:
        return other is not None and other is reference() and _fingerprint(other) == fingerprint

    return is_same


def _fingerprint(value: Any) -> tuple[Any, ...]:
    array = np.asarray(value)
    if array.dtype.hasobject:
        # The ids of the objects: replacing one is detected, mutating one is not.
        return (array.shape, tuple(map(id, array.flat)))
    mask = np.ma.getmaskarray(value).tobytes() if isinstance(value, np.ma.MaskedArray) else b""
    if array.dtype.kind == "T":
        return (array.shape, array.tolist())
    return (str(array.dtype), array.shape, bytes_fingerprint(array), mask)


def _parse_dtype(name: str) -> _DType:
    if name in DTYPE_TABLE:
        return np.dtype(DTYPE_TABLE[name].storage)
    try:
        return np.dtype(ast.literal_eval(name) if name[:1] in "[{(" else name)
    except TypeError:
        extended = _ml_dtype(name)
    if extended is None:
        raise UnsupportedValueError(f"numpy has no type {name!r}; installing ml_dtypes adds more of them")
    return extended


def _ml_dtype(name: str) -> _DType | None:
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else np.dtype(kind)
