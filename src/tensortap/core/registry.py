"""Plug-in registries, filled by a call or by entry points that are loaded on the first miss."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Plugin = TypeVar("Plugin")
log = logging.getLogger("tensortap.registry")


class Registry(Generic[Plugin]):
    """Plug-ins by key. A key is a type, a suffix or a name; an entry point of the group `tensortap.<what>`
    holds a pair `(key or keys, plugin)`."""

    def __init__(self, group: str) -> None:
        self._group = f"tensortap.{group}"
        self._plugins: dict[object, Plugin] = {}
        self._by_type: dict[type, Plugin | None] = {}
        self._has_loaded = False

    def add(self, keys: object, part: Plugin) -> None:
        """The plug-in added last wins."""
        for key in keys if isinstance(keys, (tuple, list, set, frozenset)) else (keys,):
            self._plugins[key] = part
        self._by_type.clear()

    def remove(self, key: object) -> None:
        self._plugins.pop(key, None)
        self._by_type.clear()

    def get(self, key: object) -> Plugin | None:
        part = self._plugins.get(key)
        if part is None and self._load():
            part = self._plugins.get(key)
        return part

    def for_type(self, kind: type) -> Plugin | None:
        """The plug-in of the nearest class in the method resolution order."""
        try:
            return self._by_type[kind]
        except KeyError:
            self._load()
            part = self._by_type[kind] = self._nearest(kind)
            return part

    def plugins(self) -> list[Plugin]:
        self._load()
        return list(self._plugins.values())

    def _nearest(self, kind: type) -> Plugin | None:
        return next((self._plugins[parent] for parent in kind.__mro__ if parent in self._plugins), None)

    def _load(self) -> bool:
        if self._has_loaded:
            return False
        self._has_loaded = True
        from importlib.metadata import entry_points  # imported lazily: a tenth of the time of a CLI command

        for point in entry_points(group=self._group):
            self._load_one(point)
        return True

    def _load_one(self, point: EntryPoint) -> None:
        try:
            keys, part = point.load()
        except Exception:  # a plug-in's own import may raise anything, and must not break the program
            log.exception("the entry point %s of group %s does not load", point.name, self._group)
            return
        wanted_keys = keys if isinstance(keys, (tuple, list, set, frozenset)) else (keys,)
        self.add([key for key in wanted_keys if key not in self._plugins], part)
