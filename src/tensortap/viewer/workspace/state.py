"""The state of one viewer: the run library, thread pools, background work, and event subscribers."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tensortap.viewer.compare.jobs import ComparisonJobs
from tensortap.viewer.data.cached_run import UNKNOWN, CachedRun
from tensortap.viewer.data.library import RunLibrary, try_open_run
from tensortap.viewer.data.tiles import TileRefinement
from tensortap.viewer.web.events import EventBroadcaster
from tensortap.viewer.workspace.live_jobs import LiveJobs

log = logging.getLogger("tensortap.viewer")
_WORKERS = 4  # concurrent requests; bounds the memory they use
_WORK_SLICE = 0.1  # seconds of background work at a time
_PAUSE = 0.003
_MAX_GIL_HOLD = 0.002  # seconds between two releases of the GIL
_GIL_PAUSE = 0.0005  # seconds
_MAX_BYTES_IF_OPENED = 8 << 30  # read for the statistics of an opened run
_MAX_BYTES_IF_LISTED = 64 << 20  # and of a run that is only listed
_TYPING_PAUSE = 0.4  # seconds after a query in which the next key is likely
_EVENT_INTERVAL = 0.4  # seconds between two progress events of a run


class ViewerState:
    """One per viewer; `close` ends all its threads."""

    def __init__(self, library: RunLibrary, *, allows_actions: bool = False, start: str = "/") -> None:
        self.library, self.allows_actions, self.start = library, allows_actions, start
        self.boot_id = secrets.token_hex(8)  # part of ETags: row numbers may change after a restart
        self.events = EventBroadcaster()
        self.is_over = threading.Event()
        self.active_requests = 0  # requests in progress
        self._last_query = 0.0  # time of the last query
        self.workers = ThreadPoolExecutor(_WORKERS, "tensortap-viewer")
        self._background = ThreadPoolExecutor(1, "tensortap-viewer-later")
        self.refinement = TileRefinement(self.run_in_background, self.is_over)
        self.comparisons = ComparisonJobs(library, self.events, self.is_over)
        self.live = LiveJobs()
        self._scans: dict[str, _StatisticsScan] = {}
        self._scanned_version: dict[str, float] = {}  # run_id: modification time at its last scan

    def run_in_background(self, work: Callable[[], None]) -> bool:
        """Queue work on the background thread; False if the viewer is closing."""
        if self.is_over.is_set():
            return False
        try:
            self._background.submit(_log_errors, work)
        except RuntimeError:
            return False
        return True

    def scan_statistics(self, run: CachedRun, budget: int = _MAX_BYTES_IF_OPENED) -> None:
        """Compute the statistics of a run in the background, in small slices, up to `budget` bytes."""
        scan = self._scans.get(run.run_id)
        if scan is not None:
            scan.raise_budget(budget)
            return
        scan = self._scans[run.run_id] = _StatisticsScan(run, budget)
        self.run_in_background(lambda: self._continue_scan(scan))

    def scan_listed_run(self, run_id: str, modified: float | None) -> None:
        """Scan a few statistics of a listed run, once per modification."""
        if modified is None or self._scanned_version.get(run_id) == modified:
            return
        self._scanned_version[run_id] = modified

        def scan() -> None:
            run = try_open_run(self.library, run_id)
            if isinstance(run, CachedRun):
                self.scan_statistics(run, _MAX_BYTES_IF_LISTED)

        self.run_in_background(scan)

    def note_query(self) -> None:
        """A query was typed: background work pauses for a moment."""
        self._last_query = time.monotonic()

    def _is_busy(self) -> bool:
        return self.active_requests > 0 or time.monotonic() - self._last_query < _TYPING_PAUSE

    def close(self) -> None:
        self.is_over.set()
        self.events.close()
        self.live.close()
        self.comparisons.close()
        for pool in (self.workers, self._background):
            pool.shutdown(wait=True, cancel_futures=True)

    def _continue_scan(self, scan: _StatisticsScan) -> None:
        # Requests come first: two threads that compete for the GIL slow each other down.
        while self._is_busy() and not self.is_over.wait(_PAUSE):
            pass
        is_done = self.is_over.is_set() or scan.advance(_WORK_SLICE, self._is_busy)
        if scan.should_publish(is_done):
            run = scan.run
            known = int((run.statistics.known != UNKNOWN).sum())
            name = self.library.short_id(run.run_id)
            self.events.publish("stats", run.run_id, id=name, known=known, of=len(run))
        if is_done or not self.run_in_background(lambda: self._continue_scan(scan)):
            self._scans.pop(scan.run.run_id, None)


class _StatisticsScan:
    """Computes the statistics of a run row by row, within a budget of bytes."""

    def __init__(self, run: CachedRun, budget: int) -> None:
        self.run, self._next_row, self._budget, self._bytes_read = run, 0, budget, 0
        self._last_published, self._unpublished = 0.0, 0

    def raise_budget(self, budget: int) -> None:
        """The largest budget requested so far counts."""
        self._budget = max(self._budget, budget)

    def advance(self, seconds: float, is_busy: Callable[[], bool]) -> bool:
        """Work for `seconds` or until busy; returns whether the scan is complete."""
        run, nbytes = self.run, self.run.column("nbytes")
        since = now = time.monotonic()
        end = now + seconds
        while now < end and not is_busy():
            if self._next_row >= len(run) or self._bytes_read > self._budget:
                return True
            if now - since > _MAX_GIL_HOLD:
                time.sleep(_GIL_PAUSE)
                since = time.monotonic()
            if run.statistics.known[self._next_row] == UNKNOWN:
                self._bytes_read += int(nbytes[self._next_row])
                self._unpublished += run.compute_statistics(np.array([self._next_row]), _MAX_BYTES_IF_OPENED)
            self._next_row += 1
            now = time.monotonic()
        return False

    def should_publish(self, is_done: bool) -> bool:
        now = time.monotonic()
        if not self._unpublished or (now - self._last_published < _EVENT_INTERVAL and not is_done):
            return False
        self._last_published, self._unpublished = now, 0
        return True


def _log_errors(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # a thread of its own, which nobody asks for its result
        log.exception("work in the background failed; the page shows what there was before")
