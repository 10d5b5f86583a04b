"""The framework of all other values: Python numbers, containers and objects."""

from __future__ import annotations

import copy
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement
from tensortap.frameworks import pytree
from tensortap.frameworks.base import Description, framework_of
from tensortap.frameworks.fingerprint import exact_key

log = logging.getLogger("tensortap.python")

_Array = np.ndarray[Any, Any]
_NUMBER_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_IMMUTABLE_TYPES = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
_INT64 = range(-(2**63), 2**63)


class _Python:
    name = "python"
    suffix = ".pkl"

    def owns(self, kind: type) -> bool:
        return True

    def describe(self, value: Any) -> Description:
        """`dtype` is empty for anything but a number of at most 64 bits."""
        dtype = _dtype_name(value)
        nbytes = np.dtype(dtype).itemsize if dtype else _value_nbytes(value)
        return Description(type(value).__name__, dtype, (), nbytes, "cpu", "python")

    def snapshot(self, value: Any) -> Any:
        """Containers around a snapshot of each leaf; a deep copy of other objects, or the object itself if
        that fails."""
        if pytree.is_container(value):
            return pytree.snapshot_leaves(value)
        if type(value) in _IMMUTABLE_TYPES:
            return value
        try:
            return copy.deepcopy(value)
        except Exception:  # an object's own copy may raise anything
            log.debug("a %s cannot be copied and is kept as it is", type(value).__name__, exc_info=True)
            return value

    def mark(self, value: Any) -> Callable[[Any], bool]:
        """Immutable values are compared by value; containers by identity and leaves; other objects by
        identity."""
        if type(value) in _IMMUTABLE_TYPES:
            exact = exact_key(value)
            return lambda other: type(other) is type(value) and exact_key(other) == exact
        if pytree.is_container(value):
            return _mark_container(value)
        return _mark_object(value)

    def bits(self, value: Any) -> _Array:
        return self.to_numpy(value)

    def to_numpy(self, value: Any) -> _Array:
        dtype = _dtype_name(value)
        if not dtype:
            raise UnsupportedValueError(
                f"a {type(value).__name__} is not a number of at most 64 bits; "
                "capture the arrays inside it, or pickle it"
            )
        return np.asarray(value, dtype)

    def from_bits(self, bits: _Array, dtype: str) -> Any:
        return bits.tolist()

    def placement(self, value: Any) -> Placement | None:
        return None


FRAMEWORK = _Python()


def _dtype_name(value: Any) -> str:
    if type(value) is int and value not in _INT64:
        return ""
    return _NUMBER_DTYPES.get(type(value), "")


def _value_nbytes(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value)
    return sys.getsizeof(value, 0)


def _mark_container(value: Any) -> Callable[[Any], bool]:
    leaves = list(pytree.leaves(value))
    marks = [(path, framework_of(leaf).mark(leaf)) for path, leaf in leaves]
    is_it = _identity_test(value, holds=all(type(leaf) in _IMMUTABLE_TYPES for _, leaf in leaves))

    def is_same(other: Any) -> bool:
        if not is_it(other):
            return False
        now = list(pytree.leaves(other))
        return len(now) == len(marks) and all(
            path == before and test(leaf) for (before, test), (path, leaf) in zip(marks, now, strict=True)
        )

    return is_same


def _mark_object(value: Any) -> Callable[[Any], bool]:
    is_it, content = _identity_test(value, holds=True), _unordered_content(value)
    return lambda other: is_it(other) and _unordered_content(other) == content


def _unordered_content(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return set(value)
    return bytes(value) if isinstance(value, bytearray) else None


def _identity_test(value: Any, holds: bool) -> Callable[[Any], bool]:
    """Lists and dicts take no weak reference. They are held while their leaves are immutable; holding one
    with tensors would keep their memory, so there the leaves distinguish a new container from the old."""
    if isinstance(value, tuple):
        kind = type(value)
        return lambda other: type(other) is kind
    try:
        reference: Callable[[], Any] = weakref.ref(value)
    except TypeError:
        address = id(value)
        return (lambda other: other is value) if holds else _same_address_test(address, type(value))
    return lambda other: other is not None and other is reference()


def _same_address_test(address: int, kind: type) -> Callable[[Any], bool]:
    return lambda other: id(other) == address and type(other) is kind
