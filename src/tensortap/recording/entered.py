"""The captures that are on, for whoever offers what they look at to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

CaptureObserver = Callable[[Any, bool], None]

_active_captures: WeakSet[Any] = WeakSet()
_capture_observers: tuple[CaptureObserver, ...] = ()


def mark_active(capture: Any) -> None:
    _active_captures.add(capture)
    for observer in _capture_observers:
        observer(capture, True)


def mark_inactive(capture: Any) -> None:
    if capture in _active_captures:
        _active_captures.discard(capture)
        for observer in _capture_observers:
            observer(capture, False)


def observe_captures(observer: CaptureObserver) -> None:
    """Call `watcher(capture, is_on)` for each capture that is on, that begins and that ends."""
    global _capture_observers
    _capture_observers = (*_capture_observers, observer)
    for capture in list(_active_captures):
        observer(capture, True)


def unobserve_captures(observer: CaptureObserver) -> None:
    global _capture_observers
    _capture_observers = tuple(current for current in _capture_observers if current != observer)
