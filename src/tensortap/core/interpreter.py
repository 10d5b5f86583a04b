"""Requests to the interpreter: pause garbage collection; call handlers in forked children, at their end."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector while many long-lived objects are created: repeated collections may
    double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def call_in_forked_children(handler: Callable[[], object]) -> None:
    """Call the handler in each process that is forked from now on; a handler is registered once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=handler)


def call_at_child_exit(handler: Callable[[], object]) -> None:
    """In a child of multiprocessing: forked ones skip atexit handlers, but run these finalizers."""
    if is_multiprocessing_child():
        sys.modules["multiprocessing.util"].Finalize(None, handler, exitpriority=0)


def is_multiprocessing_child() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None
