"""Running jobs: a session with each one that a page has opened."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.comparison.sides.entry import numeric_operand
from tensortap.comparison.sides.leaf import Operand
from tensortap.core.record import Record, first_number
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.live.client.remote_tap import RemoteTap
from tensortap.live.client.session import Session, attach
from tensortap.live.discovery import jobs
from tensortap.viewer.data.library import match_prefix, shortest_prefix
from tensortap.viewer.data.tensor import scalar_value, statistics_facts
from tensortap.viewer.web.responses import NotFoundError

_BUFFER_BYTES = 512 << 20  # received values kept in memory
_MAX_EVENTS, _MAX_NAMES = 20, 500
_MAX_STATISTICS_ELEMENTS = 1 << 22  # of a larger received value, no statistics are computed


@dataclass(frozen=True, slots=True)
class ListeningJob:
    """A listening job with all its ranks."""

    job_id: str
    pid: int
    facts: dict[str, Any]


def find_listening_jobs() -> dict[str, ListeningJob]:
    """Listening jobs of this user on this host, by id."""
    groups: dict[str, list[Any]] = {}
    for job in jobs():
        groups.setdefault(f"{job.job} {job.name}", []).append(job)
    ranks_of_job = {
        hashlib.blake2b(key.encode(), digest_size=8).hexdigest(): ranks for key, ranks in groups.items()
    }
    return {job_id: _group_ranks(job_id, ranks, list(ranks_of_job)) for job_id, ranks in ranks_of_job.items()}


def _group_ranks(job_id: str, ranks: list[Any], job_ids: list[str]) -> ListeningJob:
    first = min(ranks, key=lambda job: job.rank)
    facts = {
        "id": shortest_prefix(job_id, job_ids),
        "name": first.name,
        "pid": first.pid,
        "ranks": sorted(job.rank for job in ranks),
        "world": first.world,
        "program": first.program,
        "folder": first.folder,
        "started": first.started,
    }
    return ListeningJob(job_id, first.pid, facts)


class LiveJobs:
    """Sessions, opened at first use and kept until the job or the viewer ends."""

    def __init__(self) -> None:
        self._open: dict[str, LiveJob] = {}
        self._lock = threading.Lock()

    def job(self, prefix: str) -> LiveJob:
        listening = find_listening_jobs()
        with self._lock:
            job_id = match_prefix(prefix, {*listening, *self._open})
            if job_id is None:
                raise NotFoundError(f"no job {prefix!r} listens; tt.listen() in a program opens it")
            live_job = self._open.get(job_id)
            if live_job is None or (not live_job.session.is_open and job_id in listening):
                live_job = self._open[job_id] = LiveJob(listening[job_id])
        return live_job

    def close_job(self, prefix: str) -> None:
        with self._lock:
            job_id = match_prefix(prefix, self._open)
            live_job = self._open.pop(job_id) if job_id is not None else None
        if live_job is not None:
            live_job.session.close()

    def close(self) -> None:
        with self._lock:
            sessions = [job.session for job in self._open.values()]
            self._open.clear()
        for session in sessions:
            session.close()


class LiveJob:
    """A session and its page data."""

    def __init__(self, job: ListeningJob) -> None:
        self.job_facts = job.facts
        self.session: Session = attach(job.pid, memory=_BUFFER_BYTES)
        self.recording_path: str | None = None  # of the run that received values are recorded to

    def facts(self) -> dict[str, Any]:
        return {
            **self.job_facts,
            "open": self.session.is_open,
            "status": self.session.status,
            "taps": self.taps(),
        }

    def taps(self) -> list[dict[str, Any]]:
        return [self.tap_facts(tapped) for tapped in list(self.session.taps.values())]

    def tap_facts(self, tapped: RemoteTap) -> dict[str, Any]:
        names = ("state", "skipped", "dropped", "missed", "lag", "fired")
        return {
            "tap": tapped.number,
            "what": tapped.label,
            "condition": not tapped.label.startswith(("'", '"')),
            **{name: getattr(tapped, name) for name in names},
            "records": len(self.session.buffer.entries(tapped.number)),
            "events": tapped.events[-_MAX_EVENTS:],
            "names": list(tapped.values)[:_MAX_NAMES],
        }

    def tap(self, number: Any) -> RemoteTap:
        tapped = self.session.taps.get(number) if isinstance(number, int) else None
        if tapped is None:
            raise NotFoundError(f"there is no tap {number!r}; there are {list(self.session.taps) or 'none'}")
        return tapped

    def latest(self, tap: int, name: str, rank: int) -> Record:
        for entry in self.session.buffer.latest_by_name(self.tap(tap).number):
            if entry.record.name == name and first_number(entry.record.rank) == rank:
                return entry.record
        raise NotFoundError(f"nothing called {name!r} of rank {rank} has come")

    def history(self, tap: int, name: str, rank: int) -> dict[str, list[Any]]:
        """Statistics over steps of the buffered records of a name."""
        records = [
            record
            for record in self.tap(tap).history
            if record.name == name and first_number(record.rank) == rank
        ]
        measured = [
            (record, record_statistics)
            for record in records
            if (record_statistics := statistics_of_value(record.value)) is not None
        ]
        columns: dict[str, list[Any]] = {"steps": [first_number(record.step) for record, _ in measured]}
        for field in ("mean", "std", "absmax"):
            columns[field] = [statistics_facts(record_statistics)[field] for _, record_statistics in measured]
        return columns

    def record(self, folder: Path, is_on: bool) -> str | None:
        """Start or stop recording received values; returns the path of the run."""
        if is_on and self.recording_path is None:
            path = self.session.record(folder)
            self.recording_path = None if path is None else str(path)
        elif not is_on:
            self.session.stop_recording()
            self.recording_path = None
        return self.recording_path


def operand_of_value(value: Any) -> Operand | None:
    return None if isinstance(value, Statistics) else numeric_operand(value)


def statistics_of_value(value: Any) -> Statistics | None:
    """Statistics of a received value; those that the job computed are returned as they are."""
    if isinstance(value, Statistics):
        return value
    operand = numeric_operand(value)
    return (
        None
        if operand is None or operand.bits.size > _MAX_STATISTICS_ELEMENTS
        else statistics(operand.bits, operand.dtype)
    )


def live_record_facts(record: Record, tap: int, number: int) -> dict[str, Any]:
    """A received record as a tile of the live page."""
    record_statistics, operand = statistics_of_value(record.value), operand_of_value(record.value)
    rank = first_number(record.rank)
    facts: dict[str, Any] = {
        "key": f"{tap}:{record.name}:{rank}",
        "tap": tap,
        "name": record.name,
        "step": first_number(record.step),
        "rank": rank,
        "time": record.time,
        "dtype": operand.dtype if operand is not None else type(record.value).__name__,
        "shape": list(operand.bits.shape) if operand is not None else [],
        "number": number,
        "statistics": None if record_statistics is None else statistics_facts(record_statistics),
        "odd": ""
        if record_statistics is None
        else "NaN"
        if record_statistics.nan
        else "Inf"
        if record_statistics.inf
        else "",
    }
    if operand is not None and operand.bits.size == 1:
        facts["value"] = scalar_value(operand)
    return facts
