"""Nested values as trees: iterate over leaves, and rebuild the structure around others."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any, Literal, NamedTuple

from tensortap.frameworks.base import framework_of

MAX_DEPTH = 1000
MAX_SHARED = 10_000  # repeated visits of shared containers within one traversal
log = logging.getLogger("tensortap.nested")

ContainerKind = Literal["sequence", "named", "mapping", "fields", "output"]


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """Replaces a subtree that was not traversed: a cycle, too deep, or a container shared too often."""

    reason: Literal["cycle", "depth", "shared"]


class Child(NamedTuple):
    step: str  # its path segment
    key: Any
    value: Any


class _Leaf(NamedTuple):
    leaf: Any


class _Level:
    """One container on the path of a traversal, and its rebuilt children so far."""

    __slots__ = ("built", "children", "kind", "path", "remaining", "value")

    def __init__(self, value: Any, shape: ContainerKind, path: str) -> None:
        self.value, self.kind, self.path = value, shape, path
        self.children = _children_or_none(value, shape)
        self.remaining = iter(self.children)
        self.built: list[Any] = []


class _Traversal:
    """The containers from the root down to the current position."""

    def __init__(self, value: Any, shape: ContainerKind) -> None:
        self.levels = [_Level(value, shape, "")]
        self._ancestors = {id(value)}
        self._opened = {id(value)}
        self._opened_again = 0

    def enter(self, value: Any, path: str) -> _Leaf | None:
        """Descend into a container; returns a leaf, or the Truncation that replaces the container."""
        shape = _container_kind(value)
        if shape is None:
            return _Leaf(value)
        if id(value) in self._ancestors:
            return _Leaf(Truncation("cycle"))
        if len(self.levels) >= MAX_DEPTH:
            return _Leaf(Truncation("depth"))
        # A list of two references to a list of two references ... has exponentially many leaves.
        self._opened_again += id(value) in self._opened
        if self._opened_again > MAX_SHARED:
            return _Leaf(Truncation("shared"))
        self._opened.add(id(value))
        self._ancestors.add(id(value))
        self.levels.append(_Level(value, shape, path))
        return None

    def leave(self) -> _Level:
        level = self.levels.pop()
        self._ancestors.discard(id(level.value))
        return level


class _Memo:
    """Results by the id of the value. Keeps the values alive, since ids are recycled."""

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        self._keepalive: list[Any] = []

    def remember(self, value: Any, result: Any) -> Any:
        self._keepalive.append(value)
        self.results[id(value)] = result
        return result


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Each leaf with its path: `""`, `[0]`, `['k'][0]`, `.logits`.

    >>> list(leaves({"a": [1, 2]}))
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    shape = _container_kind(value)
    if shape is None:
        yield "", value
        return
    traversal = _Traversal(value, shape)
    while traversal.levels:
        level = traversal.levels[-1]
        part = next(level.remaining, None)
        if part is None:
            traversal.leave()
            continue
        path = level.path + part.step
        leaf = traversal.enter(part.value, path)
        if leaf is not None:
            yield path, leaf.leaf


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same structure with `function` applied to each leaf; shared leaves stay shared."""
    shape = _container_kind(value)
    if shape is None:
        return function(value)
    traversal, memo = _Traversal(value, shape), _Memo()
    while traversal.levels:
        level = traversal.levels[-1]
        part = next(level.remaining, None)
        if part is None:
            built = memo.remember(level.value, _rebuild_container(traversal.leave()))
            if traversal.levels:
                traversal.levels[-1].built.append(built)
        elif id(part.value) in memo.results:
            level.built.append(memo.results[id(part.value)])
        else:
            leaf = traversal.enter(part.value, "")
            if leaf is not None:
                level.built.append(memo.remember(leaf.leaf, function(leaf.leaf)))
    return built


def snapshot_leaves(value: Any) -> Any:
    """The same structure around a snapshot of each leaf."""
    return map_leaves(value, lambda leaf: framework_of(leaf).snapshot(leaf))


def is_container(value: Any) -> bool:
    """Whether it has leaves of its own; a set has none, because they have no paths."""
    return _container_kind(value) is not None


def children(value: Any) -> list[Child] | None:
    """The direct children of a container; None for a leaf."""
    shape = _container_kind(value)
    return None if shape is None else _children_or_none(value, shape)


def _container_kind(value: Any) -> ContainerKind | None:
    kind: type = type(value)
    return _container_kind_of_type(kind)


