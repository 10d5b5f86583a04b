"""A writer thread with a bounded queue."""

import contextlib
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

_NICE = 10
_POLL_INTERVAL = 0.05  # seconds
log = logging.getLogger("tensortap.background")


class BackgroundWriter:
    """Runs jobs in order on a thread. A failed job is reported at the next call, at the latest in `close`.

    The two threads share only queues and counters with a single writer: a KeyboardInterrupt in the caller's
    thread could leave a lock acquired, and the other thread would deadlock.
    """

    def __init__(self, budget: int, on_full: Literal["wait", "drop"]) -> None:
        if on_full not in ("wait", "drop"):
            raise ValueError(f"on_full is 'wait' or 'drop', not {on_full!r}")
        self._budget = budget
        self._drops = on_full == "drop"
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._room_freed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._bytes_queued = self._bytes_done = 0  # bytes: counted by the caller, counted by the thread
        self._failures: deque[Exception] = deque()
        self.is_open = True
        self.dropped = 0
        # A daemon, so that a program that never closes can still end; the sink is closed at exit.
        self._thread = threading.Thread(target=self._run, name="tensortap-writer", daemon=True)
        self._thread.start()

    def admit(self, nbytes: int) -> bool:
        """Wait for room for that many bytes: True if they may be queued, False if they are dropped. A value
        larger than the budget is admitted when nothing else is queued."""
        if self._has_room(nbytes):
            return True
        if self._drops:
            self._drop()
            return False
        while not self._has_room(nbytes):
            with contextlib.suppress(queue.Empty):
                self._room_freed.get(timeout=_POLL_INTERVAL)
        return True

    def put(self, job: Callable[[], None], nbytes: int) -> None:
        # Counted afterwards: an interrupt between the two lines enlarges the budget, but cannot deadlock.
        self._jobs.put((job, nbytes))
        self._bytes_queued += nbytes

    def wait(self) -> None:
        """Return when every job queued so far is done."""
        if self.is_open:
            reached: queue.SimpleQueue[None] = queue.SimpleQueue()
            self._jobs.put((lambda: reached.put(None), 0))
            reached.get()

    def flush(self) -> None:
        self.wait()
        self.raise_failure()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._jobs.put(None)
            if self.dropped:
                log.warning(
                    "%d values were dropped because the disk was slower than the program", self.dropped
                )
        self._thread.join()  # also when the first call was interrupted here
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the first unreported failure, with a note that counts the rest."""
        if not self._failures:
            return
        failures = [self._failures.popleft() for _ in range(len(self._failures))]
        if len(failures) > 1:
            failures[0].add_note(f"{len(failures) - 1} more values failed after it")
        raise failures[0]

    def _has_room(self, nbytes: int) -> bool:
        pending = self._bytes_queued - self._bytes_done
        return pending <= 0 or pending + nbytes <= self._budget

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            log.warning("the disk is slower than the program: values are dropped (on_full='drop')")

    def _run(self) -> None:
        _lower_thread_priority()
        while (queued := self._jobs.get()) is not None:
            job, nbytes = queued
            try:
                job()
            except Exception as error:  # noqa: BLE001 - kept and raised in the caller's thread
                self._failures.append(error)
            finally:
                del queued, job
                self._bytes_done += nbytes
                if self._room_freed.empty():
                    self._room_freed.put(None)


def _lower_thread_priority() -> None:
    """Yield to the program's threads: delaying one of them delays a whole parallel operation."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
