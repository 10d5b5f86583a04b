"""Close sinks with a sender thread at process exit, and restart them after a fork."""

from __future__ import annotations

import atexit
import os
import sys
from functools import lru_cache
from time import monotonic
from typing import Protocol
from weakref import WeakSet

EXIT_TIMEOUT = 2.0  # seconds that all senders together may delay the end of the program


class Sender(Protocol):
    def close(self, timeout: float = ...) -> None: ...

    def restart_in_child(self) -> None: ...


_senders: WeakSet[Sender] = WeakSet()


def close_at_exit(sender: Sender) -> None:
    _register_handlers()
    _senders.add(sender)


def register_child_exit() -> None:
    """Forked multiprocessing children skip atexit handlers but run these finalizers."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, _close_all, exitpriority=0)


@lru_cache(maxsize=1)
def _register_handlers() -> None:
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restart_all_in_child)


def _close_all() -> None:
    deadline = monotonic() + EXIT_TIMEOUT
    for sender in list(_senders):
        sender.close(max(deadline - monotonic(), 0.0))


def _restart_all_in_child() -> None:
    for sender in list(_senders):
        sender.restart_in_child()
