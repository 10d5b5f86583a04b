"""Python's collector of cycles, out of the way while many objects are made at once."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """For a moment in which objects are made that are all kept: looking through them again and again may
    double the time. What others left in cycles meanwhile is found afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
