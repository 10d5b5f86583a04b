"""Measure pairs of values, here or in any executor: workers read the files themselves."""

from __future__ import annotations

import logging
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from tensortap.comparison.entries import Entry, Reference
from tensortap.comparison.metrics import Metrics, measure, measure_operands
from tensortap.core.errors import TensortapError
from tensortap.core.settings import is_strict

log = logging.getLogger("tensortap.compare")

# Pairs that travel together: enough to be worth the way, few enough that all workers have some.
_PAIRS, _BYTES = 64, 64 << 20
_WORTH_THREADS = 1 << 20  # bytes of a usual pair
_LARGE = 32 << 20  # a pair of this size is worth several threads of its own


class Task(NamedTuple):
    """Two values to be measured against each other, by where they lie."""

    a: Reference
    b: Reference


Measured = Metrics | str  # a sentence where a value could not be read


def measured(pairs: Sequence[tuple[Entry, Entry]], executor: Executor | None = None) -> Iterator[Measured]:
    """What each pair comes to, in order. A batch that a worker lost is measured here again."""
    batches = list(_batches(pairs))
    if executor is not None:
        yield from _with(executor, batches, _workers(executor))
        return
    workers = _processors()
    # The kernels leave the interpreter to others while they run: of small pairs that is too little.
    is_worth = sum(a.nbytes + b.nbytes for a, b in pairs) >= _WORTH_THREADS * len(pairs)
    if workers == 1 or len(batches) == 1 or not is_worth:
        for batch in batches:
            yield from measure_batch(batch)
        return
    with ThreadPoolExecutor(workers, "tensortap-compare") as threads:
        yield from _with(threads, batches, workers)


def measure_batch(batch: Sequence[Task]) -> list[Measured]:
    """The work of one worker: it reads the values itself."""
    return [_measure(task) for task in batch]


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


def _measure(task: Task) -> Measured:
    try:
        a, b = task.a.operand(), task.b.operand()
        values = None if a is not None and b is not None else (task.a.load(), task.b.load())
    except _UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    try:
        if a is not None and b is not None:
            size = a.bits.nbytes + b.bits.nbytes
            return measure_operands(a, b, threads=None if size >= _LARGE else 1)
        assert values is not None
        return measure(*values)
    except _UNREADABLE as error:
        # One odd pair must not cost all others; a fault of ours shows where failures are raised.
        if is_strict() and not isinstance(error, (OSError, MemoryError, TensortapError)):
            raise
        return f"{type(error).__name__}: {error}"


def _with(executor: Executor, batches: list[list[Task]], workers: int) -> Iterator[Measured]:
    """In order, with few batches under way, so that what waits takes no memory."""
    crew = _Crew(executor)
    waiting: deque[tuple[list[Task], Future[list[Measured]] | None]] = deque()
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

    def submitted(self, batch: list[Task]) -> Future[list[Measured]] | None:
        if self._executor is None:
            return None
        try:
            return self._executor.submit(measure_batch, batch)
        except RuntimeError as error:  # a pool that lost a worker takes nothing more
            self._executor = None
            self._say("the executor takes no more work", error)
            return None

    def result(self, batch: list[Task], future: Future[list[Measured]] | None) -> list[Measured]:
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


def _batches(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[list[Task]]:
    batch: list[Task] = []
    size = 0
    for a, b in pairs:
        batch.append(Task(a.reference, b.reference))
        size += a.nbytes + b.nbytes
        if len(batch) >= _PAIRS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _workers(executor: Executor) -> int:
    """How many work at once, where the executor says so."""
    return int(getattr(executor, "_max_workers", 0)) or 16


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
