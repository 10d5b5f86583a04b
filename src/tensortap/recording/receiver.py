"""The session side of `tt.catch`: a listener, the history of received values, and queries on it."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

from tensortap.core.errors import NotServingError, UnknownNameError
from tensortap.core.protocols import Sink
from tensortap.core.tap import Tap
from tensortap.frameworks.pytree import snapshot_leaves
from tensortap.recording.destination import TapSink
from tensortap.render.received import (
    ReceivedRecord,
    ReceivedTable,
    describe_value,
    format_binary_nbytes,
    format_clock,
    received_detail,
    received_overview,
)
from tensortap.render.words import escape_unprintable, pluralize
from tensortap.sinks.memory import History, parse_memory_limit
from tensortap.sinks.open import open_sink
from tensortap.sources.listener import Listener, Producer


class Receiver:
    """Listens from construction to `close`; received records also go to `to` and `tap`."""

    def __init__(
        self,
        listener: Listener,
        memory: str | int | None = "50%",
        *,
        to: str | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.listener, self.history = listener, History(parse_memory_limit(memory))
        listener.allow(self.history.max_bytes)
        self._variables_set: dict[int, set[str]] = {}  # variable names, by id of namespace
        listener.open()  # first: a port in use must not leave an empty run behind
        with contextlib.ExitStack() as undo:
            undo.callback(listener.stop)
            self._tap = Tap(sinks=[self.history, *_extra_sinks(to, tap)], on_error="log").attach(listener)
            undo.pop_all()

    def close(self) -> None:
        self._tap.close()

    def get(self, name_or_id: str | int, index: int = 0) -> Any:
        return snapshot_leaves(self.find(name_or_id, index).record.value)

    def get_all(self, name: str) -> list[Any]:
        arrivals = self.history.by_name(name)
        if not arrivals:
            raise self._unknown(name)
        return [snapshot_leaves(arrival.record.value) for arrival in arrivals]

    def find(self, name_or_id: str | int, index: int = 0) -> ReceivedRecord:
        if isinstance(name_or_id, int):
            arrival = self.history.by_number(name_or_id)
            if arrival is None:
                raise UnknownNameError(f"no value with the id {name_or_id}; summary() shows what has arrived")
            return arrival
        values = self.history.by_name(name_or_id)
        if not values:
            raise self._unknown(name_or_id)
        if not -len(values) <= index < len(values):
            gone = self.history.dropped[name_or_id]
            count = f"there are {pluralize(len(values), 'value')} of {name_or_id!r}"
            more = f", {gone} older ones are gone" if gone else ""
            raise IndexError(f"{count}{more}; the index {index} is not among them")
        return values[-1 - index]

    def pin(self, name_or_id: str | int, index: int = 0) -> None:
        self.history.pin(self.find(name_or_id, index).number)

    def unpin(self, name_or_id: str | int, index: int = 0) -> None:
        self.history.unpin(self.find(name_or_id, index).number)

    def summary(self) -> ReceivedTable:
        return received_overview(
            self.state(), self.history.all(), self.history.dropped, self.history.is_pinned
        )

    def describe(self, name_or_id: str | int) -> ReceivedTable:
        arrival = self.find(name_or_id)
        return received_detail(arrival, len(self.history.by_name(arrival.record.name)))

    def put_into(self, namespace: dict[str, Any], *, overwrite: bool) -> tuple[list[str], list[str]]:
        """Assign the latest value of each name to a variable; return the variables set, and those skipped
        because they are the user's own."""
        mine, left = self._variables_set.setdefault(id(namespace), set()), []
        for name in self.history.names:
            variable = _variable_name(name)
            if variable in namespace and variable not in mine and not overwrite:
                left.append(variable)
                continue
            with contextlib.suppress(UnknownNameError):  # evicted meanwhile
                namespace[variable] = self.get(name)
                mine.add(variable)
        return sorted(mine & namespace.keys()), left

    def news(self) -> Callable[[], list[str]]:
        """A function that returns one line per value received since its last call."""
        last = 0

        def lines() -> list[str]:
            nonlocal last
            arrivals = self.history.since(last)
            last = arrivals[-1].number if arrivals else last
            return [_arrival_line(arrival) for arrival in arrivals]

        return lines

    def state(self) -> str:
        history, jobs = self.history, self.listener.producers
        connected = [job for job in jobs if job.is_connected]
        bound = "" if history.max_bytes is None else f" of at most {format_binary_nbytes(history.max_bytes)}"
        totals = [
            f"listening at {self.listener.address}",
            f"{pluralize(history.count, 'value')} of {pluralize(len(history.names), 'name')}",
            f"{format_binary_nbytes(history.nbytes)}{bound}",
            f"{pluralize(len(connected), 'job')} connected",
        ]
        dropped = sum(job.dropped for job in jobs)
        parts = [
            *totals,
            *map(_describe_job, connected),
            *([f"{dropped} dropped by jobs"] if dropped else []),
        ]
        return " | ".join(parts)

    def refuse_second(self, port: int | None) -> None:
        if port not in (None, self.listener.port):
            raise NotServingError(
                f"this session listens at {self.listener.address} already; stop_serving() ends that"
            )
        print(f"this session listens at {self.listener.address} already")

    def _unknown(self, name: str) -> UnknownNameError:
        names = self.history.names
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
        hint = f"there are {', '.join(map(repr, near))}" if near else "nothing has arrived yet"
        return UnknownNameError(f"no value of the name {name!r}; {hint}; summary() shows all")


def _extra_sinks(to: str | None, tap: Tap | None) -> list[Sink]:
    return [*([] if tap is None else [TapSink(tap)]), *([] if to is None else [open_sink(to)])]


def _arrival_line(arrival: ReceivedRecord) -> str:
    record = arrival.record
    description = describe_value(record.value)
    name = escape_unprintable(record.name)
    return f"{format_clock(arrival.time)}  {name}  {description}  (id {arrival.number})"


def _describe_job(job: Producer) -> str:
    process = f"{job.about.get('program')}[{job.about.get('pid')}] rank {job.about.get('rank')}"
    traffic = f"{job.rate:.3g} values/s, lag {1000 * job.lag:.3g} ms, {job.overhead:.2%} of its time"
    return escape_unprintable(f"{process}: {traffic}")


def _variable_name(name: str) -> str:
    """A record name as a valid identifier: `model.lm_head.weight` as `model_lm_head_weight`."""
    word = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    return word if word.isidentifier() and not iskeyword(word) else f"_{word}"
