"""Whoever sends from a thread of its own is told when the process forks, and when it ends."""

from __future__ import annotations

import atexit
import os
import sys
from functools import lru_cache
from time import monotonic
from typing import Protocol
from weakref import WeakSet

GRACE = 2.0  # seconds that the end of the program may be delayed, by all of them together


class Sending(Protocol):
    def close(self, timeout: float = ...) -> None: ...

    def begin_in_child(self) -> None: ...


_sending: WeakSet[Sending] = WeakSet()


def watch_process(one: Sending) -> None:
    _register()
    _sending.add(one)


def end_with_child() -> None:
    """A child of multiprocessing that was forked ends without the usual exit, but runs these."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, _close_all, exitpriority=0)


@lru_cache(maxsize=1)
def _register() -> None:
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_begin_all_in_child)


def _close_all() -> None:
    deadline = monotonic() + GRACE
    for one in list(_sending):
        one.close(max(deadline - monotonic(), 0.0))


def _begin_all_in_child() -> None:
    for one in list(_sending):
        one.begin_in_child()
