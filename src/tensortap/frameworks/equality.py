"""Whether a value is unchanged, without running any `__eq__`, `__repr__` or property of the program's own.

`contents_equal` compares two values that are both present; `change_token` is what to remember of one that may
change or be collected. Neither keeps an array alive. Objects other than numbers, strings, arrays and
containers of them are compared by identity.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.core.dtypes import ARRAY_LIBRARY_NAMES
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.fingerprint import exact_key, value_fingerprint
from tensortap.frameworks.pytree import children, is_container
from tensortap.frameworks.torch_if_loaded import loaded_torch_summary

_ATOM_TYPES = frozenset((int, str, bytes, bool, type(None), type(Ellipsis), range))
_FLOAT_TYPES = frozenset((float, complex))
_MAX_CHILDREN = 2000  # of a container: beyond, only its length and its ends are compared
_MAX_TOKEN_DEPTH = 16
_PREFIX_SIZE = 32  # elements compared first


def is_array(value: Any) -> bool:
    return framework_of(value).name in ARRAY_LIBRARY_NAMES


def contents_equal(before: Any, now: Any) -> bool:
    """Compare by content; NaNs are equal if their bits are."""
    kind = type(now)
    if before is now:
        return True
    if type(before) is not kind:
        return False
    if kind in _ATOM_TYPES:
        return bool(before == now)
    if kind in _FLOAT_TYPES:
        return bool(exact_key(before) == exact_key(now))
    if is_array(now):
        return _arrays_equal(before, now)
    return (is_container(now) or isinstance(now, set | frozenset | bytearray)) and change_token(
        before
    ) == change_token(now)


def _arrays_equal(before: Any, now: Any) -> bool:
    """Compares a prefix first: most differing arrays differ there."""
    framework = framework_of(now)
    if framework.name == "torch" and loaded_torch_summary().differ_in_prefix(before, now):
        return False
    try:
        was, described = framework.describe(before), framework.describe(now)
        if (was.dtype, was.shape, was.layout) != (described.dtype, described.shape, described.layout):
            return False
        if was.device != "cpu" or described.device != "cpu":
            return False  # comparing would synchronise with the device
        bits_before, bits_now = framework.bits(before), framework.bits(now)
        if bits_before.flat[:_PREFIX_SIZE].tobytes() != bits_now.flat[:_PREFIX_SIZE].tobytes():
            return False
        return value_fingerprint(before) == value_fingerprint(now)
    except (UnsupportedValueError, ValueError, TypeError, RuntimeError):
        return False


def change_token(value: Any, *, deep: bool = False) -> Hashable:
    """A token that differs if the value was changed in between. Tensors are tracked by version counter,
    which writes through an alias do not change; `deep` fingerprints their elements instead."""
    return _token(value, deep, _WalkBudget())


def shallow_change_token(value: Any) -> Hashable:
    """A constant-time token: identity, and length or version."""
    kind: type = type(value)
    if kind in _ATOM_TYPES or kind in _FLOAT_TYPES:
        return _token(value, False, _WalkBudget())
    size = len(value) if isinstance(value, list | tuple | dict | set) else tensor_version(value)
    return _identity_token(value), size


class _WalkBudget:
    __slots__ = ("ancestors", "left")

    def __init__(self) -> None:
        self.left = _MAX_CHILDREN
        self.ancestors: list[int] = []


def _token(value: Any, deep: bool, budget: _WalkBudget) -> Hashable:
    kind: type = type(value)
    if kind in _ATOM_TYPES:
        return kind, value
    if kind in _FLOAT_TYPES:
        return kind, exact_key(value)
    if is_array(value):
        return _array_token(value, deep)
    if is_container(value):
        return _container_token(value, deep, budget)
    if isinstance(value, set | frozenset):
        return (
            kind,
            len(value),
            frozenset(_token(item, deep, budget) for item in _take_within_budget(set(value), budget)),
        )
    if isinstance(value, bytearray):
        return kind, bytes(value)
    return _identity_token(value)


def _array_token(value: Any, deep: bool) -> Hashable:
    framework = framework_of(value)
    if framework.name == "torch":
        version = tensor_version(value)
        if version is not None and not (deep and framework.describe(value).device == "cpu"):
            return _identity_token(value), version
    fingerprint = value_fingerprint(value)
    return _identity_token(value) if fingerprint is None else fingerprint


def tensor_version(value: Any) -> int | None:
    """The in-place version counter of a tensor; None if there is none."""
    if framework_of(value).name != "torch":
        return None
    torch = _torch()
    if type(value) in torch.PLAIN_TENSOR_TYPES and torch.has_no_modes():
        return None if value.is_inference() else int(value._version)
    version: int | None = torch.version_counter(value)
    return version


def names_with_new_version(versions: dict[str, int], values: Mapping[str, Any]) -> list[str]:
    """The names whose tensor was modified in place since; `versions` is updated."""
    torch = _torch()
    plain, is_quiet, passed = torch.PLAIN_TENSOR_TYPES, torch.has_no_modes(), []
    for name, before in versions.items():
        value: Any = values.get(name)
        now = value._version if is_quiet and type(value) in plain else tensor_version(value)
        if now != before and now is not None:
            versions[name] = now
            passed.append(name)
    return passed


@lru_cache(maxsize=1)
def _torch() -> Any:
    from tensortap.frameworks import torch  # a tensor exists, so the library is there

    return torch


def _container_token(value: Any, deep: bool, budget: _WalkBudget) -> Hashable:
    if id(value) in budget.ancestors or len(budget.ancestors) >= _MAX_TOKEN_DEPTH:
        return "above"
    budget.ancestors.append(id(value))
    try:
        size = len(value) if isinstance(value, list | tuple | dict) else -1
        if size > budget.left:
            return type(value), size, _ends_token(value, deep, budget)
        if type(value) in (list, tuple) and (plain := _plain_sequence_token(value)) is not None:
            budget.left -= size
            return type(value), plain
        inside = children(value) or []
        budget.left -= len(inside)
        return type(value), size, tuple((part.step, _token(part.value, deep, budget)) for part in inside)
    finally:
        budget.ancestors.pop()


def _ends_token(value: Any, deep: bool, budget: _WalkBudget) -> Hashable:
    """For a container too large to traverse on every line: only the ends of a list."""
    if not isinstance(value, list | tuple):
        return ()
    few = max(8, budget.left // 2)
    budget.left = 0
    ends = (*value[:few], *value[-few:])
    return _plain_sequence_token(ends) or tuple(_token(item, deep, budget) for item in ends)


def _plain_sequence_token(items: Sequence[Any]) -> Hashable:
    """A token of strings and numbers at once, since loops append to long lists; None for other items."""
    kinds = tuple(map(type, items))
    if kinds and kinds.count(float) == len(kinds):
        return float, array("d", items).tobytes()
    return (kinds, tuple(items)) if _ATOM_TYPES.issuperset(kinds) else None


def _take_within_budget(items: set[Any], budget: _WalkBudget) -> list[Any]:
    selected = list(items)[: max(0, budget.left)]
    budget.left -= len(selected)
    return selected


def _identity_token(value: Any) -> Hashable:
    """Addresses are recycled; a weak reference equals only one to the same, living object."""
    try:
        return _ObjectIdentity(value)
    except TypeError:
        return type(value), id(value)


class _ObjectIdentity:
    """Equal to another of the same object, without calling the object's own `__eq__`."""

    __slots__ = ("_address", "_reference")

    def __init__(self, value: Any) -> None:
        self._address, self._reference = id(value), weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ObjectIdentity) or self._address != other._address:
            return False
        return self._reference() is not None and self._reference() is other._reference()

    def __hash__(self) -> int:
        return self._address


def share_memory(a: Any, b: Any) -> bool:
    """Whether the memory of two arrays may overlap."""
    first, second = _memory_range(a), _memory_range(b)
    return first is not None and second is not None and first[0] < second[1] and second[0] < first[1]


def _memory_range(value: Any) -> tuple[int, int] | None:
    """The address range that may hold its elements."""
    if isinstance(value, np.ndarray):
        return _array_memory_range(value) if value.size else None
    if framework_of(value).name != "torch":
        return None
    with _torch().outside_modes():
        try:
            storage = value.untyped_storage()
            start = storage.data_ptr()
            return (start, start + storage.nbytes()) if start else None
        except (AttributeError, RuntimeError, NotImplementedError):
            return None


def _array_memory_range(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    start = end = array.__array_interface__["data"][0]
    for size, step in zip(array.shape, array.strides, strict=True):
        start += min(0, (size - 1) * step)
        end += max(0, (size - 1) * step)
    return start, end + array.itemsize
