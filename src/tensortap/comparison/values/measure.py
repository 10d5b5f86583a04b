"""Measure pairs of values, here or in any executor: workers read the files themselves."""

from __future__ import annotations

import logging
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from tensortap.comparison.sides.entry import Entry, ValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.sides.value_ref import FileViews, RunValueRef
from tensortap.comparison.values.metrics import Metrics, measure, measure_operands, metrics_from_report
from tensortap.core.errors import TensortapError
from tensortap.core.settings import is_strict
from tensortap.kernels import native
from tensortap.kernels.batched import PairLayout, compare_jobs, pair_layout

log = logging.getLogger("tensortap.compare")

# Pairs that travel together: enough to be worth the way, few enough that all workers have some.
_BATCH_PAIRS, _BATCH_BYTES = 64, 64 << 20
_BATCHES_PER_WORKER, _MAX_MERGED = (
    8,
    4,
)  # batches for each worker before some are merged, and how many at most
_MIN_BYTES_FOR_THREADS = 32 << 10  # bytes of a usual pair
_LARGE_PAIR_BYTES = 32 << 20  # a pair of this size is worth several threads of its own
_PENDING_BYTES = 2 << 20  # bytes that a worker holds of small values: what fits the cache


class ValueRefPair(NamedTuple):
    """Two values to be measured against each other, by where they lie."""

    a: ValueRef
    b: ValueRef


MetricsOrError = Metrics | str  # a sentence where a value could not be read
_RefPair = tuple[ValueRef, ValueRef]
_KernelJob = tuple[object, ...]
_PreparedPair = tuple[
    PairLayout, _KernelJob, tuple[Operand, Operand] | None
]  # the operands, where the bytes are theirs
_PendingPair = tuple[int, PairLayout, tuple[Operand, Operand] | None]  # by its place in the batch


def measure_pairs(
    pairs: Iterable[tuple[Entry, Entry]], executor: Executor | None = None
) -> Iterator[MetricsOrError]:
    """What each pair comes to, in order. A batch that a worker lost is measured here again."""
    workers = _cpu_count() if executor is None else _worker_count(executor)
    sized = list(_make_batches(pairs))
    batches = list(_merge_batches(sized, len(sized) // (_BATCHES_PER_WORKER * workers)))
    if executor is not None:
        yield from _measure_in_executor(executor, batches, workers)
        return
    # The kernels leave the interpreter to others while they run: of tiny pairs that is too little.
    is_worth = sum(size for _, size in sized) >= _MIN_BYTES_FOR_THREADS * sum(map(len, batches))
    if workers == 1 or len(batches) == 1 or not is_worth:
        for batch in batches:
            yield from measure_batch(batch)
        return
    with ThreadPoolExecutor(workers, "tensortap-compare") as threads:
        yield from _measure_in_executor(threads, batches, workers)


def measure_batch(batch: Sequence[_RefPair]) -> list[MetricsOrError]:
    """The work of one worker: it reads the values itself, and measures small ones together."""
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
        pending_bytes += (
            pair_terms.nbytes if operands is not None else 0
        )  # bytes of a mapped file are not held
        if pending_bytes >= _PENDING_BYTES:
            _run_jobs(measurements, batch, waiting, jobs)
            jobs, waiting, pending_bytes = [], [], 0
    _run_jobs(measurements, batch, waiting, jobs)
    return measurements


# What a damaged file, or a value that cannot be had here, may raise while it is read.
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
    """A job for the kernels; what is none for them is measured at once."""
    a, b = task
    try:
        # Without an array around each: most values are bytes of a file that is mapped already.
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
    """Measure those that wait in one call; what takes another look gets it."""
    for (position, pair_terms, operands), report in zip(waiting, compare_jobs(jobs), strict=True):
        metrics = None if report is None else metrics_from_report(report, pair_terms)
        measurements[position] = _remeasure(batch[position], operands) if metrics is None else metrics


def _remeasure(task: _RefPair, operands: tuple[Operand, Operand] | None) -> MetricsOrError:
    return _measure_safely(lambda: _measure_alone(*(operands or (task[0].operand(), task[1].operand()))))


def _measure_alone(a: Operand | None, b: Operand | None) -> Metrics:
    assert a is not None  # they have been read before
    assert b is not None
    size = a.bits.nbytes + b.bits.nbytes
    return measure_operands(a, b, threads=None if size >= _LARGE_PAIR_BYTES else 1)


def _measure_safely(measuring: Callable[[], Metrics]) -> MetricsOrError:
    try:
        return measuring()
    except _UNREADABLE as error:
        # One odd pair must not cost all others; a fault of ours shows where failures are raised.
        if is_strict() and not isinstance(error, (OSError, MemoryError, TensortapError)):
            raise
        return f"{type(error).__name__}: {error}"


def _measure_in_executor(
    executor: Executor, batches: list[list[_RefPair]], workers: int
) -> Iterator[MetricsOrError]:
    """In order, with few batches under way, so that what waits takes no memory."""
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
    """An executor that may lose workers, or give up: what it does not bring is done here, and said once."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Executor | None = executor
        self._has_warned = False

    def submit(self, batch: list[_RefPair]) -> Future[list[MetricsOrError]] | None:
        if self._executor is None:
            return None
        try:
            return self._executor.submit(measure_batch, batch)
        except RuntimeError as error:  # a pool that lost a worker takes nothing more
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
        except Exception as error:  # noqa: BLE001 - each executor has its own way to lose a worker
            self._warn_once("a worker was lost", error)
            return measure_batch(batch)

    def _warn_once(self, event: str, error: Exception) -> None:
        if not self._has_warned:
            log.warning("%s (%s: %s); its pairs are measured here", event, type(error).__name__, error)
        self._has_warned = True


def _make_batches(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[tuple[list[_RefPair], int]]:
    """With the bytes of each."""
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
    """As many in one as leave every worker enough of them: each costs some handing over."""
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
    """How many work at once, where the executor says so."""
    return int(getattr(executor, "_max_workers", 0)) or 16


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
