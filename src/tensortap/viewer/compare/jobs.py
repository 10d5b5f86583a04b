"""Comparison jobs: run one at a time in the background; the most recent are kept."""

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

from tensortap.comparison.runs.compare import Comparison, compare_runs
from tensortap.core.errors import TensortapError
from tensortap.viewer.compare.pair_columns import PairColumns
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.data.library import RunLibrary, match_prefix, shortest_prefix, try_open_run
from tensortap.viewer.web.events import BackgroundWorker, EventBroadcaster
from tensortap.viewer.web.responses import NotFoundError

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
    """One comparison: running, done, or failed."""

    def __init__(self, request: ComparisonRequest | None, a: CachedRun | None, b: CachedRun | None) -> None:
        self.request, self.a, self.b = request, a, b
        self.key = secrets.token_hex(8)  # never reused, unlike the job id
        self.row_counts = _row_counts(a, b)
        self.state, self.text = "running", ""
        self.done, self.of = 0, 0
        self.outcome: Comparison | None = None
        self.facts: dict[str, Any] | None = None  # cache of comparison_facts

    @cached_property
    def pairs(self) -> PairColumns:
        return PairColumns(self.comparison, self.a, self.b)

    @property
    def comparison(self) -> Comparison:
        if self.outcome is None:
            raise NotFoundError(f"the comparison is not there: {self.text or self.state}")
        return self.outcome


class ComparisonJobs:
    def __init__(self, library: RunLibrary, events: EventBroadcaster, is_over: threading.Event) -> None:
        self._library, self._events, self._is_over = library, events, is_over
        self._jobs: OrderedDict[str, ComparisonJob] = OrderedDict()
        self._lock = threading.Lock()
        self._worker = BackgroundWorker("tensortap-viewer-compare")

    def submit(self, request: ComparisonRequest, rules: dict[str, Any] | None = None) -> str:
        """The id of the job for this request; starts it unless a current one exists."""
        request = request._replace(
            a=self._library.resolve_id(request.a), b=self._library.resolve_id(request.b)
        )
        job_id = hashlib.blake2b(repr(request).encode(), digest_size=8).hexdigest()
        with self._lock:
            existing = self._jobs.get(job_id)
            a, b = self._library.open_run(request.a), self._library.open_run(request.b)
            if existing is not None and (existing.state == "running" or _is_current(existing, a, b)):
                self._jobs.move_to_end(job_id)
                return job_id
            job = ComparisonJob(request, a, b)
            job.of = min(job.row_counts)
            job.text = _WAITING_TEXT if any(other.state == "running" for other in self._jobs.values()) else ""
            self._store_job(job_id, job)
        self._worker.submit(lambda: self._run_job(job_id, job, rules))
        return job_id

    def add(self, comparison: Comparison) -> str:
        """Register a comparison that was computed elsewhere; returns its id."""
        job_id = secrets.token_hex(8)
        job = ComparisonJob(None, *(self._open_run_at(label) for label in (comparison.a, comparison.b)))
        job.outcome, job.state, job.done, job.of = (
            comparison,
            "done",
            len(comparison.table),
            len(comparison.table),
        )
        with self._lock:
            self._store_job(job_id, job)
        return job_id

    def job(self, prefix: str) -> ComparisonJob:
        return self._jobs[self.resolve_id(prefix)]

    def resolve_id(self, prefix: str) -> str:
        job_id = match_prefix(prefix, self._jobs)
        if job_id is None:
            raise NotFoundError(f"no comparison {prefix!r}; open the two runs again")
        return job_id

    def progress(self, job_id: str) -> dict[str, Any]:
        job = self._jobs[job_id]
        return {
            "c": shortest_prefix(job_id, list(self._jobs)),
            "state": job.state,
            "done": job.done,
            "of": max(job.of, job.done),
            "text": job.text,
            "a": None if job.a is None else self._library.short_id(job.a.run_id),
            "b": None if job.b is None else self._library.short_id(job.b.run_id),
        }

    def close(self) -> None:
        self._worker.close()

    def _run_job(self, job_id: str, job: ComparisonJob, rules: dict[str, Any] | None) -> None:
        job.text = ""
        self._publish_progress(job_id)
        try:
            job.outcome = self._compare(job_id, job, rules)
            job.pairs.columns()  # computed here, in the background
            job.state, job.done, job.of = "done", len(job.outcome.table), len(job.outcome.table)
        except _ViewerClosedError:
            job.state, job.text = "failed", "the viewer was closed"
        except (TensortapError, OSError, ValueError, TypeError) as error:
            job.state, job.text = "failed", str(error)
        except Exception as error:  # plug-ins and pickled values of the runs may raise anything
            log.exception("a comparison failed")
            job.state, job.text = (
                "failed",
                f"the comparison failed: {type(error).__name__}; the log tells more",
            )
        self._publish_progress(job_id)

    def _compare(self, job_id: str, job: ComparisonJob, rules: dict[str, Any] | None) -> Comparison:
        request = job.request
        assert request is not None
        assert job.a is not None
        assert job.b is not None
        with _CountingExecutor(lambda count: self._add_progress(job_id, job, count), self._is_over) as crew:
            return compare_runs(
                str(job.a.path),
                str(job.b.path),
                map=rules,
                only=request.only,
                step=request.step,
                rank=request.rank,
                limit=request.limit,
                executor=crew,
            )

    def _add_progress(self, job_id: str, job: ComparisonJob, count: int) -> None:
        job.done += count
        self._publish_progress(job_id)

    def _publish_progress(self, job_id: str) -> None:
        facts = self.progress(job_id)
        self._events.publish(
            "compare", job_id, **{name: facts[name] for name in ("c", "state", "done", "of", "text")}
        )

    def _store_job(self, job_id: str, job: ComparisonJob) -> None:
        self._jobs[job_id] = job
        while len(self._jobs) > _MAX_JOBS:
            oldest = next((job_id for job_id, job in self._jobs.items() if job.state != "running"), None)
            if oldest is None:
                break
            del self._jobs[oldest]

    def _open_run_at(self, label: str) -> CachedRun | None:
        run_id = self._library.id_at(label)
        run = None if run_id is None else try_open_run(self._library, run_id)
        return run if isinstance(run, CachedRun) else None


def _is_current(job: ComparisonJob, a: CachedRun, b: CachedRun) -> bool:
    """Whether the job is done and its runs have not changed since; refreshes them first."""
    for run in (a, b):
        run.refresh()
    generations = [None if run is None else run.generation for run in (job.a, job.b)]
    return (
        job.state == "done"
        and job.row_counts == _row_counts(a, b)
        and generations == [a.generation, b.generation]
    )


def _row_counts(a: CachedRun | None, b: CachedRun | None) -> tuple[int, int]:
    return 0 if a is None else len(a), 0 if b is None else len(b)


class _ViewerClosedError(Exception):
    """The viewer was closed during a comparison."""


class _CountingExecutor(ThreadPoolExecutor):
    """Reports completed work, and refuses new work once the viewer closes."""

    def __init__(self, on_done: Callable[[int], None], is_over: threading.Event) -> None:
        super().__init__(_WORKERS, "tensortap-viewer-measure")
        self._on_done, self._is_over = on_done, is_over

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        if self._is_over.is_set():
            raise _ViewerClosedError
        future = super().submit(work, *arguments, **keywords)
        size = len(arguments[0]) if arguments and isinstance(arguments[0], Sequence) else 1
        future.add_done_callback(lambda _: self._on_done(size))
        return future