@lru_cache(maxsize=1024)
def _container_kind_of_type(kind: type) -> ContainerKind | None:
    """The kind of container that this class is; None for a leaf."""
    if kind is Truncation:
        return None
    if hasattr(kind, "__dataclass_fields__"):
        # transformers' ModelOutput is a dictionary of the fields that are not None.
        return "output" if issubclass(kind, dict) else "fields"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "named"
    if issubclass(kind, (list, tuple, deque, UserList)):
        return "sequence"
    return "mapping" if issubclass(kind, Mapping) else None


def _children_or_none(value: Any, shape: ContainerKind) -> list[Child]:
    try:
        return _list_children(value, shape)
    except Exception:  # a container's own iteration may raise anything
        log.debug("a %s cannot be walked", type(value).__name__, exc_info=True)
        return []


def _list_children(value: Any, shape: ContainerKind) -> list[Child]:
    if shape == "sequence":
        return [Child(f"[{i}]", i, item) for i, item in enumerate(value)]
    if shape == "named":
        return [Child(f".{name}", name, item) for name, item in zip(value._fields, value, strict=False)]
    if shape == "fields":
        return [Child(f".{name}", name, item) for name, item in _dataclass_items(value)]
    if shape == "output":
        return [Child(f".{name}", name, item) for name, item in _mapping_items(value)]
    return [Child(f"[{_key_repr(key)}]", key, item) for key, item in _mapping_items(value)]


def _dataclass_items(value: Any) -> Iterator[tuple[str, Any]]:
    """The stored fields of a dataclass instance, without running properties or descriptors."""
    attributes = getattr(value, "__dict__", {})
    for field in dataclasses.fields(value):
        slot = getattr(type(value), field.name, None)
        if field.name in attributes:
            yield field.name, attributes[field.name]
        elif isinstance(slot, MemberDescriptorType):
            try:
                yield field.name, slot.__get__(value)
            except AttributeError:
                continue


def _mapping_items(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """The stored items of a dictionary in order, even if its class overrides `items`."""
    if isinstance(value, OrderedDict):
        return list(OrderedDict.items(value))
    if isinstance(value, dict):
        return list(dict.items(value))
    return list(value.data.items() if isinstance(value, UserDict) else value.items())


def _key_repr(key: Any) -> str:
    try:
        return repr(key)
    except Exception:  # a key's own repr may raise anything
        log.debug("a key of type %s has no repr", type(key).__name__, exc_info=True)
        return f"<{type(key).__name__}>"


def _rebuild_container(level: _Level) -> Any:
    """A container of the same class; a plain one if that class cannot be rebuilt."""
    keys = [part.key for part in level.children]
    try:
        return _BUILDERS[level.kind](level.value, keys, level.built)
    except Exception:  # a container's own constructor may raise anything
        log.debug("a %s is kept as a plain container", type(level.value).__name__, exc_info=True)
        if level.kind == "sequence":
            return tuple(level.built) if isinstance(level.value, tuple) else list(level.built)
        return dict(zip(keys, level.built, strict=True))


def _build_sequence(value: Any, keys: list[Any], built: list[Any]) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return kind(built)
    if kind is deque:
        return deque(built, value.maxlen)
    if isinstance(value, tuple):
        return kind(built)
    rebuilt = copy.copy(value)
    rebuilt.clear()
    rebuilt.extend(built)
    return rebuilt


def _build_namedtuple(value: Any, keys: list[Any], built: list[Any]) -> Any:
    return tuple.__new__(type(value), built)


def _build_mapping(value: Any, keys: list[Any], built: list[Any]) -> Any:
    rebuilt = {} if type(value) is dict else copy.copy(value)
    for key, item in zip(keys, built, strict=True):
        rebuilt[key] = item
    return rebuilt


def _build_dataclass(value: Any, keys: list[Any], built: list[Any]) -> Any:
    """Without `__init__`, which may take other arguments or have side effects."""
    kind: Any = type(value)
    rebuilt = object.__new__(kind)
    if hasattr(value, "__dict__"):
        rebuilt.__dict__.update(value.__dict__)
    for name, item in zip(keys, built, strict=True):
        object.__setattr__(rebuilt, name, item)
    return rebuilt


def _build_model_output(value: Any, keys: list[Any], built: list[Any]) -> Any:
    kind: Any = type(value)
    rebuilt = kind.__new__(kind)
    rebuilt.__dict__.update(value.__dict__)
    base = OrderedDict if isinstance(value, OrderedDict) else dict
    for name, item in zip(keys, built, strict=True):
        base.__setitem__(rebuilt, name, item)
        object.__setattr__(rebuilt, name, item)
    return rebuilt


_BUILDERS: dict[ContainerKind, Callable[[Any, list[Any], list[Any]], Any]] = {
    "sequence": _build_sequence,
    "named": _build_namedtuple,
    "mapping": _build_mapping,
    "fields": _build_dataclass,
    "output": _build_model_output,
}
