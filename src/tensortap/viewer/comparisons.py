"""Comparisons that pages asked for: made one after the other in the background, the last ones kept."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

from tensortap.comparison.runs import Comparison, compare_runs
from tensortap.core.errors import TensortapError
from tensortap.viewer.events import EventBroadcaster
from tensortap.viewer.library import RunLibrary, try_open_run, match_prefix, shortest_prefix
from tensortap.viewer.one_by_one import BackgroundWorker
from tensortap.viewer.pairs import PairColumns
from tensortap.viewer.problems import NotFoundError
from tensortap.viewer.stock import CachedRun

log = logging.getLogger("tensortap.viewer")
_MAX_JOBS = 8
_WAITING_TEXT = "waiting until another comparison is done"
_WORKERS = 2


class ComparisonRequest(NamedTuple):
    """What is compared, and how."""

    a: str
    b: str
    step: int | None = None
    rank: int | None = None
    only: tuple[str, ...] = ()
    limit: float | None = None
    rules: str = ""  # TOML


class ComparisonJob:
    """One comparison: on its way, done, or failed."""

    def __init__(self, asked: ComparisonRequest | None, a: CachedRun | None, b: CachedRun | None) -> None:
        self.asked, self.a, self.b = asked, a, b
        self.key = secrets.token_hex(8)  # unlike its address, never that of another
        self.sizes = _row_counts(a, b)
        self.state, self.text = "running", ""
        self.done, self.of = 0, 0
        self.found: Comparison | None = None
        self.facts: dict[str, Any] | None = None  # what its page begins with

    @cached_property
    def pairs(self) -> PairColumns:
        return PairColumns(self.comparison, self.a, self.b)

    @property
    def comparison(self) -> Comparison:
        if self.found is None:
            raise NotFoundError(f"the comparison is not there: {self.text or self.state}")
        return self.found


class ComparisonJobs:
    def __init__(self, library: RunLibrary, events: EventBroadcaster, is_over: threading.Event) -> None:
        self._library, self._events, self._is_over = library, events, is_over
        self._jobs: OrderedDict[str, ComparisonJob] = OrderedDict()
        self._lock = threading.Lock()
        self._later = BackgroundWorker("tensortap-viewer-compare")

    def ask(self, asked: ComparisonRequest, rules: dict[str, Any] | None = None) -> str:
        """Begin a comparison, or find it; its id."""
        asked = asked._replace(a=self._library.identity(asked.a), b=self._library.identity(asked.b))
        identity = hashlib.blake2b(repr(asked).encode(), digest_size=8).hexdigest()
        with self._lock:
            known = self._jobs.get(identity)
            a, b = self._library.stock(asked.a), self._library.stock(asked.b)
            if known is not None and (known.state == "running" or _is_current(known, a, b)):
                self._jobs.move_to_end(identity)
                return identity
            job = ComparisonJob(asked, a, b)
            job.of = min(job.sizes)
            job.text = _WAITING_TEXT if any(one.state == "running" for one in self._jobs.values()) else ""
            self._keep(identity, job)
        self._later.submit(lambda: self._make(identity, job, rules))
        return identity

    def add(self, found: Comparison) -> str:
        """One that was made elsewhere."""
        identity = secrets.token_hex(8)
        job = ComparisonJob(None, *(self._stock(label) for label in (found.a, found.b)))
        job.found, job.state, job.done, job.of = found, "done", len(found.table), len(found.table)
        with self._lock:
            self._keep(identity, job)
        return identity

    def job(self, prefix: str) -> ComparisonJob:
        return self._jobs[self.identity(prefix)]

    def identity(self, prefix: str) -> str:
        found = match_prefix(prefix, self._jobs)
        if found is None:
            raise NotFoundError(f"no comparison {prefix!r}; open the two runs again")
        return found

    def told(self, identity: str) -> dict[str, Any]:
        """How far it has come."""
        job = self._jobs[identity]
        return {
            "c": shortest_prefix(identity, list(self._jobs)),
            "state": job.state,
            "done": job.done,
            "of": max(job.of, job.done),
            "text": job.text,
            "a": None if job.a is None else self._library.short(job.a.identity),
            "b": None if job.b is None else self._library.short(job.b.identity),
        }

    def close(self) -> None:
        self._later.close()

    def _make(self, identity: str, job: ComparisonJob, rules: dict[str, Any] | None) -> None:
        job.text = ""
        self._tell(identity)
        try:
            job.found = self._compared(identity, job, rules)
            job.pairs.columns()  # here, where nobody waits for it
            job.state, job.done, job.of = "done", len(job.found.table), len(job.found.table)
        except _ViewerClosedError:
            job.state, job.text = "failed", "the viewer was closed"
        except (TensortapError, OSError, ValueError, TypeError) as error:
            job.state, job.text = "failed", str(error)
        except Exception as error:
            log.exception("a comparison failed")
            job.state, job.text = (
                "failed",
                f"the comparison failed: {type(error).__name__}; the log tells more",
            )
        self._tell(identity)

    def _compared(self, identity: str, job: ComparisonJob, rules: dict[str, Any] | None) -> Comparison:
        asked = job.asked
        assert asked is not None
        assert job.a is not None
        assert job.b is not None
        with _CountingExecutor(lambda count: self._count(identity, job, count), self._is_over) as crew:
            return compare_runs(
                str(job.a.path),
                str(job.b.path),
                map=rules,
                only=asked.only,
                step=asked.step,
                rank=asked.rank,
                limit=asked.limit,
                executor=crew,
            )

    def _count(self, identity: str, job: ComparisonJob, count: int) -> None:
        job.done += count
        self._tell(identity)

    def _tell(self, identity: str) -> None:
        facts = self.told(identity)
        self._events.tell(
            "compare", identity, **{name: facts[name] for name in ("c", "state", "done", "of", "text")}
        )

    def _keep(self, identity: str, job: ComparisonJob) -> None:
        self._jobs[identity] = job
        while len(self._jobs) > _MAX_JOBS:
            oldest = next((one for one, known in self._jobs.items() if known.state != "running"), None)
            if oldest is None:
                break
            del self._jobs[oldest]

    def _stock(self, label: str) -> CachedRun | None:
        identity = self._library.identity_at(label)
        found = None if identity is None else try_open_run(self._library, identity)
        return found if isinstance(found, CachedRun) else None


def _is_current(job: ComparisonJob, a: CachedRun, b: CachedRun) -> bool:
    """Done, and of runs that have not gone on since: others may have looked at them in between."""
    for stock in (a, b):
        stock.refresh()
    editions = [None if one is None else one.edition for one in (job.a, job.b)]
    return job.state == "done" and job.sizes == _row_counts(a, b) and editions == [a.edition, b.edition]


def _row_counts(a: CachedRun | None, b: CachedRun | None) -> tuple[int, int]:
    return 0 if a is None else len(a), 0 if b is None else len(b)


class _ViewerClosedError(Exception):
    """The viewer closes while something is compared."""


class _CountingExecutor(ThreadPoolExecutor):
    """Counts what is done, and takes nothing more once the viewer closes."""

    def __init__(self, count: Callable[[int], None], is_over: threading.Event) -> None:
        super().__init__(_WORKERS, "tensortap-viewer-measure")
        self._count, self._is_over = count, is_over

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        if self._is_over.is_set():
            raise _ViewerClosedError
        future = super().submit(work, *given, **named)
        size = len(given[0]) if given and isinstance(given[0], Sequence) else 1
        future.add_done_callback(lambda _: self._count(size))
        return future
