"""A sink that keeps every record on disk: a file each, or packed, and a row in the index when it is safe."""

import contextlib
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensortap.core.ranks import Ranks, current, ranks
from tensortap.core.record import Record
from tensortap.formats.files import Folder, one_block
from tensortap.formats.index import IndexWriter, facts, row_end, row_start
from tensortap.formats.pack import PackWriter
from tensortap.formats.payload import Payload
from tensortap.formats.run_layout import OWN, PACKS, cannot_create, cannot_write, ranked_stem
from tensortap.formats.serializers import Encoded, encode
from tensortap.frameworks.pool import Buffer, Pool
from tensortap.kernels.hashing import checksum, crc32
from tensortap.kernels.statistics import statistics
from tensortap.sinks.background import Writer

Layout = Literal["files", "pack"]
_NOTHING = np.empty(0, np.uint8)
_PACK_BYTES = 1 << 30
_PACK_MEMBERS = 60_000


class RunDirectory:
    """Write records under `path`, which is created when it is not there.

    `layout="files"` gives each value a file of its own; `"pack"` appends them to packs. With
    `background=True` a write takes one snapshot and returns; at most `budget` bytes wait, and then
    the caller waits too (`on_full="wait"`) or the value is dropped and counted (`"drop"`).
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
    ) -> None:
        self.path = Path(os.path.abspath(path))  # the program may change its working directory
        if layout not in ("files", "pack"):
            raise ValueError(f"layout is 'files' or 'pack', not {layout!r}")
        self._layout = layout
        self._waits = not background  # the program waits for each write, so a core is free
        self._stats = stats
        self._launched = ranks()
        self._budget = budget
        self._folder = self._make_folder()
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1)
        self._forked = ""
        self._begin()
        # Found now, since a fork while the writer thread imports them would hang the child.
        checksum(b""), crc32(b"")
        self._writer = Writer(budget, on_full) if background else None

    def _make_folder(self) -> Folder:
        own = self.path / OWN
        try:
            (own / PACKS if self._layout == "pack" else own).mkdir(parents=True, exist_ok=True)
            return Folder(os.fspath(self.path), os.fspath(own), has_spare_core=self._waits)
        except OSError as error:
            raise cannot_create(self.path, error) from None

    def _begin(self) -> None:
        """What a process has for itself; the locks too, since another thread may hold them in a fork."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pool = Pool(keep=self._budget)
        self._indexes: dict[int, IndexWriter] = {}
        self._pack: PackWriter | None = None

    @property
    def dropped(self) -> int:
        """How many values a full queue has cost."""
        return self._writer.dropped if self._writer else 0

    def write(self, record: Record) -> None:
        self._begin_in_child()
        if self._writer is not None:
            self._writer.raise_failure()
            if not self._writer.is_open:  # after close() nobody would fetch it: it is written at once
                self._writer = None
        encoded = encode(record.value, plain=self._layout == "pack")
        here = current(self._launched)
        item = _Item(record, encoded, here, self._facts(record, encoded))
        if self._writer is None:
            self._store(item, self._body(encoded.payload))
        else:
            self._defer(item, encoded)

    def flush(self) -> None:
        """Return when every accepted value is on disk; raise what failed meanwhile."""
        self._begin_in_child()
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what waits, close the files; packs become ordinary .npz files."""
        self._begin_in_child()
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        with self._lock:
            pack, self._pack = self._pack, None
            indexes, self._indexes = self._indexes, {}
        with contextlib.ExitStack() as stack:
            for index in indexes.values():
                stack.callback(index.close)
            if pack is not None:
                self._close_pack(pack)

    def _close_pack(self, pack: PackWriter) -> None:
        try:
            pack.close()
        except OSError as error:
            raise cannot_write(f"the end of {pack.name}", self.path, error) from error

    def _begin_in_child(self) -> None:
        """A forked process has no writer thread, and its parent's files are not its own: it begins new
        ones, and writes at once, because such processes often end without a farewell."""
        if os.getpid() == self._process:
            return
        self._begin()
        self._forked = f"-pid{self._process}"
        self._writer = None

    def _facts(self, record: Record, encoded: Encoded) -> str:
        numbers = None
        if self._stats and encoded.payload.is_raw:
            numbers = astuple(statistics(encoded.payload.bits, encoded.description.dtype))
        return facts(record, numbers)

    def _defer(self, item: "_Item", encoded: Encoded) -> None:
        assert self._writer is not None
        payload = encoded.payload
        if not self._writer.admit(payload.bits.nbytes):
            return
        if payload.is_private or not payload.bits.nbytes or encoded.description.device != "cpu":
            self._writer.put(lambda: self._store(item, self._body(payload)), payload.bits.nbytes)
            return
        buffer = self._pool.copy(payload.bits)
        payload.bits = _NOTHING  # what waits must not keep the program's memory alive
        self._writer.put(lambda: self._store(item, buffer), buffer.array.nbytes)

    def _body(self, payload: Payload) -> Buffer | memoryview:
        """The bits as one block: themselves, or a lent copy."""
        return one_block(payload.bits) if payload.bits.flags.c_contiguous else self._pool.copy(payload.bits)

    def _store(self, item: "_Item", body: Buffer | memoryview) -> None:
        data = body if isinstance(body, memoryview) else body.array.data
        try:
            with self._lock:
                self._store_packed(item, data) if self._layout == "pack" else self._store_file(item, data)
        except OSError as error:
            raise cannot_write(_short(item.name), self.path, error) from error
        finally:
            if isinstance(body, Buffer):
                body.release()

    def _store_file(self, item: "_Item", data: memoryview) -> None:
        payload = item.payload
        index = self._index(item)
        stem = ranked_stem(item.name, item.ranks)
        names = self._names(stem, payload.suffix)
        file, checksum = self._folder.put(names, payload, data)
        start = len(payload.head)
        offset = start if payload.is_raw else None
        try:
            index.append(item.row(file, 0, start + len(data), offset, checksum))
        except OSError:
            self._numbers[stem + payload.suffix] -= 1
            with contextlib.suppress(OSError):
                os.unlink(self.path / file)
            raise

    def _store_packed(self, item: "_Item", data: memoryview) -> None:
        index = self._index(item)
        pack = self._current_pack(item.ranks)
        place = pack.append(ranked_stem(item.name, item.ranks), item.payload, data)
        offset = place.offset if item.payload.is_raw else None
        file = f"{OWN}/{PACKS}/{pack.name}"
        try:
            index.append(item.row(file, place.start, place.length, offset, place.checksum))
        except OSError:
            pack.take_back()
            raise

    def _names(self, stem: str, suffix: str) -> Iterator[str]:
        """The plain name first, then numbered ones; the next number is remembered."""
        key = stem + suffix
        for number in itertools.count(self._numbers[key]):
            self._numbers[key] = number + 1
            yield key if number == 1 else f"{stem}.{number}{suffix}"

    def _index(self, item: "_Item") -> IndexWriter:
        rank = item.ranks.rank
        index = self._indexes.get(rank)
        if index is None:
            path = f"{self.path}/{OWN}/index-rank{rank}{self._forked}.jsonl"
            index = self._indexes[rank] = IndexWriter(path)
        return index

    def _current_pack(self, here: Ranks) -> PackWriter:
        pack = self._pack
        if pack is not None and pack.size < _PACK_BYTES and pack.count < _PACK_MEMBERS:
            return pack
        if pack is not None:
            self._pack = None
            pack.close()
        self._pack = self._new_pack(here)
        return self._pack

    def _new_pack(self, here: Ranks) -> PackWriter:
        folder = self.path / OWN / PACKS
        for number in itertools.count():
            try:
                path = f"{folder}/rank{here.rank}{self._forked}-{number:04}.npz"
                return PackWriter(path, has_spare_core=self._waits)
            except FileExistsError:
                continue
        raise AssertionError("unreachable")


class _Item:
    """A record on its way to disk: everything but the numbers, which travel in a buffer."""

    __slots__ = ("_facts", "_row", "name", "payload", "ranks")

    def __init__(self, record: Record, encoded: Encoded, here: Ranks, known: str) -> None:
        nbytes = encoded.payload.bits.nbytes
        self.name = record.name  # not the record: what waits must not keep the program's value alive
        self.ranks = here
        self.payload = encoded.payload
        self._row = row_start(record, encoded.framework, encoded.description, nbytes)
        self._facts = known

    def row(self, file: str, start: int, length: int, offset: int | None, checksum: str | None) -> bytes:
        end = row_end(file, self.payload.suffix, start, length, offset, checksum, self._facts)
        return self._row.encode() + end


def _short(name: Any) -> str:
    text = repr(name)
    return text if len(text) <= 80 else text[:77] + "..."
