"""A tap as the session holds it: what came of it, what is to come, and how to end it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import NotServingError, RefusedError, UnknownNameError
from tensortap.core.paths import matches_pattern, closest_names
from tensortap.core.record import Record, Series
from tensortap.live.shelf import Entry

if TYPE_CHECKING:
    from tensortap.live.session import Session

_GOING = ("armed", "requested", "looking")
_STATES = (*_GOING, "done", "refused")
_WAITING = 3  # steps; one who comes later than that gets newer ones


class Tapped:
    """What `s.tap(...)` gives.

    >>> t = s.tap("layers.*.attn", every=10)
    >>> t.next(timeout=5)      # the next record; .name .value .step .rank
    >>> t.latest               # the last one, without waiting
    >>> t["layers.0.attn"]     # the last value of that name
    >>> for record in t: ...   # as they come
    """

    def __init__(self, session: Session, number: int, what: str, ranks: list[int]) -> None:
        self.number, self.what, self.ranks = number, what, ranks
        self.events: list[str] = []
        self._lost: dict[int, list[int]] = {}  # by rank
        self.missed = 0  # here: newer ones came before they were asked for
        self.fired = 0  # how many times a condition held
        self.lag = 0.0
        self._session, self._shelf = session, session.shelf
        self._states: dict[int, str] = dict.fromkeys(ranks, "requested")
        self._reason = ""
        self._given = 0

    @property
    def state(self) -> str:
        """requested; looking, for a `tt.tap` of that name; armed; then refused, done or ended."""
        found = set(self._states.values())
        return next((one for one in _STATES if one in found), "ended")

    @property
    def latest(self) -> Record | None:
        """The record that came last; None before the first."""
        entry = self._shelf.last(self.number)
        return entry.record if entry is not None else None

    @property
    def history(self) -> list[Record]:
        """Every record that is still held, in the order of arrival."""
        return [entry.record for entry in self._shelf.entries(self.number)]

    @property
    def values(self) -> dict[str, Any]:
        """The last value of each name; with several ranks, of the one that came last."""
        return {entry.record.name: entry.record.value for entry in self._shelf.lasts(self.number)}

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.values)

    def __getitem__(self, name: str) -> Any:
        """The last value of that name, or a list of those that a pattern means."""
        values = self.values
        if name in values:
            return values[name]
        found = [value for known, value in values.items() if matches_pattern(name, known)]
        if not found:
            near = closest_names(name, values) or list(values)[:3]
            raise UnknownNameError(
                f"nothing called {name!r} has come; there is {', '.join(near) or 'nothing yet'}"
            )
        return found

    def series(self, name: str) -> Series:
        """All records of a name as columns."""
        found = Series(name)
        for record in self.history:
            if record.name == name:
                found.add(record)
        return found

    def next(self, timeout: float | None = None) -> Record:
        """The next record that was not given yet, waiting for it.

        Newest wins: one who asks rarely gets recent ones, `missed` counts the others. Raises TimeoutError,
        and at once when nothing can come any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._shelf.changed:
            while (entry := self._unseen()) is None:
                self._refuse_over()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing came of {self.what} in {timeout} s; {self._explained()}")
                self._shelf.changed.wait(left)
            self._given = entry.number
            return entry.record

    def __iter__(self) -> Iterator[Record]:
        """Records as they come, until the tap ends."""
        while True:
            try:
                yield self.next()
            except (NotServingError, StopIteration):
                return

    def pin(self, record: Record | None = None) -> Record:
        """Keep a record, the latest unless said otherwise, however much comes after it."""
        for entry in reversed(self._shelf.entries(self.number)):
            if record is None or entry.record is record:
                entry.is_pinned = True
                return entry.record
        raise UnknownNameError("there is no such record of this tap to pin")

    def stop(self) -> None:
        """End the tap in the job; what came stays here."""
        self._session.end_tap(self)

    def wait_armed(self, timeout: float) -> str:
        """Until the job has placed it, or refused; the state then."""
        deadline = time.monotonic() + timeout
        with self._shelf.changed:
            while self.state in ("requested", "looking") and (left := deadline - time.monotonic()) > 0:
                self._shelf.changed.wait(left)
        return self.state

    def wait_over(self, timeout: float) -> None:
        """Until nothing more can come, or the time is up."""
        deadline = time.monotonic() + timeout
        with self._shelf.changed:
            while self.state in _GOING and (left := deadline - time.monotonic()) > 0:
                self._shelf.changed.wait(left)

    def count(self, rank: int, meta: dict[str, Any]) -> None:
        """What the job tells of what was not sent."""
        lost = self._lost.setdefault(rank, [0, 0])
        for position, key in enumerate(("skipped", "dropped")):
            if type(meta.get(key)) is int:
                lost[position] = meta[key]

    @property
    def skipped(self) -> int:
        """In the job: no credit, since the session had not taken the steps before."""
        return sum(one[0] for one in self._lost.values())

    @property
    def dropped(self) -> int:
        """In the job: a newer value came before this one was sent."""
        return sum(one[1] for one in self._lost.values())

    def see_event(self, rank: int, state: str, text: str) -> None:
        """Called by the reader thread."""
        with self._shelf.changed:
            if text:
                self.events.append(text)
            if state == "fired":
                self.fired += 1
            elif state != "problem" and self._states.get(rank) in _GOING:
                self._states[rank] = state
                self._reason = text or self._reason
            self._shelf.changed.notify_all()

    def refuse(self) -> None:
        if self.state == "refused":
            raise UnknownNameError(self._reason) if "no site" in self._reason else RefusedError(self._reason)

    def _unseen(self) -> Entry | None:
        waiting = self._shelf.entries_after(self.number, self._given)
        if not waiting:
            return None
        steps = list(dict.fromkeys(entry.record.step for entry in waiting))
        recent = set(steps[-_WAITING:])
        first = next(entry for entry in waiting if entry.record.step in recent)
        self.missed += waiting.index(first)
        return first

    def _refuse_over(self) -> None:
        state = self.state
        if state == "refused":
            self.refuse()
        if state in ("done", "ended"):
            raise NotServingError(f"{self.what} has ended: {self._reason or 'it was stopped'}")

    def _explained(self) -> str:
        if self.state == "requested":
            return "the job has not begun a step since (tt.step(), or the forward of an exposed model)"
        return self.events[-1] if self.events else "it is placed, and the job has not passed there"

    def __repr__(self) -> str:
        latest = self.latest
        when = f", step {latest.step}" if latest is not None else ""
        lost = f", {self.skipped} skipped, {self.dropped} dropped" if self.skipped or self.dropped else ""
        note = f": {self._reason}" if self.state in ("refused", "ended") and self._reason else ""
        count = len(self._shelf.entries(self.number))
        return f"<tap {self.what} {self.state}{note}, {count} records{when}{lost}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"
