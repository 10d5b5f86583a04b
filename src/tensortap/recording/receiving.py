"""What a session receives from jobs that push: a listener, a history, and the questions people ask of it."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

from tensortap.core.errors import NotServingError, UnknownNameError
from tensortap.core.parts import Sink
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.formats.arrivals import Arrival, Report, clock, detail, overview, size_words, value_words
from tensortap.formats.tree_words import plural, printable
from tensortap.frameworks.nested import snapshot
from tensortap.sinks.addresses import open_sink
from tensortap.sinks.history import History, parse_memory_limit
from tensortap.sources.listener import Listener, Producer


class Receiving:
    """Open while it exists; `to` and `tap` get what arrives as well."""

    def __init__(
        self,
        listener: Listener,
        memory: str | int | None = "50%",
        *,
        to: str | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.listener, self.history = listener, History(parse_memory_limit(memory))
        listener.allow(self.history.most)
        self._put: dict[int, set[str]] = {}  # variables, per namespace
        listener.open()  # first: a port that is taken shall leave no empty run behind
        try:
            self._tap = Tap(sinks=[self.history, *_more_sinks(to, tap)], on_error="log").attach(listener)
        except BaseException:
            listener.stop()
            raise

    def close(self) -> None:
        self._tap.close()

    def get(self, name_or_id: str | int, index: int = 0) -> Any:
        return snapshot(self.find(name_or_id, index).record.value)

    def get_all(self, name: str) -> list[Any]:
        found = self.history.of(name)
        if not found:
            raise self._unknown(name)
        return [snapshot(arrival.record.value) for arrival in found]

    def find(self, name_or_id: str | int, index: int = 0) -> Arrival:
        if isinstance(name_or_id, int):
            found = self.history.numbered(name_or_id)
            if found is None:
                raise UnknownNameError(f"no value with the id {name_or_id}; summary() shows what has arrived")
            return found
        values = self.history.of(name_or_id)
        if not values:
            raise self._unknown(name_or_id)
        if not -len(values) <= index < len(values):
            gone = self.history.gone[name_or_id]
            count = f"there are {plural(len(values), 'value')} of {name_or_id!r}"
            more = f", {gone} older ones are gone" if gone else ""
            raise IndexError(f"{count}{more}; the index {index} is not among them")
        return values[-1 - index]

    def pin(self, name_or_id: str | int, index: int = 0) -> None:
        self.history.pin(self.find(name_or_id, index).number)

    def unpin(self, name_or_id: str | int, index: int = 0) -> None:
        self.history.unpin(self.find(name_or_id, index).number)

    def summary(self) -> Report:
        return overview(self.state(), self.history.all(), self.history.gone, self.history.is_pinned)

    def describe(self, name_or_id: str | int) -> Report:
        arrival = self.find(name_or_id)
        return detail(arrival, len(self.history.of(arrival.record.name)))

    def put_into(self, namespace: dict[str, Any], *, overwrite: bool) -> tuple[list[str], list[str]]:
        """The latest value of each name as a variable: those put, and those left alone because the user
        made them."""
        mine, left = self._put.setdefault(id(namespace), set()), []
        for name in self.history.names:
            variable = _variable(name)
            if variable in namespace and variable not in mine and not overwrite:
                left.append(variable)
                continue
            with contextlib.suppress(UnknownNameError):  # gone meanwhile
                namespace[variable] = self.get(name)
                mine.add(variable)
        return sorted(mine & namespace.keys()), left

    def news(self) -> Callable[[], list[str]]:
        """A function that tells, in a line each, what came since it was last called."""
        last = 0

        def lines() -> list[str]:
            nonlocal last
            found = self.history.since(last)
            last = found[-1].number if found else last
            return [_line(arrival) for arrival in found]

        return lines

    def state(self) -> str:
        history, jobs = self.history, self.listener.producers
        connected = [job for job in jobs if job.is_connected]
        bound = "" if history.most is None else f" of at most {size_words(history.most)}"
        words = [
            f"listening at {self.listener.address}",
            f"{plural(history.count, 'value')} of {plural(len(history.names), 'name')}",
            f"{size_words(history.held)}{bound}",
            f"{plural(len(connected), 'job')} connected",
        ]
        dropped = sum(job.dropped for job in jobs)
        told = [*words, *map(_job_words, connected), *([f"{dropped} dropped by jobs"] if dropped else [])]
        return " | ".join(told)

    def refuse_second(self, port: int | None) -> None:
        if port not in (None, self.listener.port):
            raise NotServingError(
                f"this session listens at {self.listener.address} already; stop_serving() ends that"
            )
        print(f"this session listens at {self.listener.address} already")

    def _unknown(self, name: str) -> UnknownNameError:
        names = self.history.names
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
        told = f"there are {', '.join(map(repr, near))}" if near else "nothing has arrived yet"
        return UnknownNameError(f"no value of the name {name!r}; {told}; summary() shows all")


class _Into:
    """A sink that is somebody's tap, which is not ours to close."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def write(self, record: Record) -> None:
        self._tap.emit(record)

    def flush(self) -> None:
        self._tap.flush()

    def close(self) -> None:
        pass


def _more_sinks(to: str | None, tap: Tap | None) -> list[Sink]:
    return [*([] if tap is None else [_Into(tap)]), *([] if to is None else [open_sink(to)])]


def _line(arrival: Arrival) -> str:
    record = arrival.record
    told = value_words(record.value)
    return f"{clock(arrival.time)}  {printable(record.name)}  {told}  (id {arrival.number})"


def _job_words(job: Producer) -> str:
    who = f"{job.about.get('program')}[{job.about.get('pid')}] rank {job.about.get('rank')}"
    told = f"{job.rate:.3g} values/s, lag {1000 * job.lag:.3g} ms, {job.overhead:.2%} of its time"
    return printable(f"{who}: {told}")


def _variable(name: str) -> str:
    """A name of a record as the name of a variable: `model.lm_head.weight` as `model_lm_head_weight`."""
    word = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    return word if word.isidentifier() and not iskeyword(word) else f"_{word}"
