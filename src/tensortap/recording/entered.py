"""The captures that are on, for whoever offers what they look at to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

Watcher = Callable[[Any, bool], None]

_on: WeakSet[Any] = WeakSet()
_watchers: tuple[Watcher, ...] = ()


def enter(capture: Any) -> None:
    _on.add(capture)
    for watcher in _watchers:
        watcher(capture, True)


def leave(capture: Any) -> None:
    if capture in _on:
        _on.discard(capture)
        for watcher in _watchers:
            watcher(capture, False)


def watch(watcher: Watcher) -> None:
    """Call `watcher(capture, is_on)` for each capture that is on, that begins and that ends."""
    global _watchers
    _watchers = (*_watchers, watcher)
    for capture in list(_on):
        watcher(capture, True)


def unwatch(watcher: Watcher) -> None:
    global _watchers
    _watchers = tuple(one for one in _watchers if one != watcher)
