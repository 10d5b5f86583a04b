"""Two structures walked side by side: pairs of leaves, and the places where they do not fit together."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.operands import comes_apart
from tensortap.frameworks.base import Description, framework_of
from tensortap.frameworks.nested import parts

_SEQUENCES = (list, tuple, deque, UserList)
_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None)))
_HEAP_TYPE = 1 << 9  # a class made by a `class` statement


class Pair(NamedTuple):
    """Two values at one path. With a reason they do not fit together, and nothing below was compared."""

    path: str
    a: Any
    b: Any
    reason: str | None = None


class Missing:
    """Stands for a value that one side does not have."""


MISSING = Missing()

_Parts = dict[Any, tuple[str, Any]]  # how each part reads in a path, and the part


def pairs(a: Any, b: Any, is_leaf: Callable[[Any, Any], bool]) -> Iterator[Pair]:
    """Every pair of leaves in order; two places that contain themselves alike are alike."""
    levels = [iter([Pair("", a, b)])]
    above: list[tuple[int, int] | None] = [None]
    while levels:
        pair = next(levels[-1], None)
        if pair is None:
            levels.pop()
            above.pop()
            continue
        is_whole = pair.reason or _are_atoms(pair) or is_leaf(pair.a, pair.b)
        below = None if is_whole else _below(pair)
        if below is None:
            yield pair
        elif isinstance(below, str):
            yield pair._replace(reason=below)
        elif (id(pair.a), id(pair.b)) not in above:
            levels.append(iter(below))
            above.append((id(pair.a), id(pair.b)))


def _are_atoms(pair: Pair) -> bool:
    """What is most common, and has nothing inside, is not looked at further."""
    return type(pair.a) in _ATOMS and type(pair.b) in _ATOMS


def describe(value: Any) -> Description:
    """What stands at one side of a pair; nothing at all is a dash."""
    if isinstance(value, Missing):
        return Description("-", "", (), 0, layout="python")
    return framework_of(value).describe(value)


def _below(pair: Pair) -> list[Pair] | str | None:
    """The pairs one step down, a sentence when the two do not fit, or None for leaves."""
    a_parts, b_parts = _parts(pair.a), _parts(pair.b)
    if a_parts is None and b_parts is None:
        return _below_objects(pair)
    if isinstance(pair.a, np.ndarray) and isinstance(pair.b, np.ndarray):
        a_parts = _elements(pair.a) if a_parts is None else a_parts
        b_parts = _elements(pair.b) if b_parts is None else b_parts
    if a_parts is None or b_parts is None or _kind(pair.a) != _kind(pair.b):
        return f"{_called(pair.a)} against {_called(pair.b)}"
    if _is_keyed(pair.a):
        return _by_key(pair, a_parts, b_parts)
    return _by_position(pair, a_parts, b_parts)


def _below_objects(pair: Pair) -> list[Pair] | None:
    if type(pair.a) is not type(pair.b):
        return None
    a_state, b_state = _state(pair.a), _state(pair.b)
    return None if a_state is None or b_state is None else _by_key(pair, a_state, b_state)


def _by_position(pair: Pair, a: _Parts, b: _Parts) -> list[Pair] | str:
    if _extent(pair.a) != _extent(pair.b):
        return f"lengths differ: {_extent(pair.a)} against {_extent(pair.b)}"
    return [
        Pair(pair.path + step, left, right)
        for (step, left), (_, right) in zip(a.values(), b.values(), strict=True)
    ]


def _by_key(pair: Pair, a: _Parts, b: _Parts) -> list[Pair]:
    common = [Pair(pair.path + step, part, b[key][1]) for key, (step, part) in a.items() if key in b]
    only_a = [
        Pair(pair.path + step, part, MISSING, "only in a") for key, (step, part) in a.items() if key not in b
    ]
    only_b = [
        Pair(pair.path + step, MISSING, part, "only in b") for key, (step, part) in b.items() if key not in a
    ]
    return [*common, *only_a, *only_b]


def _parts(value: Any) -> _Parts | None:
    """What a container holds, by key or position; None for a leaf."""
    if isinstance(value, np.ndarray):
        return _array_parts(value)
    if comes_apart(value):
        return {place: (f"[{place}]", piece) for place, piece in enumerate(value.unbind())}
    held = parts(value)
    return None if held is None else {part.key: (part.step, part.value) for part in held}


def _array_parts(value: np.ndarray[Any, Any]) -> _Parts | None:
    """Arrays that are not one block of numbers come apart; all others are leaves."""
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        data = np.where(mask, np.zeros((), value.dtype), value.data)
        return {"mask": (".mask", mask), "data": (".data", data)}
    if value.dtype.names is not None:
        return {name: (f"[{name!r}]", value[name]) for name in value.dtype.names}
    return _elements(value) if value.dtype.hasobject else None


def _elements(value: Any) -> _Parts | None:
    """An array of numbers one by one, as it meets an array of objects."""
    if not isinstance(value, np.ndarray) or _is_keyed(value):
        return None
    return {index: (f"{list(index)}", part) for index, part in np.ndenumerate(value)}


def _is_keyed(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return isinstance(value, np.ma.MaskedArray) or value.dtype.names is not None
    return not isinstance(value, _SEQUENCES)


def _kind(value: Any) -> tuple[bool, bool]:
    """What must be the same for two containers to be set against each other."""
    return isinstance(value, np.ndarray), _is_keyed(value)


def _extent(value: Any) -> Any:
    return list(value.shape) if isinstance(value, np.ndarray) else len(value)


def _state(value: Any) -> _Parts | None:
    """What an object without an equality of its own consists of; None where == is all there is to ask."""
    if isinstance(value, BaseException):
        return {name: (f".{name}", part) for name, part in {**vars(value), "args": value.args}.items()}
    kind = type(value)
    has_equality = any("__eq__" in vars(parent) for parent in kind.__mro__ if parent is not object)
    if has_equality or not kind.__flags__ & _HEAP_TYPE or isinstance(value, type):
        return None
    held: Mapping[str, Any] | None = getattr(value, "__dict__", None)
    slots = [name for parent in kind.__mro__ for name, slot in vars(parent).items() if _is_slot(slot, parent)]
    if held is None and not slots:
        return None
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {name: (f".{name}", part) for name, part in {**state, **(held or {})}.items()}


def _is_slot(slot: Any, parent: type) -> bool:
    return isinstance(slot, MemberDescriptorType) and bool(parent.__flags__ & _HEAP_TYPE)


def _called(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, (*_SEQUENCES, Mapping)) else kind
