"""What a stream says: to its listener of the process it is in, and to the log of what is not delivered."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from tensortap.core.errors import RefusedError, UnsupportedValueError
from tensortap.core.ranks import ranks
from tensortap.formats.link import Link
from tensortap.formats.tree_words import plural
from tensortap.formats.wire import Kind

# What a value of the program's own making may answer to our questions.
UNSENDABLE = (UnsupportedValueError, TypeError, ValueError, RuntimeError, AttributeError, MemoryError)
_LONGEST_WORD = 200
log = logging.getLogger("tensortap.stream")


def about_process() -> dict[str, Any]:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    host = socket.gethostname()[:_LONGEST_WORD]
    named = {"host": host, "program": (program or "python")[:_LONGEST_WORD]}
    return {"pid": os.getpid(), "rank": ranks().rank, **named}


def say_goodbye(link: Link, *, is_free: bool) -> None:
    """End the connection; with a word only where no other thread is amid a frame."""
    if is_free:
        try:
            link.send(Kind.BYE, timeout=0.2)
        except OSError as error:
            log.debug("no goodbye: %s", error)
    link.close()


def tell_absence(address: str, error: Exception) -> None:
    if isinstance(error, RefusedError):
        log.warning("values are not sent to %s: %s", address, error)
        return
    why = getattr(error, "strerror", None) or str(error)
    log.warning(
        "nobody takes values at %s (%s), so none are sent; that begins when a session calls serve() there",
        address,
        why,
    )


def tell_return(address: str) -> None:
    log.info("%s takes values now", address)


def tell_drops(address: str, budget: int) -> None:
    log.warning(
        "the session at %s takes values slower than they come: beyond %d MB the oldest that wait are dropped "
        "and counted",
        address,
        budget >> 20,
    )


def tell_loss(address: str, count: int) -> None:
    if count:
        log.warning("the session at %s went away before it had confirmed %s", address, plural(count, "value"))


def tell_late(address: str, count: int) -> None:
    if count:
        log.warning("%s could not be delivered to %s in time", plural(count, "value"), address)


class Unsendable:
    """Names of values that cannot be sent, each told once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def tell(self, name: str, error: BaseException) -> None:
        if name not in self._names:
            self._names.add(name)
            log.warning("%r is not sent: %s", name, error)
