"""Measure pairs of values, in this process or in any executor: workers load the values themselves."""

from __future__ import annotations

import logging
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from tensortap.comparison.sides.entry import Entry, FileViews, RunValueRef, ValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.values.metrics import Metrics, measure, measure_operands, metrics_from_report
from tensortap.core.errors import TensortapError
from tensortap.core.settings import is_strict
from tensortap.kernels import native
from tensortap.kernels.accumulator import PairLayout, compare_jobs, pair_layout

log = logging.getLogger("tensortap.compare")

# Batch limits: large enough to amortise submission, small enough to keep all workers busy.
_BATCH_PAIRS, _BATCH_BYTES = 64, 64 << 20
_BATCHES_PER_WORKER, _MAX_MERGED = (
    8,
    4,
)  # merge only if there are more batches; at most so many
_MIN_BYTES_FOR_THREADS = 32 << 10  # mean size of a pair
_LARGE_PAIR_BYTES = 32 << 20  # from here on a single pair is measured by several threads
_PENDING_BYTES = 2 << 20  # of small values per kernel call: what fits the cache


class ValueRefPair(NamedTuple):
    """Two values to measure against each other, by reference."""

    a: ValueRef
    b: ValueRef


MetricsOrError = Metrics | str  # an error message if a value could not be read
_RefPair = tuple[ValueRef, ValueRef]
_KernelJob = tuple[object, ...]
_PreparedPair = tuple[
    PairLayout, _KernelJob, tuple[Operand, Operand] | None
]  # operands that own the bytes, if any
_PendingPair = tuple[int, PairLayout, tuple[Operand, Operand] | None]  # with its position in the batch


