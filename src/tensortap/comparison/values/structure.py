"""Walk two nested structures in parallel: pairs of leaves, and where the structures differ."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.sides.leaf import is_composite_array
from tensortap.frameworks.base import Description, framework_of
from tensortap.frameworks.pytree import children

_SEQUENCES = (list, tuple, deque, UserList)
_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None)))
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: defined by a `class` statement


class LeafPair(NamedTuple):
    """Two values at one path. With a reason their structures differ, and nothing below was compared."""

    path: str
    a: Any
    b: Any
    reason: str | None = None


class AbsentLeaf:
    """Placeholder for a value that one side does not have."""


ABSENT = AbsentLeaf()

_Children = dict[Any, tuple[str, Any]]  # by key: the child's path segment, and the child


def walk_leaf_pairs(a: Any, b: Any, is_leaf: Callable[[Any, Any], bool]) -> Iterator[LeafPair]:
    """Yield every pair of leaves in order; cycles at the same paths are equal."""
    levels = [iter([LeafPair("", a, b)])]
    above: list[tuple[int, int] | None] = [None]
    while levels:
        pair = next(levels[-1], None)
        if pair is None:
            levels.pop()
            above.pop()
            continue
        is_end = pair.reason or _are_atoms(pair) or is_leaf(pair.a, pair.b)
        children = None if is_end else _child_pairs(pair)
        if children is None:
            yield pair
        elif isinstance(children, str):
            yield pair._replace(reason=children)
        elif (id(pair.a), id(pair.b)) not in above:
            levels.append(iter(children))
            above.append((id(pair.a), id(pair.b)))


def _are_atoms(pair: LeafPair) -> bool:
    """Fast path for the most common leaves."""
    return type(pair.a) in _ATOMS and type(pair.b) in _ATOMS


def describe_leaf(value: Any) -> Description:
    """Describe one side of a pair; an absent leaf is a dash."""
    if isinstance(value, AbsentLeaf):
        return Description("-", "", (), 0, layout="python")
    return framework_of(value).describe(value)


def _child_pairs(pair: LeafPair) -> list[LeafPair] | str | None:
    """The pairs one level down, a message if the structures differ, or None for leaves."""
    a_parts, b_parts = _children(pair.a), _children(pair.b)
    if a_parts is None and b_parts is None:
        return _child_pairs_of_objects(pair)
    if isinstance(pair.a, np.ndarray) and isinstance(pair.b, np.ndarray):
        a_parts = _array_elements(pair.a) if a_parts is None else a_parts
        b_parts = _array_elements(pair.b) if b_parts is None else b_parts
    if a_parts is None or b_parts is None or _container_kind(pair.a) != _container_kind(pair.b):
        return f"{_type_name(pair.a)} against {_type_name(pair.b)}"
    if _is_keyed(pair.a):
        return _pair_by_key(pair, a_parts, b_parts)
    return _pair_by_position(pair, a_parts, b_parts)


def _child_pairs_of_objects(pair: LeafPair) -> list[LeafPair] | None:
    if type(pair.a) is not type(pair.b):
        return None
    a_state, b_state = _object_state(pair.a), _object_state(pair.b)
    return None if a_state is None or b_state is None else _pair_by_key(pair, a_state, b_state)


def _pair_by_position(pair: LeafPair, a: _Children, b: _Children) -> list[LeafPair] | str:
    if _length_or_shape(pair.a) != _length_or_shape(pair.b):
        return f"lengths differ: {_length_or_shape(pair.a)} against {_length_or_shape(pair.b)}"
    return [
        LeafPair(pair.path + step, a_part, b_part)
        for (step, a_part), (_, b_part) in zip(a.values(), b.values(), strict=True)
    ]


def _pair_by_key(pair: LeafPair, a: _Children, b: _Children) -> list[LeafPair]:
    common = [LeafPair(pair.path + step, part, b[key][1]) for key, (step, part) in a.items() if key in b]
    only_a = [
        LeafPair(pair.path + step, part, ABSENT, "only in a")
        for key, (step, part) in a.items()
        if key not in b
    ]
    only_b = [
        LeafPair(pair.path + step, ABSENT, part, "only in b")
        for key, (step, part) in b.items()
        if key not in a
    ]
    return [*common, *only_a, *only_b]


def _children(value: Any) -> _Children | None:
    """The children of a container by key or position; None for a leaf."""
    if isinstance(value, np.ndarray):
        return _array_children(value)
    if is_composite_array(value):
        return {index: (f"[{index}]", component) for index, component in enumerate(value.unbind())}
    items = children(value)
    return None if items is None else {part.key: (part.step, part.value) for part in items}


def _array_children(value: np.ndarray[Any, Any]) -> _Children | None:
    """Split masked, structured and object arrays; other arrays are leaves."""
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        data = np.where(mask, np.zeros((), value.dtype), value.data)
        return {"mask": (".mask", mask), "data": (".data", data)}
    if value.dtype.names is not None:
        return {name: (f"[{name!r}]", value[name]) for name in value.dtype.names}
    return _array_elements(value) if value.dtype.hasobject else None


def _array_elements(value: Any) -> _Children | None:
    """The elements of an array, to compare it with an object array."""
    if not isinstance(value, np.ndarray) or _is_keyed(value):
        return None
    return {index: (f"{list(index)}", part) for index, part in np.ndenumerate(value)}


def _is_keyed(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return isinstance(value, np.ma.MaskedArray) or value.dtype.names is not None
    return not isinstance(value, _SEQUENCES)


def _container_kind(value: Any) -> tuple[bool, bool]:
    """What must agree for two containers to be comparable."""
    return isinstance(value, np.ndarray), _is_keyed(value)


def _length_or_shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, np.ndarray) else len(value)


def _object_state(value: Any) -> _Children | None:
    """The attributes of an object without its own __eq__; None if it has one."""
    if isinstance(value, BaseException):
        return {name: (f".{name}", part) for name, part in {**vars(value), "args": value.args}.items()}
    kind = type(value)
    has_equality = any("__eq__" in vars(parent) for parent in kind.__mro__ if parent is not object)
    if has_equality or not kind.__flags__ & _HEAP_TYPE or isinstance(value, type):
        return None
    attributes: Mapping[str, Any] | None = getattr(value, "__dict__", None)
    slots = [name for parent in kind.__mro__ for name, slot in vars(parent).items() if _is_slot(slot, parent)]
    if attributes is None and not slots:
        return None
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {name: (f".{name}", part) for name, part in {**state, **(attributes or {})}.items()}


def _is_slot(slot: Any, parent: type) -> bool:
    return isinstance(slot, MemberDescriptorType) and bool(parent.__flags__ & _HEAP_TYPE)


def _type_name(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, (*_SEQUENCES, Mapping)) else kind
