"""A tap in a remote job, as the session holds it: its records, its state, and how to end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tensortap.core.errors import NotServingError, RefusedError, UnknownNameError
from tensortap.core.patterns import closest_names, matches_pattern
from tensortap.core.record import Record, Series
from tensortap.live.client.receive_buffer import BufferedRecord, ReceiveBuffer
from tensortap.render import html

_ACTIVE_STATES = ("armed", "requested", "looking")
_STATE_ORDER = (*_ACTIVE_STATES, "done", "refused")
_MAX_UNREAD_STEPS = 3  # a slower reader skips to newer ones


class RemoteTap:
    """What `s.tap(...)` returns.

    >>> t = s.tap("layers.*.attn", every=10)
    >>> t.next(timeout=5)      # the next record; .name .value .step .rank
    >>> t.latest               # the last one, without waiting
    >>> t["layers.0.attn"]     # the last value of that name
    >>> for record in t: ...   # as they come
    """

    def __init__(
        self,
        buffer: ReceiveBuffer,
        end_tap: Callable[[RemoteTap], None],
        number: int,
        label: str,
        ranks: list[int],
    ) -> None:
        self.number, self.label, self.ranks = number, label, ranks
        self.events: list[str] = []
        self._lost: dict[int, list[int]] = {}  # by rank
        self.missed = 0  # received, but skipped by `next` in favour of newer ones
        self.fired = 0  # how many times a condition was true
        self.lag = 0.0
        self._end_tap, self._buffer = end_tap, buffer
        self._states: dict[int, str] = dict.fromkeys(ranks, "requested")
        self._reason = ""
        self._last_returned = 0

    @property
    def state(self) -> str:
        """requested; looking, for a `tt.tap` of that name; armed; then refused, done or ended."""
        states = set(self._states.values())
        return next((state for state in _STATE_ORDER if state in states), "ended")

    @property
    def latest(self) -> Record | None:
        """The last record received; None before the first."""
        entry = self._buffer.latest(self.number)
        return entry.record if entry is not None else None

    @property
    def history(self) -> list[Record]:
        """All records still in the buffer, in order of arrival."""
        return [entry.record for entry in self._buffer.entries(self.number)]

    @property
    def values(self) -> dict[str, Any]:
        """The last value of each name; with several ranks, the one received last."""
        return {entry.record.name: entry.record.value for entry in self._buffer.latest_by_name(self.number)}

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.values)

    def __getitem__(self, name: str) -> Any:
        """The last value of that name, or a list of the last values that match it as a pattern."""
        values = self.values
        if name in values:
            return values[name]
        matching = [value for candidate, value in values.items() if matches_pattern(name, candidate)]
        if not matching:
            near = closest_names(name, values) or list(values)[:3]
            raise UnknownNameError(
                f"nothing called {name!r} has come; there is {', '.join(near) or 'nothing yet'}"
            )
        return matching

    def series(self, name: str) -> Series:
        """All records of a name as a Series."""
        series = Series(name)
        for record in self.history:
            if record.name == name:
                series.add(record)
        return series

    def next(self, timeout: float | None = None) -> Record:
        """Wait for the next record that was not returned yet.

        Newest wins: a slow reader gets recent records, and `missed` counts the skipped ones. Raises
        TimeoutError, and NotServingError at once when the tap has ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._buffer.changed:
            while (entry := self._next_unread()) is None:
                self._raise_if_over()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"nothing came of {self.label} in {timeout} s; {self._explain_silence()}"
                    )
                self._buffer.changed.wait(left)
            self._last_returned = entry.number
            return entry.record

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they arrive, until the tap ends."""
        while True:
            try:
                yield self.next()
            except (NotServingError, StopIteration):
                return

    def pin(self, record: Record | None = None) -> Record:
        """Exempt a record, by default the latest, from eviction."""
        for entry in reversed(self._buffer.entries(self.number)):
            if record is None or entry.record is record:
                entry.is_pinned = True
                return entry.record
        raise UnknownNameError("there is no such record of this tap to pin")

    def stop(self) -> None:
        """End the tap in the job; received records stay."""
        self._end_tap(self)

    def wait_armed(self, timeout: float) -> str:
        """Wait until the job has installed or refused the tap; return its state."""
        deadline = time.monotonic() + timeout
        with self._buffer.changed:
            while self.state in ("requested", "looking") and (left := deadline - time.monotonic()) > 0:
                self._buffer.changed.wait(left)
        return self.state

    def wait_over(self, timeout: float) -> None:
        """Wait until the tap has ended, or the timeout."""
        deadline = time.monotonic() + timeout
        with self._buffer.changed:
            while self.state in _ACTIVE_STATES and (left := deadline - time.monotonic()) > 0:
                self._buffer.changed.wait(left)

    def update_lost(self, rank: int, meta: dict[str, Any]) -> None:
        """Store the rank's counts of values that were not sent."""
        lost = self._lost.setdefault(rank, [0, 0])
        for position, key in enumerate(("skipped", "dropped")):
            if type(meta.get(key)) is int:
                lost[position] = meta[key]

    @property
    def skipped(self) -> int:
        """Values that the job skipped for lack of credit: the session had not consumed earlier steps."""
        return sum(counts[0] for counts in self._lost.values())

    @property
    def dropped(self) -> int:
        """Values that the job replaced by newer ones before they were sent."""
        return sum(counts[1] for counts in self._lost.values())

    def on_event(self, rank: int, state: str, text: str) -> None:
        """Called by the reader thread."""
        with self._buffer.changed:
            if text:
                self.events.append(text)
            if state == "fired":
                self.fired += 1
            elif state != "problem" and self._states.get(rank) in _ACTIVE_STATES:
                self._states[rank] = state
                self._reason = text or self._reason
            self._buffer.changed.notify_all()

    def raise_if_refused(self) -> None:
        if self.state == "refused":
            raise UnknownNameError(self._reason) if "no site" in self._reason else RefusedError(self._reason)

    def _next_unread(self) -> BufferedRecord | None:
        unread = self._buffer.entries_after(self.number, self._last_returned)
        if not unread:
            return None
        steps = list(dict.fromkeys(entry.record.step for entry in unread))
        recent = set(steps[-_MAX_UNREAD_STEPS:])
        first = next(entry for entry in unread if entry.record.step in recent)
        self.missed += unread.index(first)
        return first

    def _raise_if_over(self) -> None:
        state = self.state
        if state == "refused":
            self.raise_if_refused()
        if state in ("done", "ended"):
            raise NotServingError(f"{self.label} has ended: {self._reason or 'it was stopped'}")

    def _explain_silence(self) -> str:
        if self.state == "requested":
            return "the job has not begun a step since (tt.step(), or the forward of an exposed model)"
        return self.events[-1] if self.events else "it is placed, and the job has not passed there"

    def __repr__(self) -> str:
        latest = self.latest
        when = f", step {latest.step}" if latest is not None else ""
        lost = f", {self.skipped} skipped, {self.dropped} dropped" if self.skipped or self.dropped else ""
        note = f": {self._reason}" if self.state in ("refused", "ended") and self._reason else ""
        count = len(self._buffer.entries(self.number))
        return f"<tap {self.label} {self.state}{note}, {count} records{when}{lost}>"

    def _repr_html_(self) -> str:
        return html.pre(repr(self))