def measure_pairs(
    pairs: Iterable[tuple[Entry, Entry]], executor: Executor | None = None
) -> Iterator[MetricsOrError]:
    """The metrics of each pair, in order. Batches that a worker lost are measured in this process."""
    workers = _cpu_count() if executor is None else _worker_count(executor)
    sized = list(_make_batches(pairs))
    batches = list(_merge_batches(sized, len(sized) // (_BATCHES_PER_WORKER * workers)))
    if executor is not None:
        yield from _measure_in_executor(executor, batches, workers)
        return
    # The kernels release the GIL, but for tiny pairs not long enough.
    is_worth = sum(size for _, size in sized) >= _MIN_BYTES_FOR_THREADS * sum(map(len, batches))
    if workers == 1 or len(batches) == 1 or not is_worth:
        for batch in batches:
            yield from measure_batch(batch)
        return
    with ThreadPoolExecutor(workers, "tensortap-compare") as threads:
        yield from _measure_in_executor(threads, batches, workers)


def measure_batch(batch: Sequence[_RefPair]) -> list[MetricsOrError]:
    """Load and measure a batch of pairs, small ones in a single kernel call; this runs in workers."""
    measurements: list[MetricsOrError] = [""] * len(batch)
    jobs: list[_KernelJob] = []
    waiting: list[_PendingPair] = []
    views: FileViews = {}
    pending_bytes = 0
    for position, task in enumerate(batch):
        read = _prepare_pair(task, views)
        if not isinstance(read, tuple):
            measurements[position] = read
            continue
        pair_terms, job, operands = read
        jobs.append(job)
        waiting.append((position, pair_terms, operands))
        pending_bytes += pair_terms.nbytes if operands is not None else 0  # memory-mapped bytes do not count
        if pending_bytes >= _PENDING_BYTES:
            _run_jobs(measurements, batch, waiting, jobs)
            jobs, waiting, pending_bytes = [], [], 0
    _run_jobs(measurements, batch, waiting, jobs)
    return measurements


# What loading a corrupt file, or a value of an unavailable framework, may raise.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    pickle.UnpicklingError,
    MemoryError,
    RuntimeError,
    TensortapError,
)


def _prepare_pair(task: _RefPair, views: FileViews) -> _PreparedPair | MetricsOrError:
    """Prepare a kernel job; pairs the kernels do not support are measured at once."""
    a, b = task
    try:
        # Fast path without creating arrays: most values are bytes of a mapped file.
        if type(a) is RunValueRef and type(b) is RunValueRef and native.library is not None:
            pair_terms = pair_layout(a.dtype, a.shape, b.dtype, b.shape)
            if pair_terms is not None:
                x, y = a.view_bytes(pair_terms.a_nbytes, views), b.view_bytes(pair_terms.b_nbytes, views)
                if x is not None and y is not None:
                    return pair_terms, pair_terms.job(x, y), None
        operands = a.operand(), b.operand()
        if operands[0] is not None and operands[1] is not None:
            return _job_from_operands(operands[0], operands[1])
        values = a.load(), b.load()
    except _UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return _measure_safely(lambda: measure(*values))


def _job_from_operands(a: Operand, b: Operand) -> _PreparedPair | MetricsOrError:
    if native.library is not None:
        pair_terms = pair_layout(a.dtype, a.bits.shape, b.dtype, b.bits.shape)
        if pair_terms is not None and native.accepts(a.bits, b.bits):
            return pair_terms, pair_terms.job(a.bits, b.bits), (a, b)
    return _measure_safely(lambda: _measure_alone(a, b))


def _run_jobs(
    measurements: list[MetricsOrError],
    batch: Sequence[_RefPair],
    waiting: list[_PendingPair],
    jobs: list[_KernelJob],
) -> None:
    """Run the pending jobs in one kernel call, and measure again those that need special care."""
    for (position, pair_terms, operands), report in zip(waiting, compare_jobs(jobs), strict=True):
        metrics = None if report is None else metrics_from_report(report, pair_terms)
        measurements[position] = _remeasure(batch[position], operands) if metrics is None else metrics


def _remeasure(task: _RefPair, operands: tuple[Operand, Operand] | None) -> MetricsOrError:
    return _measure_safely(lambda: _measure_alone(*(operands or (task[0].operand(), task[1].operand()))))


def _measure_alone(a: Operand | None, b: Operand | None) -> Metrics:
    assert a is not None  # they were numeric when prepared
    assert b is not None
    size = a.bits.nbytes + b.bits.nbytes
    return measure_operands(a, b, threads=None if size >= _LARGE_PAIR_BYTES else 1)


def _measure_safely(measuring: Callable[[], Metrics]) -> MetricsOrError:
    try:
        return measuring()
    except _UNREADABLE as error:
        # One bad pair must not fail all others; in strict mode our own bugs are raised.
        if is_strict() and not isinstance(error, (OSError, MemoryError, TensortapError)):
            raise
        return f"{type(error).__name__}: {error}"


def _measure_in_executor(
    executor: Executor, batches: list[list[_RefPair]], workers: int
) -> Iterator[MetricsOrError]:
    """Yield in order, with few batches in flight to bound memory."""
    crew = _FallibleExecutor(executor)
    waiting: deque[tuple[list[_RefPair], Future[list[MetricsOrError]] | None]] = deque()
    todo = iter(batches)
    for batch in islice(todo, 2 * workers + 1):
        waiting.append((batch, crew.submit(batch)))
    while waiting:
        batch, future = waiting.popleft()
        yield from crew.result(batch, future)
        for following in islice(todo, 1):
            waiting.append((following, crew.submit(following)))


class _FallibleExecutor:
    """Wraps an executor that may lose workers or shut down: its lost batches run here, with one warning."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Executor | None = executor
        self._has_warned = False

    def submit(self, batch: list[_RefPair]) -> Future[list[MetricsOrError]] | None:
        if self._executor is None:
            return None
        try:
            return self._executor.submit(measure_batch, batch)
        except RuntimeError as error:  # a broken pool refuses all further work
            self._executor = None
            self._warn_once("the executor takes no more work", error)
            return None

    def result(
        self, batch: list[_RefPair], future: Future[list[MetricsOrError]] | None
    ) -> list[MetricsOrError]:
        if future is None:
            return measure_batch(batch)
        try:
            return future.result()
        except Exception as error:  # noqa: BLE001 - every executor raises its own error for a lost worker
            self._warn_once("a worker was lost", error)
            return measure_batch(batch)

    def _warn_once(self, event: str, error: Exception) -> None:
        if not self._has_warned:
            log.warning("%s (%s: %s); its pairs are measured here", event, type(error).__name__, error)
        self._has_warned = True


def _make_batches(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[tuple[list[_RefPair], int]]:
    """Batches of pairs, each with its size in bytes."""
    batch: list[_RefPair] = []
    size = 0
    for a, b in pairs:
        batch.append((a.reference, b.reference))
        size += a.nbytes + b.nbytes
        if len(batch) >= _BATCH_PAIRS or size >= _BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def _merge_batches(sized: list[tuple[list[_RefPair], int]], most: int) -> Iterator[list[_RefPair]]:
    """Merge batches while every worker still gets enough of them: each submission has overhead."""
    together: list[_RefPair] = []
    total = count = 0
    for batch, size in sized:
        if together and (count >= min(most, _MAX_MERGED) or total + size > _BATCH_BYTES):
            yield together
            together, total, count = [], 0, 0
        together, total, count = together + batch, total + size, count + 1
    if together:
        yield together


def _worker_count(executor: Executor) -> int:
    """How many workers the executor has; 16 if it does not tell."""
    return int(getattr(executor, "_max_workers", 0)) or 16


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
