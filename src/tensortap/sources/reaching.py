"""What an object holds under an attribute or a key, without running a line of its own."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Hashable, Mapping
from functools import lru_cache
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from tensortap.frameworks.equality import is_array, shallow_change_token
from tensortap.frameworks.pytree import is_container
from tensortap.sources.touched import Step, Target

MISSING: Any = type("_Missing", (), {"__slots__": ()})()
_MOST_ATTRIBUTES = 32
_OPAQUE = (type, ModuleType, FunctionType)
_ITEM_KEYS = (str, int)
_NO_DICT: dict[str, Any] = {}


def reach(target: Target, variables: Mapping[str, Any]) -> tuple[str, Any]:
    """How far the way to it can be gone, up to an array whose numbers are stored to, and what is there."""
    path, value = target.root, variables.get(target.root, MISSING)
    for step in target.steps:
        if value is MISSING or is_array(value):
            break
        if step.kind == "attribute":
            path, value = f"{path}.{step.key}", attribute(value, str(step.key))
        else:
            key = variables.get(str(step.key), MISSING) if step.kind == "variable" else step.key
            path, value = f"{path}[{_shown(step, key)}]", _item(value, key)
    return path, value


def _shown(step: Step, key: Any) -> str:
    return repr(key) if type(key) in _ITEM_KEYS else str(step.key)


def _item(value: Any, key: Any) -> Any:
    if type(key) not in _ITEM_KEYS:
        return MISSING
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if isinstance(value, list) and type(key) is int and -len(value) <= key < len(value):
        return list.__getitem__(value, key)
    return MISSING


def attribute(value: Any, name: str) -> Any:
    """From the instance, a slot, or what a module of torch keeps apart; properties are left alone."""
    held = _dict(value)
    if name in held:
        return held[name]
    for kind in type(value).__mro__:
        slot = kind.__dict__.get(name)
        if isinstance(slot, MemberDescriptorType):
            return _slot(slot, value)
    for apart in ("_parameters", "_buffers", "_modules"):
        inside = held.get(apart)
        if isinstance(inside, dict) and name in inside:
            return inside[name]
    return MISSING


def _slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def attributes(value: Any) -> dict[str, Hashable] | None:
    """The surface of each public attribute of a small object, slots too; None for what is no such thing."""
    if isinstance(value, _OPAQUE) or is_container(value):
        return None
    kind: type = type(value)
    held, slots = _dict(value), _slots_of(kind)
    if held is _NO_DICT and not slots:
        return None
    if slots:
        held = {**held, **_filled(slots, value)}
    if len(held) > _MOST_ATTRIBUTES or "_modules" in held:
        return None
    return {
        name: shallow_change_token(one) for name, one in held.items() if type(name) is str and name[:1] != "_"
    }


def _filled(slots: Mapping[str, MemberDescriptorType], value: Any) -> dict[str, Any]:
    found = {name: _slot(slot, value) for name, slot in slots.items()}
    return {name: held for name, held in found.items() if held is not MISSING}


@lru_cache(maxsize=1024)
def _slots_of(kind: type) -> dict[str, MemberDescriptorType]:
    return {
        name: slot
        for one in reversed(kind.__mro__)
        if "__slots__" in vars(one)
        for name, slot in vars(one).items()
        if isinstance(slot, MemberDescriptorType)
    }


def _dict(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return _NO_DICT
    return held if type(held) is dict else _NO_DICT
