"""Whether a value is what it was, without running any `__eq__`, `__repr__` or property of the program's own.

`is_same` compares two values that are both there; `state` is what to remember of one that may change or go.
Neither keeps an array alive. Objects that are neither numbers, texts, arrays nor containers of them are the
same when they are the same object.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.content import value_fingerprint
from tensortap.frameworks.nested import is_container, children

_ATOMS = frozenset((int, str, bytes, bool, type(None), type(Ellipsis), range))
_NUMBERS = frozenset((float, complex))
_ARRAYS = frozenset(("torch", "numpy", "jax"))
_MOST_PARTS = 2000  # of a container: beyond, its length and its ends decide
_DEEPEST = 16
_HEAD = 32  # numbers that two arrays are first compared by


def is_array(value: Any) -> bool:
    return framework_of(value).name in _ARRAYS


def contents_equal(before: Any, now: Any) -> bool:
    """By content; NaN is the same as NaN of the same bits."""
    kind = type(now)
    if before is now:
        return True
    if type(before) is not kind:
        return False
    if kind in _ATOMS:
        return bool(before == now)
    if kind in _NUMBERS:
        return _exact(before) == _exact(now)
    if is_array(now):
        return _are_same_arrays(before, now)
    return (is_container(now) or isinstance(now, set | frozenset | bytearray)) and change_token(before) == change_token(now)


def _are_same_arrays(before: Any, now: Any) -> bool:
    """Their first numbers differ as a rule, and then nobody looks at the others."""
    framework = framework_of(now)
    if framework.name == "torch" and _glance().differ_at_first_sight(before, now):
        return False
    try:
        was, described = framework.describe(before), framework.describe(now)
        if (was.dtype, was.shape, was.layout) != (described.dtype, described.shape, described.layout):
            return False
        if was.device != "cpu" or described.device != "cpu":
            return False  # the program would have to wait for its device
        one, other = framework.bits(before), framework.bits(now)
        if one.flat[:_HEAD].tobytes() != other.flat[:_HEAD].tobytes():
            return False
        return value_fingerprint(before) == value_fingerprint(now)
    except (UnsupportedValueError, ValueError, TypeError, RuntimeError):
        return False


def change_token(value: Any, *, deep: bool = False) -> Hashable:
    """Differs from another state of the same value when it was changed in between. A tensor is known by its
    version, which a change through another array on its memory does not touch; `deep` reads its numbers."""
    return _state(value, deep, _Budget())


def shallow_change_token(value: Any) -> Hashable:
    """What can be told of it at a glance, to be compared with its surface later."""
    kind: type = type(value)
    if kind in _ATOMS or kind in _NUMBERS:
        return _state(value, False, _Budget())
    size = len(value) if isinstance(value, list | tuple | dict | set) else tensor_version(value)
    return _identity(value), size


class _Budget:
    __slots__ = ("above", "left")

    def __init__(self) -> None:
        self.left = _MOST_PARTS
        self.above: list[int] = []


def _state(value: Any, deep: bool, budget: _Budget) -> Hashable:
    kind: type = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind in _NUMBERS:
        return kind, _exact(value)
    if is_array(value):
        return _array_state(value, deep)
    if is_container(value):
        return _container_state(value, deep, budget)
    if isinstance(value, set | frozenset):
        return kind, len(value), frozenset(_state(item, deep, budget) for item in _some(set(value), budget))
    if isinstance(value, bytearray):
        return kind, bytes(value)
    return _identity(value)


def _array_state(value: Any, deep: bool) -> Hashable:
    framework = framework_of(value)
    if framework.name == "torch":
        version = tensor_version(value)
        if version is not None and not (deep and framework.describe(value).device == "cpu"):
            return _identity(value), version
    found = value_fingerprint(value)
    return _identity(value) if found is None else found


def tensor_version(value: Any) -> int | None:
    """How often a tensor was changed in place; None where nobody counts."""
    if framework_of(value).name != "torch":
        return None
    torch = _torch()
    if type(value) in torch.PLAIN and torch.is_quiet():
        return None if value.is_inference() else int(value._version)
    version: int | None = torch.version(value)
    return version


def names_with_new_version(versions: dict[str, int], values: Mapping[str, Any]) -> list[str]:
    """The names whose tensor was changed in place since; the numbers are brought up to date."""
    torch = _torch()
    plain, is_quiet, passed = torch.PLAIN, torch.is_quiet(), []
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


@lru_cache(maxsize=1)
def _glance() -> Any:
    from tensortap.frameworks import torch_glance

    return torch_glance


def _container_state(value: Any, deep: bool, budget: _Budget) -> Hashable:
    if id(value) in budget.above or len(budget.above) >= _DEEPEST:
        return "above"
    budget.above.append(id(value))
    try:
        size = len(value) if isinstance(value, list | tuple | dict) else -1
        if size > budget.left:
            return type(value), size, _ends(value, deep, budget)
        if type(value) in (list, tuple) and (plain := _plain_state(value)) is not None:
            budget.left -= size
            return type(value), plain
        inside = children(value) or []
        budget.left -= len(inside)
        return type(value), size, tuple((part.step, _state(part.value, deep, budget)) for part in inside)
    finally:
        budget.above.pop()


def _ends(value: Any, deep: bool, budget: _Budget) -> Hashable:
    """Of a container too large to be walked on every line; only the ends of a list are looked at."""
    if not isinstance(value, list | tuple):
        return ()
    few = max(8, budget.left // 2)
    budget.left = 0
    ends = (*value[:few], *value[-few:])
    return _plain_state(ends) or tuple(_state(item, deep, budget) for item in ends)


def _plain_state(items: Sequence[Any]) -> Hashable:
    """Of numbers and texts alone, all at once: a loop may append to a long list; None for others."""
    kinds = tuple(map(type, items))
    if kinds and kinds.count(float) == len(kinds):
        return float, array("d", items).tobytes()
    return (kinds, tuple(items)) if _ATOMS.issuperset(kinds) else None


def _some(items: set[Any], budget: _Budget) -> list[Any]:
    taken = list(items)[: max(0, budget.left)]
    budget.left -= len(taken)
    return taken


def _identity(value: Any) -> Hashable:
    """An address may be used again; a weak reference is equal only to one of the same, living object."""
    try:
        return _Same(value)
    except TypeError:
        return type(value), id(value)


class _Same:
    """Equal to another one of the same object, without asking the object itself."""

    __slots__ = ("_address", "_found")

    def __init__(self, value: Any) -> None:
        self._address, self._found = id(value), weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._address != other._address:
            return False
        return self._found() is not None and self._found() is other._found()

    def __hash__(self) -> int:
        return self._address


def _exact(value: float | complex) -> Hashable:
    """Equal exactly when the values are: NaN to itself, and 0.0 not to -0.0."""
    if isinstance(value, float):
        return value.hex()
    return value.real.hex(), value.imag.hex()


def share_memory(one: Any, other: Any) -> bool:
    """Whether the memory of two arrays may overlap."""
    first, second = _memory(one), _memory(other)
    return first is not None and second is not None and first[0] < second[1] and second[0] < first[1]


def _memory(value: Any) -> tuple[int, int] | None:
    """From where to where it may lie."""
    if isinstance(value, np.ndarray):
        return _bounds(value) if value.size else None
    if framework_of(value).name != "torch":
        return None
    with _torch().aside():
        try:
            storage = value.untyped_storage()
            start = storage.data_ptr()
            return (start, start + storage.nbytes()) if start else None
        except (AttributeError, RuntimeError, NotImplementedError):
            return None


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    start = end = array.__array_interface__["data"][0]
    for size, step in zip(array.shape, array.strides, strict=True):
        start += min(0, (size - 1) * step)
        end += max(0, (size - 1) * step)
    return start, end + array.itemsize
