"""Which job is meant, and links to its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensortap.core.errors import NotServingError, RefusedError
from tensortap.core.patterns import closest_names
from tensortap.live.discovery import Job, jobs
from tensortap.live.forwarding import SshForwarding, remote_jobs, split_address
from tensortap.live.peers import RankConnection
from tensortap.transport.connection import Connection, connect
from tensortap.transport.frames import BadFrameError

_HOW_TO_LISTEN = "tt.listen() in a program, or TENSORTAP_LIVE=1, opens it"


def connect_to_job(
    wanted: str | int | None, ranks: Iterable[int] | None, timeout: float
) -> tuple[list[RankConnection], SshForwarding | None]:
    chosen_ranks = None if ranks is None else set(ranks)
    if isinstance(wanted, str) and wanted.startswith("ssh://"):
        host, name = split_address(wanted)
        listening = remote_jobs(host)
        chosen = _select_ranks(choose_job(name or None, listening, f"on {host[-1]} "), chosen_ranks)
        forwarding = SshForwarding(host, chosen)
        try:
            return _connect_ranks(chosen, forwarding.sockets, timeout), forwarding
        except BaseException:
            forwarding.close()
            raise
    listening = jobs()
    chosen = _select_ranks(choose_job(wanted, listening), chosen_ranks)
    return _connect_ranks(chosen, [job.socket for job in chosen], timeout), None


def choose_job(wanted: str | int | None, known: Sequence[Job], where: str = "") -> list[Job]:
    """The ranks of the job that is meant: by process number, by name, or the newest."""
    if not known:
        raise NotServingError(f"no job {where}listens; {_HOW_TO_LISTEN}")
    number = int(wanted) if isinstance(wanted, str) and wanted.isdecimal() else wanted
    by_number = [job for job in known if job.pid == number]
    named = [job for job in known if wanted is None or job.name == wanted]
    first = next(iter(by_number or named), None)
    if first is None:
        names = list(dict.fromkeys(job.name for job in known))
        near = closest_names(str(wanted), names) or names[:5]
        raise NotServingError(
            f"no job {where}is called {wanted!r}; there is {', '.join(map(repr, near))}, tt.jobs() lists all"
        )
    same = [job for job in known if job.job == first.job and job.name == first.name]
    return sorted(same, key=lambda job: job.rank)


def _select_ranks(rank_jobs: list[Job], ranks: set[int] | None) -> list[Job]:
    chosen = [job for job in rank_jobs if ranks is None or job.rank in ranks]
    if not chosen:
        raise NotServingError(
            f"the job has no rank {sorted(ranks or ())}; it has {[job.rank for job in rank_jobs]}"
        )
    return chosen


def _connect_ranks(rank_jobs: Sequence[Job], sockets: Sequence[str], timeout: float) -> list[RankConnection]:
    connections: list[RankConnection] = []
    try:
        for job, socket in zip(rank_jobs, sockets, strict=True):
            connections.append(RankConnection(_connect(job, socket, timeout), job.rank))
    except BaseException:
        for connection in connections:
            connection.link.close()
        raise
    return connections


def _connect(job: Job, socket: str, timeout: float) -> Connection:
    try:
        return connect(socket, timeout=timeout, about={"kind": "session"})
    except RefusedError:
        raise
    except (OSError, BadFrameError) as error:
        raise NotServingError(
            f"the job {job.name!r} (pid {job.pid}) does not answer: {error}; tt.jobs() lists what listens"
        ) from error
