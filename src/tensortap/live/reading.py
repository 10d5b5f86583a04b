"""The thread of a session that reads from all ranks, and gives each job leave to send more."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.kernels.statistics import Statistics
from tensortap.live.peers import RankConnection
from tensortap.live.shelf import ReceiveBuffer
from tensortap.live.tapped import RemoteTap
from tensortap.transport.connection import Frame
from tensortap.transport.frames import BadFrameError, FrameKind
from tensortap.transport.values import record_from, unpacked

log = logging.getLogger("tensortap.live")


class SessionReader:
    """A thread for each rank, which waits in its socket: nothing to be woken, nothing to be polled."""

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
        except Exception as error:
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
        value = unpacked(frame.meta, frame.data)
        record = record_from(frame.meta, _restore_statistics(value))
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
    """The few numbers of `keep="stats"` as the object that they were."""
    if type(value) is dict and tuple(value) == tuple(Statistics.__dataclass_fields__):
        return Statistics(**value)
    return value
