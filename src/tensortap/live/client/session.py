"""A live session with a running job: its catalog, its taps, and the threads that read from all ranks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensortap.core.errors import NotServingError
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.kernels.statistics import Statistics
from tensortap.live.client.connect import RankConnection, SshForwarding, connect_to_job
from tensortap.live.client.receive_buffer import ReceiveBuffer
from tensortap.live.client.remote_tap import RemoteTap
from tensortap.live.protocol import CatalogEntry
from tensortap.recording.destination import parse_size
from tensortap.render import html
from tensortap.render.text import format_table
from tensortap.sinks.open import open_sink
from tensortap.transport.connection import Frame
from tensortap.transport.frames import BadFrameError, FrameKind
from tensortap.transport.schema import decode_record
from tensortap.transport.values import decode_from_wire

log = logging.getLogger("tensortap.live")


def attach(
    job: str | int | None = None,
    *,
    ranks: Iterable[int] | None = None,
    memory: str | int | None = None,
    timeout: float = 3.0,
) -> Session:
    """Attach to a running job that has called `tt.listen()`; by default the newest of this user.

    `job` is a name, a process number, or `ssh://host/name`: all its ranks on that host, or those of `ranks`.
    `memory` bounds the receive buffer: "2GiB", or bytes.

    >>> s = tt.attach()
    >>> s.catalog("attn")
    >>> s.tap("layers.*.attn", every=10).next(timeout=5).value
    """
    peers, forwarding = connect_to_job(job, ranks, timeout)
    return Session(peers, parse_size(memory) if isinstance(memory, str) else memory, forwarding)


class Session:
    """Requests values of a job; it can neither run code there nor change a value."""

    def __init__(
        self, peers: list[RankConnection], memory: int | None = None, forwarding: SshForwarding | None = None
    ) -> None:
        self.peers, self.buffer = peers, ReceiveBuffer(memory)
        self.taps: dict[int, RemoteTap] = {}
        self._forwarding = forwarding
        self._numbers = itertools.count(1)
        self._reader = SessionReader(peers, self.taps, self.buffer)

    @property
    def name(self) -> str:
        return self.peers[0].name

    @property
    def is_open(self) -> bool:
        return self._reader.is_open and any(peer.is_alive for peer in self.peers)

    def catalog(self, pattern: str = "", *, timeout: float = 2.0) -> Catalog:
        """The sites that can be tapped, by pattern or by part of the name. The job records shapes during one
        step; if none starts within the timeout, unknown shapes are left out."""
        rows, surveys = self._request_catalog(pattern, True)
        has_shapes = bool(rows) and all(entry.shape is not None for entry in rows)
        deadline = time.monotonic() + timeout
        while not has_shapes and time.monotonic() < deadline:
            time.sleep(0.02)
            rows, completed_surveys = self._request_catalog(pattern, False)
            has_shapes = completed_surveys > surveys
        return rows

    def tap(
        self,
        *patterns: str,
        every: int = 1,
        first: int | None = None,
        ranks: Iterable[int] | None = None,
        keep: str | None = None,
        sticky: bool = False,
        timeout: float = 1.0,
    ) -> RemoteTap:
        """Let the job send what the patterns select, from its next step on, until `stop` or the session ends.

        `every=10` takes steps 0, 10, 20, ...; `first` ends it after that many steps. `keep` is "stats", or a
        slice such as "[0, :3]". `sticky` taps outlive the session. Waits `timeout` for the job to place it.
        """
        options = {"patterns": list(patterns), "every": every, "first": first, "keep": keep, "sticky": sticky}
        remote_tap = self._request_tap(" ".join(map(repr, patterns)), options, ranks)
        remote_tap.wait_armed(timeout)
        remote_tap.raise_if_refused()
        return remote_tap

    def once(self, pattern: str, *, timeout: float = 10.0, **options: Any) -> Any:
        """The value of one step; a dict of values if the pattern matches several."""
        remote_tap = self.tap(pattern, first=1, **options)
        try:
            first = remote_tap.next(timeout)
            remote_tap.wait_over(timeout)
            values = remote_tap.values
        finally:
            self.end_tap(remote_tap)
            self.taps.pop(remote_tap.number, None)
            self.buffer.forget(remote_tap.number)
        return first.value if len(values) <= 1 else values

    def when(
        self,
        condition: str,
        *,
        then: str = "tell",
        every: int = 1,
        first: int | None = 10,
        ranks: Iterable[int] | None = None,
        sticky: bool = False,
        timeout: float = 1.0,
    ) -> RemoteTap:
        """Let the job watch for a condition: `s.when("absmax(layers.*) > 1e3", then="dump")`.

        `then` is "tell" (an event), "send" (the values come here) or "dump" (the job writes them to disk). It
        ends after `first` steps in which it held.
        """
        options = {"condition": condition, "then": then, "every": every, "first": first, "sticky": sticky}
        remote_tap = self._request_tap(condition, options, ranks)
        remote_tap.wait_armed(timeout)
        remote_tap.raise_if_refused()
        return remote_tap

    def untap(self, pattern: str = "*") -> None:
        """End the taps with that pattern; `"*"` ends all, also sticky taps of former sessions."""
        for remote_tap in list(self.taps.values()):
            if pattern == "*" or repr(pattern) in remote_tap.label.split() or pattern == remote_tap.label:
                self.end_tap(remote_tap)
        if pattern == "*":
            for peer in self._alive():
                peer.send(FrameKind.UNTAP, {"tap": "*"})

    def record(self, address: str | os.PathLike[str]) -> Path | None:
        """Also write what arrives from now on to a new run under that folder; return the path of the run."""
        sink = open_sink(os.fspath(address))
        self._reader.tee(Tap(sinks=[sink], on_error="log"))
        return getattr(sink, "path", None)

    def stop_recording(self) -> None:
        """Stop writing, and close the run of `record`."""
        self._reader.tee(None)

    def close(self) -> None:
        """Disconnect from the job; received records stay."""
        for peer in self._alive():
            # First: the job hangs up at once, which would look as if it had died.
            peer.close_reason = "this session is closed"
            try:
                peer.send(FrameKind.BYE, {})
            except NotServingError:
                log.debug("rank %d had gone before", peer.rank)
        self._reader.close()
        if self._forwarding is not None:
            self._forwarding.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def end_tap(self, remote_tap: RemoteTap) -> None:
        for peer in self._alive():
            if peer.rank in remote_tap.ranks:
                peer.send(FrameKind.UNTAP, {"tap": remote_tap.number})
        for rank in remote_tap.ranks:
            remote_tap.on_event(rank, "ended", "the session ended it")

    @property
    def status(self) -> dict[str, Any]:
        """Step, rate, overhead, and what was lost, over all ranks."""
        return self._reader.status()

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *([format_table(self._table())] if self.taps else [])])

    def _repr_html_(self) -> str:
        return html.table(self._table(), self._headline())

    def _headline(self) -> str:
        ranks = f", {len(self.peers)} ranks" if len(self.peers) > 1 else ""
        if not self.is_open:
            reason = next((peer.close_reason for peer in self.peers if peer.close_reason), "closed")
            return f"session with {self.name!r}{ranks}: {reason}"
        status = self.status
        cost = (
            "" if status["overhead"] is None else f", overhead {100 * status['overhead']:.1f} % of step time"
        )
        rate = f"step {status['step']}, {status['rate']:.3g} steps/s{cost}"
        return (
            f"session with {self.name!r}{ranks}: {rate}, {status['received']} records, {status['lost']} lost"
        )

    def _table(self) -> list[list[str]]:
        rows = [
            [
                tap.label,
                tap.state,
                str(len(tap.history)),
                str(tap.skipped + tap.dropped),
                f"{1000 * tap.lag:.0f} ms",
            ]
            for tap in list(self.taps.values())
        ]
        return [["tap", "is", "records", "lost", "lag"], *rows]

    def _alive(self) -> list[RankConnection]:
        return [peer for peer in self.peers if peer.is_alive and self._reader.is_open]

    def _select_peers(self, ranks: Iterable[int] | None) -> list[RankConnection]:
        wanted = None if ranks is None else set(ranks)
        selected = [peer for peer in self._alive() if wanted is None or peer.rank in wanted]
        if not selected:
            if not self._alive():
                reason = next(
                    (peer.close_reason for peer in self.peers if peer.close_reason), "this session is closed"
                )
                raise NotServingError(f"{reason}; tt.attach() makes a new one")
            ranks_here = [peer.rank for peer in self.peers]
            raise NotServingError(f"no rank {sorted(wanted or ())} in this session; it has {ranks_here}")
        return selected

    def _request_tap(self, label: str, options: dict[str, Any], ranks: Iterable[int] | None) -> RemoteTap:
        peers, number = self._select_peers(ranks), next(self._numbers)
        remote_tap = self.taps[number] = RemoteTap(
            self.buffer, self.end_tap, number, label, [peer.rank for peer in peers]
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self.taps.pop, number)
            for peer in peers:
                peer.request(FrameKind.TAP, {**options, "tap": number}, timeout=5.0)
            undo.pop_all()
        return remote_tap

    def _request_catalog(self, pattern: str, survey: bool) -> tuple[Catalog, int]:
        frames = self._select_peers(None)[0].request(
            FrameKind.CATALOG, {"pattern": pattern, "survey": survey}, timeout=5.0
        )
        rows = (parse_catalog_row(row) for frame in frames for row in frame.get("rows", ()))
        return Catalog(row for row in rows if row is not None), int(frames[-1].get("surveys", 0))


class Catalog(list[CatalogEntry]):
    """The sites of a job with their shapes, where known; printed as a table."""

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def __repr__(self) -> str:
        return (
            f"{len(self)} sites\n{format_table(self._table())}" if self else "no site of that name is offered"
        )

    def _repr_html_(self) -> str:
        return html.table(self._table(), f"{len(self)} sites")

    def _table(self) -> list[list[str]]:
        return [["site", "is", "of", "type", "shape"], *([*entry[:4], format_shape(entry)] for entry in self)]


def format_shape(entry: CatalogEntry) -> str:
    return "" if entry.shape is None else str(list(entry.shape))


def parse_catalog_row(row: Any) -> CatalogEntry | None:
    """A catalog row from the wire; None if it is malformed."""
    if type(row) is not list or len(row) < 5 or not all(type(cell) is str for cell in row[:4]):
        return None
    name, kind, module_class, dtype, shape = row[:5]
    is_shape = type(shape) is list and all(type(size) is int for size in shape)
    return CatalogEntry(name, kind, module_class, dtype, tuple(shape) if is_shape else None)


class SessionReader:
    """One thread per rank, blocking on its socket, so that nothing has to be woken or polled."""

    def __init__(
        self, peers: list[RankConnection], taps: dict[int, RemoteTap], buffer: ReceiveBuffer
    ) -> None:
        self._peers, self._taps, self._buffer = peers, taps, buffer
        self.is_open = True
        self._tee: Tap | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(peer,), name="tensortap-session", daemon=True)
            for peer in peers
        ]
        for thread in self._threads:
            thread.start()
        for peer in peers:
            peer.request_stats()

    def tee(self, tap: Tap | None) -> None:
        previous, self._tee = self._tee, tap
        if previous is not None:
            previous.close()

    def close(self) -> None:
        self.is_open = False
        for peer in self._peers:
            peer.end(peer.close_reason or "this session is closed")
        for thread in self._threads:
            thread.join(5)
        self.tee(None)

    def status(self) -> dict[str, Any]:
        stats = [peer.stats for peer in self._peers if peer.stats]
        costs = [
            rank_stats["overhead"] for rank_stats in stats if isinstance(rank_stats.get("overhead"), float)
        ]
        taps = list(self._taps.values())
        return {
            "step": max((rank_stats.get("step", 0) for rank_stats in stats), default=0),
            "rate": min((rank_stats.get("rate", 0.0) for rank_stats in stats), default=0.0),
            "overhead": max(costs, default=None),
            "received": sum(peer.received for peer in self._peers),
            "nbytes": sum(peer.nbytes for peer in self._peers),
            "lost": sum(tap.skipped + tap.dropped for tap in taps),
            "lag": max((tap.lag for tap in taps), default=0.0),
            "ranks": sum(peer.is_alive for peer in self._peers),
        }

    def _run(self, peer: RankConnection) -> None:
        try:
            while peer.is_alive:
                self._handle_frame(peer, peer.link.receive())
        except (OSError, BadFrameError) as error:
            peer.end(peer.close_reason or f"the job {peer.name!r} has gone without a word ({error})")
        except Exception as error:  # a value's own unpickling and a tap's callbacks run here
            log.exception("reading from rank %d failed; the session with it is closed", peer.rank)
            peer.end(f"reading from rank {peer.rank} failed: {error}")
        for tap in list(self._taps.values()):
            if peer.rank in tap.ranks:
                tap.on_event(peer.rank, "ended", peer.close_reason)

    def _handle_frame(self, peer: RankConnection, frame: Frame) -> None:
        if frame.kind is FrameKind.DATA:
            self._receive_record(peer, frame)
        elif frame.kind is FrameKind.CREDIT:
            self._grant_credit(peer, frame.meta)
        elif frame.kind is FrameKind.STATS:
            peer.stats = frame.meta
        elif frame.kind is FrameKind.EVENT:
            self._handle_event(peer, frame.meta)
        elif frame.kind is FrameKind.BYE:
            peer.close_reason = f"the job {peer.name!r} said goodbye"
            raise ConnectionError("goodbye")
        else:
            peer.deliver(frame)

    def _receive_record(self, peer: RankConnection, frame: Frame) -> None:
        tap = self._taps.get(frame.meta.get("tap", -1))
        value = decode_from_wire(frame.meta, frame.data)
        record = decode_record(frame.meta, _restore_statistics(value))
        peer.received += 1
        peer.nbytes += frame.data.nbytes
        if tap is None:
            return
        tap.lag = max(time.time() - record.time, 0.0)
        tap.update_lost(peer.rank, frame.meta)
        self._buffer.add(record, tap.number, frame.data.nbytes)
        self._write_to_tee(record)

    def _write_to_tee(self, record: Record) -> None:
        if self._tee is not None:
            self._tee.emit(record)

    def _grant_credit(self, peer: RankConnection, meta: dict[str, Any]) -> None:
        tap = self._taps.get(meta.get("tap", -1))
        if tap is not None:
            tap.update_lost(peer.rank, meta)
            peer.link.send(FrameKind.CREDIT, {"tap": tap.number}, timeout=5.0)

    def _handle_event(self, peer: RankConnection, meta: dict[str, Any]) -> None:
        tap = self._taps.get(meta.get("tap", -1))
        if tap is not None:
            tap.on_event(peer.rank, str(meta.get("state")), str(meta.get("text", "")))


def _restore_statistics(value: Any) -> Any:
    """The Statistics that `keep="stats"` sent as a dict; other values unchanged."""
    statistics = Statistics.from_stored(value) if type(value) is dict else None
    return value if statistics is None else statistics
