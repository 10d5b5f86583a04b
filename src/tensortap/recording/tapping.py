"""Values that the program taps by hand, for whoever is capturing."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeVar

from tensortap.core.record import Site
from tensortap.sources.frames import argument_name, site_of

T = TypeVar("T")
Listener = Callable[[Any, str, Site | None], None]

# Empty while nobody listens: a compiled program that taps is guarded on these two alone.
_listeners: tuple[Listener, ...] = ()
_show_in_graph: Callable[[Any, str], None] | None = None


def tap(value: T, name: str | None = None) -> T:
    """Show a value to every capture that is on, and return it; free while there is none.

    >>> x = tt.tap(x, "after_layer_1")
    """
    if _show_in_graph is not None:
        _show_in_graph(value, name or "value")
    elif _listeners:
        _show(value, name)
    return value


def listen(listener: Listener) -> None:
    global _listeners
    _listeners = (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    global _listeners
    _listeners = tuple(one for one in _listeners if one != listener)


def hand_over(listener: Listener, to: Listener) -> None:
    """Let one listen in the place of another, so that no value is missed and none is heard twice."""
    global _listeners
    _listeners = tuple(to if one == listener else one for one in _listeners)


def show_in_graphs(show: Callable[[Any, str], None] | None) -> None:
    """Let compiled code show what it taps itself; None ends it."""
    global _show_in_graph
    _show_in_graph = show


def _show(value: Any, name: str | None) -> None:
    frame = _getframe(2)
    if name is None:
        name = argument_name(frame) or "value"
    elif not isinstance(name, str):
        raise TypeError(f"a name is a text, not {name!r}; tap(value, name) takes the value first")
    site = site_of(frame)
    for listener in _listeners:
        listener(value, name, site)
