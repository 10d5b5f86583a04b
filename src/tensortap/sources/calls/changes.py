"""Which variables, attributes and arrays each line of a traced call has changed.

Only what the line may change is compared; attributes and items are looked up without running user code.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from tensortap.frameworks.equality import (
    change_token,
    contents_equal,
    is_array,
    names_with_new_version,
    shallow_change_token,
    share_memory,
    tensor_version,
)
from tensortap.frameworks.pytree import is_container
from tensortap.sources.calls.line_effects import (
    AccessStep,
    CodeEffects,
    LineEffects,
    MutatedTarget,
)

OnChange = Callable[[str, Any, int], None]  # the variable or path, its value, the line that changed it
_NO_EFFECTS = LineEffects()


class ChangeTracker:
    """Compares before and after each line, only what the line can have changed."""

    __slots__ = (
        "_attribute_tokens",
        "_code_effects",
        "_deep_names",
        "_has_aliases",
        "_line",
        "_on_change",
        "_previous_values",
        "_target_tokens",
        "_tokens",
        "_versions",
        "_wants",
        "effects",
    )

    def __init__(
        self, code_effects: CodeEffects, on_change: OnChange, wants: Callable[[str], bool] | None
    ) -> None:
        self._code_effects, self._on_change, self._wants = code_effects, on_change, wants
        self.effects = _NO_EFFECTS
        self._line = 0
        self._previous_values: dict[str, Any] = {}
        self._tokens: dict[str, Hashable] = {}
        self._deep_names: frozenset[str] = frozenset()  # whose token covers the data
        self._attribute_tokens: dict[str, dict[str, Hashable]] = {}
        self._target_tokens: dict[MutatedTarget, tuple[str, Hashable]] = {}
        self._versions: dict[str, int] = {}  # of every variable that is a tensor with a version counter
        self._has_aliases = False  # version counters may miss changes

    def remember(self, name: str, value: Any) -> None:
        """Remember the version of a variable's value."""
        version = tensor_version(value)
        if version is not None:
            self._versions[name] = version
        elif name in self._versions:
            del self._versions[name]

    def begin_line(self, frame: FrameType, variables: Mapping[str, Any]) -> None:
        """Snapshot what the next line can change."""
        effects = self.effects = self._code_effects.effects(frame.f_lasti)
        self._line = frame.f_lineno
        self._previous_values = {name: variables.get(name, MISSING) for name in effects.bound}
        if effects.may_change:
            self._previous_values.update(
                {name: frame.f_globals.get(name, MISSING) for name in effects.global_names}
            )
            self._has_aliases = self._has_aliases or effects.is_aliasing
            self._snapshot_exposed(effects, variables)
            self._target_tokens = {target: _target_token(target, variables) for target in effects.targets}

    def _is_wanted(self, path: str) -> bool:
        return self._wants is None or self._wants(path)

    def _snapshot_exposed(self, effects: LineEffects, variables: Mapping[str, Any]) -> None:
        arrays = []
        reads_arrays = effects.is_in_place or self._has_aliases
        for name in effects.exposed:
            if name in self._versions and not reads_arrays:
                continue
            value = variables.get(name, MISSING)
            if value is MISSING or not self._is_wanted(name):
                continue
            if is_array(value):
                arrays.append(value)
            elif (tokens := attribute_tokens(value)) is not None:
                self._attribute_tokens[name] = tokens
            else:
                self._tokens[name] = change_token(value, deep=effects.is_aliasing)
        if arrays:
            self._snapshot_overlapping(arrays, variables)

    def _snapshot_overlapping(self, arrays: list[Any], variables: Mapping[str, Any]) -> None:
        """Snapshot the variables that share memory with these arrays."""
        deep_names = set()
        for name, value in variables.items():
            if (
                is_array(value)
                and self._is_wanted(name)
                and any(_share_memory(value, array) for array in arrays)
            ):
                self._tokens[name] = change_token(value, deep=True)
                deep_names.add(name)
        self._deep_names = frozenset(deep_names)

    def end_line(self, frame: FrameType, variables: Mapping[str, Any], has_called: bool) -> None:
        """Report what differs. Attribute changes made in a traced call were reported there."""
        reported: set[str] = set()
        effects = self.effects
        for name, before in self._previous_values.items():
            current = variables.get(name, MISSING)
            if current is MISSING and name in effects.global_names:
                current = frame.f_globals.get(name, MISSING)
            if current is not before and self._is_rebound(name, before, current):
                reported.add(name)
        if effects.may_change:
            self._report_effects(variables, reported, has_called)
        self._previous_values = {}

    def _report_effects(self, variables: Mapping[str, Any], reported: set[str], has_called: bool) -> None:
        if self._target_tokens:
            reported.update(self._report_targets(variables))
        if self._tokens:
            self._report_tokens(variables, reported)
        if self._attribute_tokens and not has_called:
            self._report_attributes(variables, reported)
        for name in names_with_new_version(self._versions, variables) if self._versions else ():
            if name not in reported and self._is_wanted(name):
                self._on_change(name, variables[name], self._line)
        self._tokens, self._attribute_tokens, self._target_tokens, self._deep_names = {}, {}, {}, frozenset()

    def _is_rebound(self, name: str, before: Any, current: Any) -> bool:
        """Report it as a change unless the content is the same as when the line began."""
        if current is MISSING:
            self._versions.pop(name, None)
            return False
        self.remember(name, current)
        if name in self._deep_names:
            is_unchanged = type(before) is type(current) and self._tokens[name] == change_token(
                current, deep=True
            )
        else:
            is_unchanged = before is not MISSING and contents_equal(before, current)
        self._tokens.pop(name, None)
        self._attribute_tokens.pop(name, None)
        if is_unchanged or not self._is_wanted(name):
            return False
        self._on_change(name, current, self._line)
        return True

    def _report_targets(self, variables: Mapping[str, Any]) -> set[str]:
        roots = set()
        for target, (_, before) in self._target_tokens.items():
            path, value = look_up_target(target, variables)
            if value is MISSING or path == target.root:
                continue
            roots.add(target.root)
            if change_token(value, deep=True) != before and self._is_wanted(path):
                self._on_change(path, value, self._line)
        return roots

    def _report_tokens(self, variables: Mapping[str, Any], reported: set[str]) -> None:
        for name, before in self._tokens.items():
            value = variables.get(name, MISSING)
            if value is MISSING or name in reported:
                continue
            reported.add(name)
            self.remember(name, value)
            if change_token(value, deep=name in self._deep_names or self.effects.is_aliasing) != before:
                self._on_change(name, value, self._line)

    def _report_attributes(self, variables: Mapping[str, Any], reported: set[str]) -> None:
        for name, before in self._attribute_tokens.items():
            value = variables.get(name, MISSING)
            if name in reported:  # by the assigned attribute, or as another object
                continue
            for attribute_name, token in (attribute_tokens(value) or {}).items():
                if before.get(attribute_name) != token and self._is_wanted(f"{name}.{attribute_name}"):
                    self._on_change(
                        f"{name}.{attribute_name}", look_up_attribute(value, attribute_name), self._line
                    )


