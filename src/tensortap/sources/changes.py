"""What each line of a running call has changed: its variables, what they hold, and arrays in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import FrameType
from typing import Any

from tensortap.frameworks.equality import (
    change_token,
    contents_equal,
    is_array,
    names_with_new_version,
    share_memory,
    tensor_version,
)
from tensortap.sources.reaching import MISSING, attribute, attributes, reach
from tensortap.sources.touched import Lines, Target, Touched

Tell = Callable[[str, Any, int], None]  # the variable or path, its value, the line that changed it
_NOTHING = Touched()


class Changes:
    """Looks before and after each line, at no more than what the line can have changed."""

    __slots__ = (
        "_attributes", "_before", "_deep", "_has_aliases", "_line", "_lines", "_states", "_stored", "_tell",
        "_versions", "_wants", "touched",
    )  # fmt: skip

    def __init__(self, lines: Lines, tell: Tell, wants: Callable[[str], bool] | None) -> None:
        self._lines, self._tell, self._wants = lines, tell, wants
        self.touched = _NOTHING
        self._line = 0
        self._before: dict[str, Any] = {}
        self._states: dict[str, Hashable] = {}
        self._deep: frozenset[str] = frozenset()  # of the states, those of numbers
        self._attributes: dict[str, dict[str, Hashable]] = {}
        self._stored: dict[Target, tuple[str, Hashable]] = {}
        self._versions: dict[str, int] = {}  # of every variable that is a tensor which counts its changes
        self._has_aliases = False  # a version counter may not tell everything any more

    def know(self, name: str, value: Any) -> None:
        """A variable has this value now."""
        version = tensor_version(value)
        if version is not None:
            self._versions[name] = version
        elif name in self._versions:
            del self._versions[name]

    def begin(self, frame: FrameType, variables: Mapping[str, Any]) -> None:
        """A run of instructions begins."""
        touched = self.touched = self._lines.touched(frame.f_lasti)
        self._line = frame.f_lineno
        self._before = {name: variables.get(name, MISSING) for name in touched.bound}
        if touched.may_change:
            self._before.update({name: frame.f_globals.get(name, MISSING) for name in touched.worldwide})
            self._has_aliases = self._has_aliases or touched.is_aliasing
            self._look_at_handed(touched, variables)
            self._stored = {one: _stored(one, variables) for one in touched.targets}

    def _is_wanted(self, path: str) -> bool:
        return self._wants is None or self._wants(path)

    def _look_at_handed(self, touched: Touched, variables: Mapping[str, Any]) -> None:
        arrays = []
        reads_arrays = touched.is_in_place or self._has_aliases
        for name in touched.handed:
            if name in self._versions and not reads_arrays:
                continue
            value = variables.get(name, MISSING)
            if value is MISSING or not self._is_wanted(name):
                continue
            if is_array(value):
                arrays.append(value)
            elif (held := attributes(value)) is not None:
                self._attributes[name] = held
            else:
                self._states[name] = change_token(value, deep=touched.is_aliasing)
        if arrays:
            self._look_at_memory(arrays, variables)

    def _look_at_memory(self, arrays: list[Any], variables: Mapping[str, Any]) -> None:
        """Whatever lies where these lie may change with them, and nothing else."""
        deep = set()
        for name, value in variables.items():
            if is_array(value) and self._is_wanted(name) and any(_overlap(value, one) for one in arrays):
                self._states[name] = change_token(value, deep=True)
                deep.add(name)
        self._deep = frozenset(deep)

    def settle(self, frame: FrameType, variables: Mapping[str, Any], has_called: bool) -> None:
        """It is over: tell what differs. What a followed call did to attributes was told there."""
        told: set[str] = set()
        touched = self.touched
        for name, before in self._before.items():
            now = variables.get(name, MISSING)
            if now is MISSING and name in touched.worldwide:
                now = frame.f_globals.get(name, MISSING)
            if now is not before and self._is_rebound(name, before, now):
                told.add(name)
        if touched.may_change:
            self._tell_touched(variables, told, has_called)
        self._before = {}

    def _tell_touched(self, variables: Mapping[str, Any], told: set[str], has_called: bool) -> None:
        if self._stored:
            told.update(self._tell_stored(variables))
        if self._states:
            self._tell_states(variables, told)
        if self._attributes and not has_called:
            self._tell_attributes(variables, told)
        for name in names_with_new_version(self._versions, variables) if self._versions else ():
            if name not in told and self._is_wanted(name):
                self._tell(name, variables[name], self._line)
        self._states, self._attributes, self._stored, self._deep = {}, {}, {}, frozenset()

    def _is_rebound(self, name: str, before: Any, now: Any) -> bool:
        """Told as a change unless the content is what it was when the line began."""
        if now is MISSING:
            self._versions.pop(name, None)
            return False
        self.know(name, now)
        if name in self._deep:
            is_still = type(before) is type(now) and self._states[name] == change_token(now, deep=True)
        else:
            is_still = before is not MISSING and contents_equal(before, now)
        self._states.pop(name, None)
        self._attributes.pop(name, None)
        if is_still or not self._is_wanted(name):
            return False
        self._tell(name, now, self._line)
        return True

    def _tell_stored(self, variables: Mapping[str, Any]) -> set[str]:
        roots = set()
        for target, (_, before) in self._stored.items():
            path, value = reach(target, variables)
            if value is MISSING or path == target.root:
                continue
            roots.add(target.root)
            if change_token(value, deep=True) != before and self._is_wanted(path):
                self._tell(path, value, self._line)
        return roots

    def _tell_states(self, variables: Mapping[str, Any], told: set[str]) -> None:
        for name, before in self._states.items():
            value = variables.get(name, MISSING)
            if value is MISSING or name in told:
                continue
            told.add(name)
            self.know(name, value)
            if change_token(value, deep=name in self._deep or self.touched.is_aliasing) != before:
                self._tell(name, value, self._line)

    def _tell_attributes(self, variables: Mapping[str, Any], told: set[str]) -> None:
        for name, before in self._attributes.items():
            value = variables.get(name, MISSING)
            if name in told:  # by the very attribute that was stored to, or as another object
                continue
            for held, now in (attributes(value) or {}).items():
                if before.get(held) != now and self._is_wanted(f"{name}.{held}"):
                    self._tell(f"{name}.{held}", attribute(value, held), self._line)


def _stored(target: Target, variables: Mapping[str, Any]) -> tuple[str, Hashable]:
    path, value = reach(target, variables)
    return path, change_token(value, deep=True)


def _overlap(one: Any, other: Any) -> bool:
    return one is other or share_memory(one, other)
