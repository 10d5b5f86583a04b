"""Running jobs as the viewer sees them: a session with each that a page has asked for."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.comparison.operands import Operand
from tensortap.comparison.references import numeric_operand
from tensortap.core.record import Record
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.live.discovery import jobs
from tensortap.live.session import Session, attach
from tensortap.live.tapped import Tapped
from tensortap.viewer.library import match_prefix, shortest_prefix
from tensortap.viewer.problems import NotFoundError
from tensortap.viewer.tensors import scalar_value, statistics_facts

_MEMORY = 512 << 20  # bytes of what came that are held
_MOST_EVENTS, _MOST_NAMES = 20, 500
_QUICK = 1 << 22  # elements whose statistics are computed for each that comes


@dataclass(frozen=True, slots=True)
class ListeningJob:
    """A job that listens, with all its ranks."""

    identity: str
    pid: int
    told: dict[str, Any]


def find_listening_jobs() -> dict[str, ListeningJob]:
    """The jobs of this user on this host, by their ids."""
    groups: dict[str, list[Any]] = {}
    for job in jobs():
        groups.setdefault(f"{job.job} {job.name}", []).append(job)
    found = {hashlib.blake2b(key.encode(), digest_size=8).hexdigest(): ranks for key, ranks in groups.items()}
    return {identity: _listening(identity, ranks, list(found)) for identity, ranks in found.items()}


def _listening(identity: str, ranks: list[Any], known: list[str]) -> ListeningJob:
    first = min(ranks, key=lambda job: job.rank)
    told = {
        "id": shortest_prefix(identity, known),
        "name": first.name,
        "pid": first.pid,
        "ranks": sorted(job.rank for job in ranks),
        "world": first.world,
        "program": first.program,
        "folder": first.folder,
        "started": first.started,
    }
    return ListeningJob(identity, first.pid, told)


class LiveJobs:
    """Sessions, opened when first asked for and kept until the job or the viewer ends."""

    def __init__(self) -> None:
        self._open: dict[str, LiveJob] = {}
        self._lock = threading.Lock()

    def job(self, prefix: str) -> LiveJob:
        known = find_listening_jobs()
        with self._lock:
            identity = match_prefix(prefix, {*known, *self._open})
            if identity is None:
                raise NotFoundError(f"no job {prefix!r} listens; tt.listen() in a program opens it")
            found = self._open.get(identity)
            if found is None or (not found.session.is_open and identity in known):
                found = self._open[identity] = LiveJob(known[identity])
        return found

    def leave(self, prefix: str) -> None:
        with self._lock:
            identity = match_prefix(prefix, self._open)
            found = self._open.pop(identity) if identity is not None else None
        if found is not None:
            found.session.close()

    def close(self) -> None:
        with self._lock:
            sessions = [job.session for job in self._open.values()]
            self._open.clear()
        for session in sessions:
            session.close()


class LiveJob:
    """A session, and what a page is shown of it."""

    def __init__(self, job: ListeningJob) -> None:
        self.about = job.told
        self.session: Session = attach(job.pid, memory=_MEMORY)
        self.path: str | None = None  # of the run that what comes is written to

    def told(self) -> dict[str, Any]:
        return {
            **self.about,
            "open": self.session.is_open,
            "status": self.session.status,
            "taps": self.taps(),
        }

    def taps(self) -> list[dict[str, Any]]:
        return [self.tap_told(tapped) for tapped in list(self.session.taps.values())]

    def tap_told(self, tapped: Tapped) -> dict[str, Any]:
        names = ("state", "skipped", "dropped", "missed", "lag", "fired")
        return {
            "tap": tapped.number,
            "what": tapped.what,
            "condition": not tapped.what.startswith(("'", '"')),
            **{name: getattr(tapped, name) for name in names},
            "records": len(self.session.shelf.entries(tapped.number)),
            "events": tapped.events[-_MOST_EVENTS:],
            "names": list(tapped.values)[:_MOST_NAMES],
        }

    def tap(self, number: Any) -> Tapped:
        found = self.session.taps.get(number) if isinstance(number, int) else None
        if found is None:
            raise NotFoundError(
                f"there is no tap {number!r}; there are {list(self.session.taps) or 'none'}"
            )
        return found

    def latest(self, tap: int, name: str, rank: int) -> Record:
        for entry in self.session.shelf.lasts(self.tap(tap).number):
            if entry.record.name == name and first_number(entry.record.rank) == rank:
                return entry.record
        raise NotFoundError(f"nothing called {name!r} of rank {rank} has come")

    def history(self, tap: int, name: str, rank: int) -> dict[str, list[Any]]:
        """What is still held of a name, in numbers."""
        records = [one for one in self.tap(tap).history if one.name == name and first_number(one.rank) == rank]
        found = [(one, known) for one in records if (known := statistics_of_value(one.value)) is not None]
        columns: dict[str, list[Any]] = {"steps": [first_number(one.step) for one, _ in found]}
        for field in ("mean", "std", "absmax"):
            columns[field] = [statistics_facts(known)[field] for _, known in found]
        return columns

    def record(self, folder: Path, is_on: bool) -> str | None:
        """Write what comes to a new run, or stop that."""
        if is_on and self.path is None:
            made = self.session.record(folder)
            self.path = None if made is None else str(made)
        elif not is_on:
            self.session.stop_recording()
            self.path = None
        return self.path


def first_number(number: int | tuple[int, ...]) -> int:
    return number if isinstance(number, int) else (number[0] if number else 0)


def operand_of_value(value: Any) -> Operand | None:
    return None if isinstance(value, Statistics) else numeric_operand(value)


def statistics_of_value(value: Any) -> Statistics | None:
    """Of what came; statistics that the job made are taken as they are."""
    if isinstance(value, Statistics):
        return value
    held = numeric_operand(value)
    return None if held is None or held.bits.size > _QUICK else statistics(held.bits, held.dtype)


def live_record_facts(record: Record, tap: int, number: int) -> dict[str, Any]:
    """One that came, for the wall of tiles."""
    known, held = statistics_of_value(record.value), operand_of_value(record.value)
    rank = first_number(record.rank)
    told: dict[str, Any] = {
        "key": f"{tap}:{record.name}:{rank}",
        "tap": tap,
        "name": record.name,
        "step": first_number(record.step),
        "rank": rank,
        "time": record.time,
        "dtype": held.dtype if held is not None else type(record.value).__name__,
        "shape": list(held.bits.shape) if held is not None else [],
        "number": number,
        "statistics": None if known is None else statistics_facts(known),
        "odd": "" if known is None else "NaN" if known.nan else "Inf" if known.inf else "",
    }
    if held is not None and held.bits.size == 1:
        told["value"] = scalar_value(held)
    return told
