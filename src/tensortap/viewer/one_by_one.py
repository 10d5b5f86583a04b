"""Work that is done one after the other in the background, and that nobody waits for at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any


class BackgroundWorker:
    """A thread that the end of the program does not wait for: what is under way may take minutes, and whoever
    presses Ctrl-C has seen enough."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Any]) -> None:
        self._queue.put(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_queue, name=self._name, daemon=True)
                self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Forget what waits, and give what is under way a moment."""
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _run_queue(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
