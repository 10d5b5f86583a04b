"""The step counter and the execution order of records; opening the job to live sessions on first use.

A step is what `tt.step()` declares; else what `tensortap run` counts; else one forward of the outermost
captured model.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from operator import index
from typing import SupportsIndex

from tensortap.core.settings import is_on, is_strict, setting

# One step and one order per process: records of several tools align only if all count the same way.
_declared: int | None = None
_counted: int | None = None
next_order = itertools.count().__next__
# Called at every step.
_listeners: tuple[Callable[[], None], ...] = ()


def step(number: SupportsIndex | None = None) -> int:
    """Say that a step begins; without a number it is the one after the last. From the first call on, every
    tool counts steps by these calls.

    >>> for batch in loader:
    ...     tt.step()
    """
    global _declared
    listen_if_requested()
    if number is None:
        number = 0 if _declared is None else _declared + 1
    _declared = _to_int(number)
    if _listeners:
        _notify_listeners()
    return _declared


def _to_int(number: SupportsIndex) -> int:
    """A plain int from an int-like loop counter: a numpy integer or a one-element tensor."""
    try:
        if not isinstance(number, bool):
            return index(number)
    except TypeError:
        pass
    raise TypeError(f"a step is a whole number, not {number!r}")


def declared_step() -> int | None:
    """The step declared by `tt.step()`, else the one counted by `tensortap run`, else None."""
    return _counted if _declared is None else _declared


def set_counted_step(number: int) -> None:
    """Set the step for a program that never calls `tt.step()`; a declared step takes precedence."""
    global _counted
    _counted = number
    if _listeners and _declared is None:
        _notify_listeners()


def add_step_listener(listener: Callable[[], None]) -> None:
    """Call the listener at the start of every step."""
    global _listeners
    _listeners = (*_listeners, listener)


def remove_step_listener(listener: Callable[[], None]) -> None:
    global _listeners
    _listeners = tuple(known_listener for known_listener in _listeners if known_listener != listener)


def save_steps() -> Callable[[], None]:
    """A function that restores the step counters as they are now."""
    before = _declared, _counted

    def put_back() -> None:
        global _declared, _counted
        _declared, _counted = before

    return put_back


def reset_steps() -> None:
    """Forget declared and counted steps; steps are forwards again."""
    global _declared, _counted
    _declared = _counted = None


def _notify_listeners() -> None:
    for listener in _listeners:
        listener()


_was_called = False
log = logging.getLogger("tensortap.live")


def listen_if_requested() -> None:
    """On the first call, `tt.listen()` if TENSORTAP_LIVE asks for it; called by everything a live session
    can observe."""
    global _was_called
    if _was_called:
        return
    _was_called = True
    if is_on() and setting("TENSORTAP_LIVE") != "0":
        try:
            sys.modules["tensortap"].listen()  # through the package: live/ is a higher layer
        except Exception:  # a guest: the program goes on without live sessions
            if is_strict():
                raise
            log.exception("TENSORTAP_LIVE=1 could not open the program to live sessions; it goes on without")
