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

from tensortap.comparison.entries import Entry, Reference
from tensortap.comparison.metrics import Metrics, from_report, measure, measure_operands
from tensortap.comparison.operands import Operand
from tensortap.comparison.references import InRun, Views
from tensortap.core.errors import TensortapError
from tensortap.core.settings import is_strict
from tensortap.kernels import native
from tensortap.kernels.many import Report, Terms, reports, terms

log = logging.getLogger("tensortap.compare")

# Pairs that travel together: enough to be worth the way, few enough that all workers have some.
_PAIRS, _BYTES = 64, 64 << 20
_WORTH_THREADS = 1 << 20  # bytes of a usual pair
_LARGE = 32 << 20  # a pair of this size is worth several threads of its own
_TOGETHER = 2 << 20  # bytes that a worker holds of small values


class Task(NamedTuple):
    """Two values to be measured against each other, by where they lie."""

    a: Reference
    b: Reference


Measured = Metrics | str  # a sentence where a value could not be read
_Both = tuple[Reference, Reference]
_Waiting = tuple[_Both, Terms, tuple[object, ...], tuple[Operand, Operand] | None]


def measured(pairs: Iterable[tuple[Entry, Entry]], executor: Executor | None = None) -> Iterator[Measured]:
    """What each pair comes to, in order. A batch that a worker lost is measured here again."""
    sized = list(_batches(pairs))
    batches = [batch for batch, _ in sized]
    if executor is not None:
        yield from _with(executor, batches, _workers(executor))
        return
    workers = _processors()
    # The kernels leave the interpreter to others while they run: of small pairs that is too little.
    is_worth = sum(size for _, size in sized) >= _WORTH_THREADS * sum(map(len, batches))
    if workers == 1 or len(batches) == 1 or not is_worth:
        for batch in batches:
            yield from measure_batch(batch)
        return
    with ThreadPoolExecutor(workers, "tensortap-compare") as threads:
        yield from _with(threads, batches, workers)


def measure_batch(batch: Sequence[_Both]) -> list[Measured]:
    """The work of one worker: it reads the values itself, and measures what fits the cache together."""
    found: list[Measured] = []
    group: list[_Waiting | Measured] = []
    views: Views = {}
    size = 0
    for task in batch:
        waiting = _read(task, views)
        group.append(waiting)
        if isinstance(waiting, tuple):
            size += waiting[1].nbytes
            if size >= _TOGETHER:
                found += _settled(group)
                group, size = [], 0
    return found + _settled(group)


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


def _read(task: _Both, views: Views) -> _Waiting | Measured:
    """A job for the kernels; what is none for them is measured at once."""
    a, b = task
    try:
        # Without an array around each: most values are bytes of a file that is mapped already.
        if type(a) is InRun and type(b) is InRun and native.library is not None:
            known = terms(a.dtype, a.shape, b.dtype, b.shape)
            if known is not None:
                bytes_ = a.view(known.a_nbytes, views), b.view(known.b_nbytes, views)
                if bytes_[0] is not None and bytes_[1] is not None:
                    return task, known, known.job(*bytes_), None
        operands = a.operand(), b.operand()
        if operands[0] is not None and operands[1] is not None:
            return _as_job(task, operands[0], operands[1])
        values = a.load(), b.load()
    except _UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return _tried(lambda: measure(*values))


def _as_job(task: _Both, a: Operand, b: Operand) -> _Waiting | Measured:
    if native.library is not None:
        known = terms(a.dtype, a.bits.shape, b.dtype, b.bits.shape)
        if known is not None and native.takes(a.bits, b.bits):
            return task, known, known.job(a.bits, b.bits), (a, b)
    return _tried(lambda: _by_itself(a, b))


def _settled(group: Sequence[_Waiting | Measured]) -> list[Measured]:
    """The same, with all of them measured: those that wait in one call."""
    told = iter(reports([one[2] for one in group if isinstance(one, tuple)]))
    return [_found(one, next(told)) if isinstance(one, tuple) else one for one in group]


def _found(waiting: _Waiting, report: Report | None) -> Measured:
    task, known, _, operands = waiting
    metrics = None if report is None else from_report(report, known)
    if metrics is not None:
        return metrics
    return _tried(lambda: _by_itself(*(operands or (task[0].operand(), task[1].operand()))))


def _by_itself(a: Operand | None, b: Operand | None) -> Metrics:
    assert a is not None  # they have been read before
    assert b is not None
    size = a.bits.nbytes + b.bits.nbytes
    return measure_operands(a, b, threads=None if size >= _LARGE else 1)


def _tried(measuring: Callable[[], Metrics]) -> Measured:
    try:
        return measuring()
    except _UNREADABLE as error:
        # One odd pair must not cost all others; a fault of ours shows where failures are raised.
        if is_strict() and not isinstance(error, (OSError, MemoryError, TensortapError)):
            raise
        return f"{type(error).__name__}: {error}"


def _with(executor: Executor, batches: list[list[_Both]], workers: int) -> Iterator[Measured]:
    """In order, with few batches under way, so that what waits takes no memory."""
    crew = _Crew(executor)
    waiting: deque[tuple[list[_Both], Future[list[Measured]] | None]] = deque()
    todo = iter(batches)
    for batch in islice(todo, 2 * workers + 1):
        waiting.append((batch, crew.submitted(batch)))
    while waiting:
        batch, future = waiting.popleft()
        yield from crew.result(batch, future)
        for following in islice(todo, 1):
            waiting.append((following, crew.submitted(following)))


class _Crew:
    """An executor that may lose workers, or give up: what it does not bring is done here, and said once."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Executor | None = executor
        self._has_said = False

    def submitted(self, batch: list[_Both]) -> Future[list[Measured]] | None:
        if self._executor is None:
            return None
        try:
            return self._executor.submit(measure_batch, batch)
        except RuntimeError as error:  # a pool that lost a worker takes nothing more
            self._executor = None
            self._say("the executor takes no more work", error)
            return None

    def result(self, batch: list[_Both], future: Future[list[Measured]] | None) -> list[Measured]:
        if future is None:
            return measure_batch(batch)
        try:
            return future.result()
        except Exception as error:  # noqa: BLE001 - each executor has its own way to lose a worker
            self._say("a worker was lost", error)
            return measure_batch(batch)

    def _say(self, what: str, error: Exception) -> None:
        if not self._has_said:
            log.warning("%s (%s: %s); its pairs are measured here", what, type(error).__name__, error)
        self._has_said = True


def _batches(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[tuple[list[_Both], int]]:
    """With the bytes of each."""
    batch: list[_Both] = []
    size = 0
    for a, b in pairs:
        batch.append((a.reference, b.reference))
        size += a.nbytes + b.nbytes
        if len(batch) >= _PAIRS or size >= _BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def _workers(executor: Executor) -> int:
    """How many work at once, where the executor says so."""
    return int(getattr(executor, "_max_workers", 0)) or 16


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
