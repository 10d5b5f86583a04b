"""All that one viewer holds: the library, its threads, what is made in the background, and who is told."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tensortap.viewer.comparisons import ComparisonJobs
from tensortap.viewer.counted import UNKNOWN
from tensortap.viewer.events import EventBroadcaster
from tensortap.viewer.library import RunLibrary, try_open_run
from tensortap.viewer.live_jobs import LiveJobs
from tensortap.viewer.refining import TileRefinement
from tensortap.viewer.stock import CachedRun

log = logging.getLogger("tensortap.viewer")
_WORKERS = 4  # answers that are made at once: what they hold is bounded by it
_SLICE = 0.1  # seconds of work in the background before others have their turn
_PAUSE = 0.003
_HELD = 0.002  # seconds that this work holds the interpreter
_BREATH = 0.0005  # and leaves it to who wants it
_MOST_READ = 8 << 30  # bytes of one run that are looked through unasked
_MAX_BYTES_IF_LISTED = 64 << 20  # of one that is merely listed
_TYPING_PAUSE = 0.4  # seconds after a key in which the next is likely
_BETWEEN_WORDS = 0.4  # seconds between two events of one subject


class ViewerState:
    """Made once for a viewer; `close` ends all its threads."""

    def __init__(self, library: RunLibrary, *, allows_actions: bool = False, start: str = "/") -> None:
        self.library, self.allows_actions, self.start = library, allows_actions, start
        self.boot = secrets.token_hex(8)  # rows have other numbers after a restart
        self.events = EventBroadcaster()
        self.is_over = threading.Event()
        self.active = 0  # answers that are being made
        self._queried = 0.0  # when somebody last typed
        self.workers = ThreadPoolExecutor(_WORKERS, "tensortap-viewer")
        self._later = ThreadPoolExecutor(1, "tensortap-viewer-later")
        self.refined = TileRefinement(self.later, self.is_over)
        self.comparisons = ComparisonJobs(library, self.events, self.is_over)
        self.live = LiveJobs()
        self._looking: dict[str, _Walk] = {}
        self._glimpsed: dict[str, float] = {}  # when the runs that were merely listed had last been written

    def later(self, work: Callable[[], None]) -> bool:
        """In the background, one after the other; False when the viewer is closing."""
        if self.is_over.is_set():
            return False
        try:
            self._later.submit(_logged, work)
        except RuntimeError:
            return False
        return True

    def look_through(self, stock: CachedRun, most: int = _MOST_READ) -> None:
        """Compute the statistics of a run in the background, a little at a time, up to so many bytes."""
        walk = self._looking.get(stock.identity)
        if walk is not None:
            walk.allow(most)
            return
        walk = self._looking[stock.identity] = _Walk(stock, most)
        self.later(lambda: self._look_on(walk))

    def glimpse(self, identity: str, modified: float | None) -> None:
        """How healthy a run that is listed seems to be, unless it is known since it was last written."""
        if modified is None or self._glimpsed.get(identity) == modified:
            return
        self._glimpsed[identity] = modified

        def look() -> None:
            stock = try_open_run(self.library, identity)
            if isinstance(stock, CachedRun):
                self.look_through(stock, _MAX_BYTES_IF_LISTED)

        self.later(look)

    def queried(self) -> None:
        """Somebody types a query: work in the background waits for a pause."""
        self._queried = time.monotonic()

    def _is_wanted(self) -> bool:
        return self.active > 0 or time.monotonic() - self._queried < _TYPING_PAUSE

    def close(self) -> None:
        self.is_over.set()
        self.events.close()
        self.live.close()
        self.comparisons.close()
        for pool in (self.workers, self._later):
            pool.shutdown(wait=True, cancel_futures=True)

    def _look_on(self, walk: _Walk) -> None:
        # Pages come first: two threads that want the interpreter at once slow each other down.
        while self._is_wanted() and not self.is_over.wait(_PAUSE):
            pass
        is_done = self.is_over.is_set() or walk.go_on(_SLICE, self._is_wanted)
        if walk.has_news(is_done):
            stock = walk.stock
            known = int((stock.counted.known != UNKNOWN).sum())
            name = self.library.short(stock.identity)
            self.events.tell("stats", stock.identity, id=name, known=known, of=len(stock))
        if is_done or not self.later(lambda: self._look_on(walk)):
            self._looking.pop(walk.stock.identity, None)


class _Walk:
    """Through the rows of a run, in order, as far as the budget goes."""

    def __init__(self, stock: CachedRun, most: int) -> None:
        self.stock, self._next, self._most, self._read = stock, 0, most, 0
        self._told, self._done = 0.0, 0

    def allow(self, most: int) -> None:
        """As much as the one who wants most of it wants."""
        self._most = max(self._most, most)

    def go_on(self, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Whether it has come to its end; leaves off when someone else wants to work."""
        stock, nbytes = self.stock, self.stock.plain("nbytes")
        since = now = time.monotonic()
        end = now + seconds
        while now < end and not is_wanted():
            if self._next >= len(stock) or self._read > self._most:
                return True
            if now - since > _HELD:
                time.sleep(_BREATH)
                since = time.monotonic()
            if stock.counted.known[self._next] == UNKNOWN:
                self._read += int(nbytes[self._next])
                self._done += stock.compute(np.array([self._next]), _MOST_READ)
            self._next += 1
            now = time.monotonic()
        return False

    def has_news(self, is_done: bool) -> bool:
        now = time.monotonic()
        if not self._done or (now - self._told < _BETWEEN_WORDS and not is_done):
            return False
        self._told, self._done = now, 0
        return True


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("work in the background failed; the page shows what there was before")
