"""Storage of a run's values: one file each, or packed; the index row is written once they are durable."""

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from tensortap.core.errors import WriteFailedError
from tensortap.core.ranks import RankInfo
from tensortap.core.record import Record
from tensortap.formats.atomic_files import AtomicFolder
from tensortap.formats.index import IndexWriter, format_row_end, format_row_start
from tensortap.formats.pack import PackWriter
from tensortap.formats.run_layout import INTERNAL_FOLDER, PACKS_FOLDER, ranked_stem, write_failed_error
from tensortap.formats.serializers import EncodedValue

_MAX_DELAY = 1.0  # seconds


class WriteRequest:
    """Everything of a record to be written except its data, which is passed in a buffer."""

    __slots__ = ("_facts", "_row", "name", "payload", "ranks")

    def __init__(self, record: Record, encoded: EncodedValue, ranks: RankInfo, facts: str) -> None:
        self.name = record.name  # not the record: a queued value must not keep the program's memory alive
        self.ranks = ranks
        self.payload = encoded.payload
        nbytes = encoded.payload.bits.nbytes
        self._row = format_row_start(record, encoded.framework, encoded.description, nbytes)
        self._facts = facts

    def row(self, file: str, start: int, length: int, offset: int, checksum: str | None) -> bytes:
        payload = self.payload
        data_offset = offset if payload.is_raw else None
        end = format_row_end(file, payload.suffix, start, length, data_offset, checksum, self._facts)
        return (self._row + end).encode()


class RankIndexes:
    """The index of each rank this process writes for; `process_suffix` keeps a forked process's separate."""

    def __init__(self, run: Path, process_suffix: str) -> None:
        self._stem = f"{run}/{INTERNAL_FOLDER}/index-rank"
        self._process_suffix = process_suffix
        self._writers: dict[int, IndexWriter] = {}

    def for_rank(self, rank: int) -> IndexWriter:
        index = self._writers.get(rank)
        if index is None:
            index = self._writers[rank] = IndexWriter(f"{self._stem}{rank}{self._process_suffix}.jsonl")
        return index

    def close(self) -> None:
        indexes, self._writers = self._writers, {}
        for index in indexes.values():
            index.close()


class FileStorage:
    """One file per value."""

    def __init__(self, run: Path, process_suffix: str, *, has_spare_core: bool) -> None:
        self._folder = AtomicFolder(os.fspath(run), f"{run}/{INTERNAL_FOLDER}", has_spare_core=has_spare_core)
        self._indexes = RankIndexes(run, process_suffix)
        self._next_numbers: defaultdict[str, int] = defaultdict(lambda: 1)

    def store(self, request: WriteRequest, data: memoryview) -> None:
        payload = request.payload
        index = self._indexes.for_rank(request.ranks.rank)
        stem = ranked_stem(request.name, request.ranks)
        file, checksum = self._folder.write_new(self._candidate_names(stem, payload.suffix), payload, data)
        start = len(payload.head)
        try:
            index.append(request.row(file, 0, start + len(data), start, checksum))
        except OSError:
            self._next_numbers[stem + payload.suffix] -= 1
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder.path}/{file}")
            raise

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._indexes.close()

    def _candidate_names(self, stem: str, suffix: str) -> Iterator[str]:
        """The plain file name first, then numbered ones; the next number is remembered."""
        key = stem + suffix
        for number in itertools.count(self._next_numbers[key]):
            self._next_numbers[key] = number + 1
            yield key if number == 1 else f"{stem}.{number}{suffix}"


class PackStorage:
    """Values in packs. Small ones are batched until there are many, or until one comes after a second has
    passed, unless `write_through`: then each is on disk when `store` returns."""

    def __init__(self, run: Path, process_suffix: str, *, has_spare_core: bool, write_through: bool) -> None:
        self._run = run
        self._process_suffix = process_suffix
        self._has_spare_core = has_spare_core
        self._write_through = write_through
        self._indexes = RankIndexes(run, process_suffix)
        self._rank = 0
        self._index: IndexWriter | None = None
        self._pack: PackWriter | None = None
        self._rows: list[bytes] = []
        self._deadline = 0.0

    def store(self, request: WriteRequest, data: memoryview) -> None:
        pack = self._pack
        if pack is None or request.ranks.rank != self._rank or pack.is_full:
            pack = self._next_pack(request.ranks)
        location = pack.append(ranked_stem(request.name, request.ranks), request.payload, data)
        file = f"{INTERNAL_FOLDER}/{PACKS_FOLDER}/{pack.name}"
        self._rows.append(
            request.row(file, location.start, location.length, location.offset, location.checksum)
        )
        if not self._write_through and pack.waiting and monotonic() < self._deadline:
            return
        try:
            self.flush()
        except OSError:
            pack.undo_append()
            self._rows.pop()
            raise

    def flush(self) -> None:
        """Write the values first, then the index rows that refer to them."""
        if self._pack is not None and self._index is not None and self._rows:
            self._pack.flush()
            self._append_rows(self._index)
        self._deadline = monotonic() + _MAX_DELAY

    def _append_rows(self, index: IndexWriter) -> None:
        """Append the rows exactly once, whatever interrupts: requeue them only if they were not written."""
        size = None if self._write_through else index.size()
        rows, self._rows = self._rows, []
        try:
            index.append(b"".join(rows))
        except BaseException as error:  # an interrupt too must neither lose nor repeat rows
            if isinstance(error, OSError) or index.size() == size:
                self._rows = rows
            raise

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._indexes.close)
            self._close_pack()
            self._index = None

    def _close_pack(self) -> None:
        if self._pack is None:
            return
        pack = self._pack
        try:
            self.flush()
            self._pack = None
            pack.close()
        except WriteFailedError:
            raise
        except OSError as error:
            raise write_failed_error(f"the end of {pack.name}", self._run, error) from error

    def _next_pack(self, ranks: RankInfo) -> PackWriter:
        """A new pack, because the last is full or the rank of the process has changed."""
        self._close_pack()
        self._rank, self._index = ranks.rank, self._indexes.for_rank(ranks.rank)
        self._pack = self._new_pack(ranks)
        return self._pack

    def _new_pack(self, ranks: RankInfo) -> PackWriter:
        stem = f"{self._run}/{INTERNAL_FOLDER}/{PACKS_FOLDER}/rank{ranks.rank}{self._process_suffix}"
        for number in itertools.count():
            path = f"{stem}-{number:04}.npz"
            with contextlib.suppress(FileExistsError):
                return PackWriter(path, has_spare_core=self._has_spare_core)
        raise AssertionError("unreachable")


RunStorage = FileStorage | PackStorage
