"""Where a run keeps its values: a file each, or appended to packs; the index row comes when they are safe."""

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from tensortap.core.errors import WriteFailedError
from tensortap.core.ranks import Ranks
from tensortap.core.record import Record
from tensortap.formats.files import Folder
from tensortap.formats.index import IndexWriter, row_end, row_start
from tensortap.formats.pack import PackWriter
from tensortap.formats.run_layout import OWN, PACKS, cannot_write, ranked_stem
from tensortap.formats.serializers import Encoded

_LONGEST_WAIT = 1.0  # seconds


class Item:
    """A record on its way to disk: everything but the numbers, which travel in a buffer."""

    __slots__ = ("_facts", "_row", "name", "payload", "ranks")

    def __init__(self, record: Record, encoded: Encoded, here: Ranks, facts: str) -> None:
        self.name = record.name  # not the record: what waits must not keep the program's value alive
        self.ranks = here
        self.payload = encoded.payload
        nbytes = encoded.payload.bits.nbytes
        self._row = row_start(record, encoded.framework, encoded.description, nbytes)
        self._facts = facts

    def row(self, file: str, start: int, length: int, offset: int, checksum: str | None) -> bytes:
        payload = self.payload
        at = offset if payload.is_raw else None
        end = row_end(file, payload.suffix, start, length, at, checksum, self._facts)
        return (self._row + end).encode()


class Indexes:
    """The index of each rank that this process writes for; `mark` tells a forked process's from others'."""

    def __init__(self, run: Path, mark: str) -> None:
        self._stem = f"{run}/{OWN}/index-rank"
        self._mark = mark
        self._open: dict[int, IndexWriter] = {}

    def of(self, rank: int) -> IndexWriter:
        index = self._open.get(rank)
        if index is None:
            index = self._open[rank] = IndexWriter(f"{self._stem}{rank}{self._mark}.jsonl")
        return index

    def close(self) -> None:
        indexes, self._open = self._open, {}
        for index in indexes.values():
            index.close()


class FileShelf:
    """A file for each value."""

    def __init__(self, run: Path, mark: str, *, has_spare_core: bool) -> None:
        self._folder = Folder(os.fspath(run), f"{run}/{OWN}", has_spare_core=has_spare_core)
        self._indexes = Indexes(run, mark)
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1)

    def store(self, item: Item, data: memoryview) -> None:
        payload = item.payload
        index = self._indexes.of(item.ranks.rank)
        stem = ranked_stem(item.name, item.ranks)
        file, checksum = self._folder.put(self._names(stem, payload.suffix), payload, data)
        start = len(payload.head)
        try:
            index.append(item.row(file, 0, start + len(data), start, checksum))
        except OSError:
            self._numbers[stem + payload.suffix] -= 1
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder.path}/{file}")
            raise

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._indexes.close()

    def _names(self, stem: str, suffix: str) -> Iterator[str]:
        """The plain name first, then numbered ones; the next number is remembered."""
        key = stem + suffix
        for number in itertools.count(self._numbers[key]):
            self._numbers[key] = number + 1
            yield key if number == 1 else f"{stem}.{number}{suffix}"


class PackShelf:
    """Values in packs. Small ones wait until there are many, or until one comes after a second has passed,
    unless `write_through`: then each is on disk when `store` returns."""

    def __init__(self, run: Path, mark: str, *, has_spare_core: bool, write_through: bool) -> None:
        self._run = run
        self._mark = mark
        self._has_spare_core = has_spare_core
        self._write_through = write_through
        self._indexes = Indexes(run, mark)
        self._rank = 0
        self._index: IndexWriter | None = None
        self._pack: PackWriter | None = None
        self._rows: list[bytes] = []
        self._deadline = 0.0

    def store(self, item: Item, data: memoryview) -> None:
        pack = self._pack
        if pack is None or item.ranks.rank != self._rank or pack.is_full:
            pack = self._next_pack(item.ranks)
        place = pack.append(ranked_stem(item.name, item.ranks), item.payload, data)
        file = f"{OWN}/{PACKS}/{pack.name}"
        self._rows.append(item.row(file, place.start, place.length, place.offset, place.checksum))
        if not self._write_through and pack.waiting and monotonic() < self._deadline:
            return
        try:
            self.flush()
        except OSError:
            pack.take_back()
            self._rows.pop()
            raise

    def flush(self) -> None:
        """Values first, then the rows that speak of them."""
        if self._pack is not None and self._index is not None and self._rows:
            self._pack.flush()
            self._append_rows(self._index)
        self._deadline = monotonic() + _LONGEST_WAIT

    def _append_rows(self, index: IndexWriter) -> None:
        """Not twice, whatever interrupts: rows wait again only when they were not written."""
        size = None if self._write_through else index.size()
        rows, self._rows = self._rows, []
        try:
            index.append(b"".join(rows))
        except BaseException as error:
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
            raise cannot_write(f"the end of {pack.name}", self._run, error) from error

    def _next_pack(self, here: Ranks) -> PackWriter:
        """Another one, because the last is full or the process has learned its rank."""
        self._close_pack()
        self._rank, self._index = here.rank, self._indexes.of(here.rank)
        self._pack = self._new_pack(here)
        return self._pack

    def _new_pack(self, here: Ranks) -> PackWriter:
        for number in itertools.count():
            path = f"{self._run}/{OWN}/{PACKS}/rank{here.rank}{self._mark}-{number:04}.npz"
            with contextlib.suppress(FileExistsError):
                return PackWriter(path, has_spare_core=self._has_spare_core)
        raise AssertionError("unreachable")


Shelf = FileShelf | PackShelf
