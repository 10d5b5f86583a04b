"""Values that the program taps by hand, for whoever is capturing."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeVar

from tensortap.core.record import Site
from tensortap.sources.manual import argument_name, site_of

T = TypeVar("T")
TapListener = Callable[[Any, str, Site | None], None]

# Empty while nobody listens: a compiled program that taps is guarded on these two alone.
_tap_listeners: tuple[TapListener, ...] = ()
_graph_tap: Callable[[Any, str], None] | None = None


def tap(value: T, name: str | None = None) -> T:
    """Show a value to every capture that is on, and return it; free while there is none.

    >>> x = tt.tap(x, "after_layer_1")
    """
    if _graph_tap is not None:
        _graph_tap(value, name or "value")
    elif _tap_listeners:
        _notify_listeners(value, name)
    return value


def add_tap_listener(listener: TapListener) -> None:
    global _tap_listeners
    _tap_listeners = (*_tap_listeners, listener)


def remove_tap_listener(listener: TapListener) -> None:
    global _tap_listeners
    _tap_listeners = tuple(current for current in _tap_listeners if current != listener)


def replace_tap_listener(listener: TapListener, successor: TapListener) -> None:
    """Let one listen in the place of another, so that no value is missed and none is heard twice."""
    global _tap_listeners
    _tap_listeners = tuple(successor if current == listener else current for current in _tap_listeners)


def set_graph_tap(graph_tap: Callable[[Any, str], None] | None) -> None:
    """Let compiled code show what it taps itself; None ends it."""
    global _graph_tap
    _graph_tap = graph_tap


def _notify_listeners(value: Any, name: str | None) -> None:
    frame = _getframe(2)
    if name is None:
        name = argument_name(frame) or "value"
    elif not isinstance(name, str):
        raise TypeError(f"a name is a text, not {name!r}; tap(value, name) takes the value first")
    site = site_of(frame)
    for listener in _tap_listeners:
        listener(value, name, site)