def _target_token(target: MutatedTarget, variables: Mapping[str, Any]) -> tuple[str, Hashable]:
    path, value = look_up_target(target, variables)
    return path, change_token(value, deep=True)


def _share_memory(a: Any, b: Any) -> bool:
    return a is b or share_memory(a, b)


MISSING: Any = type("_Missing", (), {"__slots__": ()})()
_MAX_ATTRIBUTES = 32
_OPAQUE = (type, ModuleType, FunctionType)
_ITEM_KEYS = (str, int)
_NO_DICT: dict[str, Any] = {}


def look_up_target(target: MutatedTarget, variables: Mapping[str, Any]) -> tuple[str, Any]:
    """The path as far as it can be resolved, at most up to an array, and the value there."""
    path, value = target.root, variables.get(target.root, MISSING)
    for step in target.steps:
        if value is MISSING or is_array(value):
            break
        if step.kind == "attribute":
            path, value = f"{path}.{step.key}", look_up_attribute(value, str(step.key))
        else:
            key = variables.get(str(step.key), MISSING) if step.kind == "variable" else step.key
            path, value = f"{path}[{_format_key(step, key)}]", _look_up_item(value, key)
    return path, value


def _format_key(step: AccessStep, key: Any) -> str:
    return repr(key) if type(key) in _ITEM_KEYS else str(step.key)


def _look_up_item(value: Any, key: Any) -> Any:
    if type(key) not in _ITEM_KEYS:
        return MISSING
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if isinstance(value, list) and type(key) is int and -len(value) <= key < len(value):
        return list.__getitem__(value, key)
    return MISSING


def look_up_attribute(value: Any, name: str) -> Any:
    """From the instance dict, a slot, or a torch module's registries; properties are not called."""
    instance_dict = _instance_dict(value)
    if name in instance_dict:
        return instance_dict[name]
    for base in type(value).__mro__:
        slot = base.__dict__.get(name)
        if isinstance(slot, MemberDescriptorType):
            return _read_slot(slot, value)
    for registry_name in ("_parameters", "_buffers", "_modules"):
        registry = instance_dict.get(registry_name)
        if isinstance(registry, dict) and name in registry:
            return registry[name]
    return MISSING


def _read_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def attribute_tokens(value: Any) -> dict[str, Hashable] | None:
    """A shallow change token of each public attribute of a small object, slots too; None for other values."""
    if isinstance(value, _OPAQUE) or is_container(value):
        return None
    value_class: type = type(value)
    attributes_by_name, slots = _instance_dict(value), _slots_of(value_class)
    if attributes_by_name is _NO_DICT and not slots:
        return None
    if slots:
        attributes_by_name = {**attributes_by_name, **_slot_values(slots, value)}
    if len(attributes_by_name) > _MAX_ATTRIBUTES or "_modules" in attributes_by_name:
        return None
    return {
        name: shallow_change_token(attribute_value)
        for name, attribute_value in attributes_by_name.items()
        if type(name) is str and name[:1] != "_"
    }


def _slot_values(slots: Mapping[str, MemberDescriptorType], value: Any) -> dict[str, Any]:
    slot_values = {name: _read_slot(slot, value) for name, slot in slots.items()}
    return {name: slot_value for name, slot_value in slot_values.items() if slot_value is not MISSING}


@lru_cache(maxsize=1024)
def _slots_of(value_class: type) -> dict[str, MemberDescriptorType]:
    return {
        name: slot
        for base in reversed(value_class.__mro__)
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    }


def _instance_dict(value: Any) -> dict[str, Any]:
    try:
        instance_dict = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return _NO_DICT
    return instance_dict if type(instance_dict) is dict else _NO_DICT


NO_RESULT: Any = object()  # distinguishes no result from None
