"""The thread of a session that reads from all ranks, and gives each job leave to send more."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.formats.link import Frame
from tensortap.formats.wire import BadFrameError, Kind
from tensortap.formats.wire_values import record_from, unpacked
from tensortap.kernels.statistics import Statistics
from tensortap.live.peers import Peer
from tensortap.live.shelf import Shelf
from tensortap.live.tapped import Tapped

log = logging.getLogger("tensortap.live")


class Reader:
    """A thread for each rank, which waits in its socket: nothing to be woken, nothing to be polled."""

    def __init__(self, peers: list[Peer], taps: dict[int, Tapped], shelf: Shelf) -> None:
        self._peers, self._taps, self._shelf = peers, taps, shelf
        self.is_open = True
        self._tee: Tap | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(peer,), name="tensortap-session", daemon=True)
            for peer in peers
        ]
        for thread in self._threads:
            thread.start()
        for peer in peers:
            peer.greet()

    def tee(self, tap: Tap | None) -> None:
        before, self._tee = self._tee, tap
        if before is not None:
            before.close()

    def close(self) -> None:
        self.is_open = False
        for peer in self._peers:
            peer.end(peer.why or "this session is closed")
        for thread in self._threads:
            thread.join(5)
        self.tee(None)

    def status(self) -> dict[str, Any]:
        told = [peer.stats for peer in self._peers if peer.stats]
        costs = [one["overhead"] for one in told if isinstance(one.get("overhead"), float)]
        taps = list(self._taps.values())
        return {
            "step": max((one.get("step", 0) for one in told), default=0),
            "rate": min((one.get("rate", 0.0) for one in told), default=0.0),
            "overhead": max(costs, default=None),
            "received": sum(peer.received for peer in self._peers),
            "nbytes": sum(peer.nbytes for peer in self._peers),
            "lost": sum(tap.skipped + tap.dropped for tap in taps),
            "lag": max((tap.lag for tap in taps), default=0.0),
            "ranks": sum(peer.is_alive for peer in self._peers),
        }

    def _run(self, peer: Peer) -> None:
        try:
            while peer.is_alive:
                self._see(peer, peer.link.receive())
        except (OSError, BadFrameError) as error:
            peer.end(peer.why or f"the job {peer.name!r} has gone without a word ({error})")
        except Exception as error:
            log.exception("reading from rank %d failed; the session with it is closed", peer.rank)
            peer.end(f"reading from rank {peer.rank} failed: {error}")
        for tapped in list(self._taps.values()):
            if peer.rank in tapped.ranks:
                tapped.see_event(peer.rank, "ended", peer.why)

    def _see(self, peer: Peer, frame: Frame) -> None:
        if frame.kind is Kind.DATA:
            self._take(peer, frame)
        elif frame.kind is Kind.CREDIT:
            self._grant(peer, frame.meta)
        elif frame.kind is Kind.STATS:
            peer.stats = frame.meta
        elif frame.kind is Kind.EVENT:
            self._event(peer, frame.meta)
        elif frame.kind is Kind.BYE:
            peer.why = f"the job {peer.name!r} said goodbye"
            raise ConnectionError("goodbye")
        else:
            peer.hand_over(frame)

    def _take(self, peer: Peer, frame: Frame) -> None:
        tapped = self._taps.get(frame.meta.get("tap", -1))
        value = unpacked(frame.meta, frame.data)
        record = record_from(frame.meta, _statistics(value))
        peer.received += 1
        peer.nbytes += frame.data.nbytes
        if tapped is None:
            return
        tapped.lag = max(time.time() - record.time, 0.0)
        tapped.count(peer.rank, frame.meta)
        self._shelf.add(record, tapped.number, frame.data.nbytes)
        self._write(record)

    def _write(self, record: Record) -> None:
        if self._tee is not None:
            self._tee.emit(record)

    def _grant(self, peer: Peer, meta: dict[str, Any]) -> None:
        tapped = self._taps.get(meta.get("tap", -1))
        if tapped is not None:
            tapped.count(peer.rank, meta)
            peer.link.send(Kind.CREDIT, {"tap": tapped.number}, timeout=5.0)

    def _event(self, peer: Peer, meta: dict[str, Any]) -> None:
        tapped = self._taps.get(meta.get("tap", -1))
        if tapped is not None:
            tapped.see_event(peer.rank, str(meta.get("state")), str(meta.get("text", "")))


def _statistics(value: Any) -> Any:
    """The few numbers of `keep="stats"` as the object that they were."""
    if type(value) is dict and tuple(value) == tuple(Statistics.__dataclass_fields__):
        return Statistics(**value)
    return value
