"""A sink that writes every record to disk, directly or from a background thread with a bounded queue, and
indexes it once it is durable."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensortap.core.ranks import current_rank_info, rank_info
from tensortap.core.record import Record
from tensortap.formats.atomic_files import DIRECT_ALIGNMENT, LARGE_NBYTES, contiguous_bytes
from tensortap.formats.index import format_facts
from tensortap.formats.payload import Payload
from tensortap.formats.run_layout import (
    INTERNAL_FOLDER,
    PACKS_FOLDER,
    create_failed_error,
    write_failed_error,
)
from tensortap.formats.serializers import EncodedValue, encode
from tensortap.frameworks.retention import Buffer, BufferPool
from tensortap.kernels.hashing import checksum, crc32
from tensortap.kernels.statistics import statistics
from tensortap.render.text import truncate
from tensortap.sinks.run_storage import FileStorage, PackStorage, RunStorage, WriteRequest

Layout = Literal["files", "pack"]
_NO_BYTES = np.empty(0, np.uint8)


class RunDirectory:
    """Write records under `path`, which is created if missing.

    `layout="files"` writes one file per value; `"pack"` appends them to packs, where small values are
    batched and written with the first value after a second has passed, unless `write_through` is set. With
    `background=True` a write takes one snapshot and returns; at most `budget` bytes are queued, and then the
    caller waits (`on_full="wait"`) or the value is dropped and counted (`"drop"`). Whatever is queued is on
    disk after `flush`, `close` and the end of the program.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        layout: Layout = "pack",
        background: bool = False,
        on_full: Literal["wait", "drop"] = "wait",
        budget: int = 256 << 20,
        stats: bool = False,
        write_through: bool = False,
    ) -> None:
        self.path = Path(os.path.abspath(path))  # the program may change its working directory
        if layout not in ("files", "pack"):
            raise ValueError(f"layout is 'files' or 'pack', not {layout!r}")
        self._is_packed = layout == "pack"
        self._write_through = write_through
        self._is_synchronous = not background  # the program blocks on each write, so a core is free
        self._stats = stats
        self._writer: BackgroundWriter | None = None
        self._launch_ranks = rank_info()
        self._budget = budget
        self._make_folders()
        # Imported now, since a fork while the writer thread imports them would hang the child.
        checksum(b""), crc32(b"")
        self._start_in_process("", BackgroundWriter(budget, on_full) if background else None)

    @property
    def dropped(self) -> int:
        """How many values were dropped because the queue was full."""
        return self._writer.dropped if self._writer else 0

    def write(self, record: Record) -> None:
        if os.getpid() != self._process:
            self._restart_if_forked()
        if self._writer is not None:
            self._writer.raise_failure()
            if not self._writer.is_open:  # after close() no thread takes jobs: write synchronously
                self._writer = None
        encoded = encode(record.value, plain=self._is_packed)
        fact_columns = format_facts(record, self._statistics_of(encoded) if self._stats else None)
        request = WriteRequest(record, encoded, current_rank_info(self._launch_ranks), fact_columns)
        if self._writer is None:
            self._store(request, self._contiguous_body(encoded.payload))
        else:
            self._enqueue(self._writer, request, encoded)

    def flush(self) -> None:
        """Return when every accepted value is on disk; raise the first failure."""
        self._restart_if_forked()
        if self._writer is not None:
            self._writer.flush()
        with self._lock:
            self._with_write_errors("what waits", self._storage.flush)

    def close(self) -> None:
        """Write what is queued, close the files; packs become ordinary .npz files."""
        self._restart_if_forked()
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            with self._lock:
                self._with_write_errors("what waits", self._storage.close)

    def _make_folders(self) -> None:
        try:
            (self.path / INTERNAL_FOLDER / (PACKS_FOLDER if self._is_packed else "")).mkdir(
                parents=True, exist_ok=True
            )
        except OSError as error:
            raise create_failed_error(self.path, error) from None

    def _start_in_process(self, process_suffix: str, writer: BackgroundWriter | None) -> None:
        """Per-process state; locks too, since another thread may hold them at a fork."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pool = BufferPool(keep=self._budget)
        self._storage = self._with_write_errors("anything", lambda: self._open_storage(process_suffix))
        self._writer = writer
        weakref.finalize(self, _close_unclosed, self._process, writer, self._storage)

    def _open_storage(self, process_suffix: str) -> RunStorage:
        if self._is_packed:
            return PackStorage(
                self.path,
                process_suffix,
                has_spare_core=self._is_synchronous,
                write_through=self._write_through,
            )
        return FileStorage(self.path, process_suffix, has_spare_core=self._is_synchronous)

    def _restart_if_forked(self) -> None:
        """A forked process has no writer thread and must not use its parent's files: it opens new ones, and
        writes synchronously, because such processes often end without running exit handlers."""
        if os.getpid() != self._process:
            self._write_through = True
            self._start_in_process(f"-pid{os.getpid()}", None)

    def _statistics_of(self, encoded: EncodedValue) -> dict[str, Any] | None:
        if not encoded.payload.is_raw:
            return None
        return statistics(encoded.payload.bits, encoded.description.dtype).to_dict()

    def _enqueue(self, writer: BackgroundWriter, request: WriteRequest, encoded: EncodedValue) -> None:
        payload = encoded.payload
        if not writer.admit(payload.bits.nbytes):
            return
        if payload.is_private or encoded.description.device != "cpu":
            writer.put(lambda: self._store(request, self._contiguous_body(payload)), payload.bits.nbytes)
            return
        buffer = self._stage(payload)
        payload.bits = _NO_BYTES  # a queued value must not keep the program's memory alive
        writer.put(lambda: self._store(request, buffer), buffer.array.nbytes)

    def _stage(self, payload: Payload) -> Buffer:
        """A pooled copy of the bits; for a large file padded for the header and direct I/O in one write."""
        if self._is_packed or payload.bits.nbytes < LARGE_NBYTES:
            return self._pool.copy(payload.bits)
        buffer = self._pool.copy(payload.bits, len(payload.head), 2 * DIRECT_ALIGNMENT)
        payload.staging = buffer.whole.data
        return buffer

    def _contiguous_body(self, payload: Payload) -> Buffer | memoryview:
        """The bits as one contiguous block: themselves, or a pooled copy."""
        return (
            contiguous_bytes(payload.bits)
            if payload.bits.flags.c_contiguous
            else self._pool.copy(payload.bits)
        )

    def _store(self, request: WriteRequest, body: Buffer | memoryview) -> None:
        data = body if isinstance(body, memoryview) else body.array.data
        try:
            with self._lock:
                self._storage.store(request, data)
        except OSError as error:
            raise write_failed_error(truncate(repr(request.name), 80, "..."), self.path, error) from error
        finally:
            if isinstance(body, Buffer):
                body.release()

    def _with_write_errors(self, what: str, action: Any) -> Any:
        try:
            return action()
        except OSError as error:
            raise write_failed_error(what, self.path, error) from error


def _close_unclosed(process: int, writer: BackgroundWriter | None, storage: RunStorage) -> None:
    """Finalizer: the sink was collected, or the program ends without closing it."""
    if process != os.getpid():
        return
    try:
        if writer is not None:
            writer.close()
    finally:
        storage.close()


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
