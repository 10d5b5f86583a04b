"""Messages of a stream: its process facts to the listener, and warnings on undelivered values to the log."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from tensortap.core.errors import RefusedError, UnsupportedValueError
from tensortap.core.ranks import rank_info
from tensortap.render.words import pluralize
from tensortap.transport.connection import Connection
from tensortap.transport.frames import FrameKind

# What a user-defined value may raise when it is described or copied.
UNSENDABLE_ERRORS = (UnsupportedValueError, TypeError, ValueError, RuntimeError, AttributeError, MemoryError)
_MAX_NAME_LENGTH = 200
log = logging.getLogger("tensortap.stream")


def describe_process() -> dict[str, Any]:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    host = socket.gethostname()[:_MAX_NAME_LENGTH]
    names = {"host": host, "program": (program or "python")[:_MAX_NAME_LENGTH]}
    return {"pid": os.getpid(), "rank": rank_info().rank, **names}


def send_goodbye(connection: Connection, *, is_free: bool) -> None:
    """Close the connection; send BYE only if no other thread is in the middle of a frame."""
    if is_free:
        try:
            connection.send(FrameKind.BYE, timeout=0.2)
        except OSError as error:
            log.debug("no goodbye: %s", error)
    connection.close()


def warn_no_listener(address: str, error: Exception) -> None:
    if isinstance(error, RefusedError):
        log.warning("values are not sent to %s: %s", address, error)
        return
    reason = getattr(error, "strerror", None) or str(error)
    log.warning(
        "nobody takes values at %s (%s), so none are sent; that begins when a session calls serve() there",
        address,
        reason,
    )


def log_listener_back(address: str) -> None:
    log.info("%s takes values now", address)


def warn_drops(address: str, budget: int) -> None:
    log.warning(
        "the session at %s takes values slower than they come: beyond %d MB the oldest that wait are dropped "
        "and counted",
        address,
        budget >> 20,
    )


def warn_unconfirmed(address: str, count: int) -> None:
    if count:
        log.warning(
            "the session at %s went away before it had confirmed %s", address, pluralize(count, "value")
        )


def warn_undelivered(address: str, count: int) -> None:
    if count:
        log.warning("%s could not be delivered to %s in time", pluralize(count, "value"), address)


class UnsendableNames:
    """Names of values that cannot be sent, each warned about once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def warn_once(self, name: str, error: BaseException) -> None:
        if name not in self._names:
            self._names.add(name)
            log.warning("%r is not sent: %s", name, error)
