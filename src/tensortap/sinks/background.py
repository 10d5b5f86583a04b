"""A thread that writes while the program goes on, with a bound on what may wait."""

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Literal

_NICE = 10
log = logging.getLogger("tensortap.background")


class Writer:
    """Runs jobs in order. A job that fails is reported at the next call, and at the latest in `close`."""

    def __init__(self, budget: int, on_full: Literal["wait", "drop"]) -> None:
        if on_full not in ("wait", "drop"):
            raise ValueError(f"on_full is 'wait' or 'drop', not {on_full!r}")
        self._budget = budget
        self._drops = on_full == "drop"
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._count = 0
        self._changed = threading.Condition()
        self._failures: list[Exception] = []
        self.is_open = True
        self.dropped = 0
        # A daemon, so that a program that never closes can still end; the face closes at exit.
        self._thread = threading.Thread(target=self._run, name="tensortap-writer", daemon=True)
        self._thread.start()

    def admit(self, nbytes: int) -> bool:
        """Make room for that many bytes: True when they may come, False when they are dropped. What is
        larger than the whole budget comes alone."""
        if self._waiting and self._waiting + nbytes > self._budget:
            if self._drops:
                self._drop()
                return False
            with self._changed:
                self._changed.wait_for(lambda: not self._waiting or self._waiting + nbytes <= self._budget)
        return True

    def put(self, job: Callable[[], None], nbytes: int) -> None:
        with self._changed:
            self._waiting += nbytes
            self._count += 1
        self._jobs.put((job, nbytes))

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._count)
        self.raise_failure()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._jobs.put(None)
            self._thread.join()
            if self.dropped:
                log.warning(
                    "%d values were dropped because the disk was slower than the program", self.dropped
                )
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the first failure that has not been reported; the count of the rest goes with it."""
        if not self._failures:
            return
        with self._changed:
            failures, self._failures = self._failures, []
        if len(failures) > 1:
            failures[0].add_note(f"{len(failures) - 1} more values failed after it")
        raise failures[0]

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            log.warning("the disk is slower than the program: values are dropped (on_full='drop')")

    def _run(self) -> None:
        _step_back()
        while (entry := self._jobs.get()) is not None:
            job, nbytes = entry
            try:
                job()
            except Exception as error:  # noqa: BLE001 - kept and raised in the caller's thread
                with self._changed:
                    self._failures.append(error)
            finally:
                del entry, job
                self._done(nbytes)

    def _done(self, nbytes: int) -> None:
        with self._changed:
            self._waiting -= nbytes
            self._count -= 1
            self._changed.notify_all()


def _step_back() -> None:
    """Let the program's own threads go first: one of them held up holds up a whole parallel operation."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
