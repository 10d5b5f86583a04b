"""A live session: look into a running job of one's own, and ask it for what it shows."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensortap.core.errors import NotServingError
from tensortap.core.tap import Tap
from tensortap.formats.table import table_html, table_text
from tensortap.formats.wire import Kind
from tensortap.live.attaching import connected
from tensortap.live.catalog import Catalog, place_of
from tensortap.live.forwarding import Forwarding
from tensortap.live.peers import Peer
from tensortap.live.reading import Reader
from tensortap.live.shelf import Shelf
from tensortap.live.tapped import Tapped
from tensortap.recording.keeping import parse_size
from tensortap.sinks.addresses import open_sink

log = logging.getLogger("tensortap.live")


def attach(
    job: str | int | None = None,
    *,
    ranks: Iterable[int] | None = None,
    memory: str | int | None = None,
    timeout: float = 3.0,
) -> Session:
    """A session with a running job that has called `tt.listen()`; the newest of this user's, unless said.

    `job` is a name, a process number, or `ssh://host/name`: all its ranks on that host, or those of `ranks`.
    `memory` bounds what the session holds: "2GiB", or bytes.

    >>> s = tt.attach()
    >>> s.catalog("attn")
    >>> s.tap("layers.*.attn", every=10).next(timeout=5).value
    """
    peers, forwarding = connected(job, ranks, timeout)
    return Session(peers, parse_size(memory) if isinstance(memory, str) else memory, forwarding)


class Session:
    """Looks and asks; it can neither run code in the job nor change a value there."""

    def __init__(
        self, peers: list[Peer], memory: int | None = None, forwarding: Forwarding | None = None
    ) -> None:
        self.peers, self.shelf = peers, Shelf(memory)
        self.taps: dict[int, Tapped] = {}
        self._forwarding = forwarding
        self._numbers = itertools.count(1)
        self._reader = Reader(peers, self.taps, self.shelf)

    @property
    def name(self) -> str:
        return self.peers[0].name

    @property
    def is_open(self) -> bool:
        return self._reader.is_open and any(peer.is_alive for peer in self.peers)

    def catalog(self, pattern: str = "", *, timeout: float = 2.0) -> Catalog:
        """What can be tapped: a pattern, or a part of the name. To know shapes, the job looks at those of one
        step; if none begins in time, shapes that are not known are left out."""
        rows, surveys = self._catalog(pattern, True)
        is_known = bool(rows) and all(place.shape is not None for place in rows)
        deadline = time.monotonic() + timeout
        while not is_known and time.monotonic() < deadline:
            time.sleep(0.02)
            rows, now = self._catalog(pattern, False)
            is_known = now > surveys
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
    ) -> Tapped:
        """Let the job send what the patterns select, from its next step on, until `stop` or the session ends.

        `every=10` takes steps 0, 10, 20, ...; `first` ends it after that many steps. `keep` is "stats", or a
        slice such as "[0, :3]". `sticky` taps outlive the session. Waits `timeout` for the job to place it.
        """
        asked = {"patterns": list(patterns), "every": every, "first": first, "keep": keep, "sticky": sticky}
        tapped = self._ask_tap(" ".join(map(repr, patterns)), asked, ranks)
        tapped.wait_armed(timeout)
        tapped.refuse()
        return tapped

    def once(self, pattern: str, *, timeout: float = 10.0, **options: Any) -> Any:
        """The value of one step; a dict of values where the pattern means several."""
        tapped = self.tap(pattern, first=1, **options)
        try:
            first = tapped.next(timeout)
            tapped.wait_over(timeout)
            values = tapped.values
        finally:
            self.end_tap(tapped)
            self.taps.pop(tapped.number, None)
            self.shelf.forget(tapped.number)
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
    ) -> Tapped:
        """Let the job watch for a condition: `s.when("absmax(layers.*) > 1e3", then="dump")`.

        `then` is "tell" (an event), "send" (the values come here) or "dump" (the job writes them to disk). It
        ends after `first` steps in which it held.
        """
        asked = {"condition": condition, "then": then, "every": every, "first": first, "sticky": sticky}
        tapped = self._ask_tap(condition, asked, ranks)
        tapped.wait_armed(timeout)
        tapped.refuse()
        return tapped

    def untap(self, pattern: str = "*") -> None:
        """End the taps of those patterns; `"*"` ends all, also sticky ones that other sessions left."""
        for tapped in list(self.taps.values()):
            if pattern == "*" or repr(pattern) in tapped.what.split() or pattern == tapped.what:
                self.end_tap(tapped)
        if pattern == "*":
            for peer in self._alive():
                peer.send(Kind.UNTAP, {"tap": "*"})

    def record(self, address: str | os.PathLike[str]) -> Path | None:
        """Write what arrives from now on to a new run under that folder as well; the path of the run."""
        sink = open_sink(os.fspath(address))
        self._reader.tee(Tap(sinks=[sink], on_error="log"))
        return getattr(sink, "path", None)

    def stop_recording(self) -> None:
        """Write no more of what arrives; the run of `record` is closed."""
        self._reader.tee(None)

    def close(self) -> None:
        """Leave the job alone; what came stays here."""
        for peer in self._alive():
            peer.why = "this session is closed"  # before the job, which hangs up at once, is taken for gone
            try:
                peer.send(Kind.BYE, {})
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

    def end_tap(self, tapped: Tapped) -> None:
        for peer in self._alive():
            if peer.rank in tapped.ranks:
                peer.send(Kind.UNTAP, {"tap": tapped.number})
        for rank in tapped.ranks:
            tapped.see_event(rank, "ended", "the session ended it")

    @property
    def status(self) -> dict[str, Any]:
        """Step, rate, overhead, and what was lost, of all ranks together."""
        return self._reader.status()

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *([table_text(self._table())] if self.taps else [])])

    def _repr_html_(self) -> str:
        return table_html(self._headline(), self._table())

    def _headline(self) -> str:
        ranks = f", {len(self.peers)} ranks" if len(self.peers) > 1 else ""
        if not self.is_open:
            why = next((peer.why for peer in self.peers if peer.why), "closed")
            return f"session with {self.name!r}{ranks}: {why}"
        now = self.status
        cost = "" if now["overhead"] is None else f", overhead {100 * now['overhead']:.1f} % of step time"
        rate = f"step {now['step']}, {now['rate']:.3g} steps/s{cost}"
        return f"session with {self.name!r}{ranks}: {rate}, {now['received']} records, {now['lost']} lost"

    def _table(self) -> list[list[str]]:
        rows = [
            [
                one.what,
                one.state,
                str(len(one.history)),
                str(one.skipped + one.dropped),
                f"{1000 * one.lag:.0f} ms",
            ]
            for one in list(self.taps.values())
        ]
        return [["tap", "is", "records", "lost", "lag"], *rows]

    def _alive(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.is_alive and self._reader.is_open]

    def _chosen(self, ranks: Iterable[int] | None) -> list[Peer]:
        wanted = None if ranks is None else set(ranks)
        found = [peer for peer in self._alive() if wanted is None or peer.rank in wanted]
        if not found:
            if not self._alive():
                why = next((peer.why for peer in self.peers if peer.why), "this session is closed")
                raise NotServingError(f"{why}; tt.attach() makes a new one")
            known = [peer.rank for peer in self.peers]
            raise NotServingError(f"no rank {sorted(wanted or ())} in this session; it has {known}")
        return found

    def _ask_tap(self, what: str, asked: dict[str, Any], ranks: Iterable[int] | None) -> Tapped:
        peers, number = self._chosen(ranks), next(self._numbers)
        tapped = self.taps[number] = Tapped(self, number, what, [peer.rank for peer in peers])
        try:
            for peer in peers:
                peer.ask(Kind.TAP, {**asked, "tap": number}, timeout=5.0)
        except BaseException:
            del self.taps[number]
            raise
        return tapped

    def _catalog(self, pattern: str, survey: bool) -> tuple[Catalog, int]:
        frames = self._chosen(None)[0].ask(Kind.CATALOG, {"pattern": pattern, "survey": survey}, timeout=5.0)
        rows = (place_of(row) for frame in frames for row in frame.get("rows", ()))
        return Catalog(row for row in rows if row is not None), int(frames[-1].get("surveys", 0))
