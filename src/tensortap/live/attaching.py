"""Which job is meant, and links to its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensortap.core.errors import NotServingError, RefusedError
from tensortap.core.paths import closest_names
from tensortap.formats.link import Link, connect
from tensortap.formats.wire import BadFrameError
from tensortap.live.discovery import Job, jobs
from tensortap.live.forwarding import Forwarding, remote_jobs, split_address
from tensortap.live.peers import Peer

_HOW = "tt.listen() in a program, or TENSORTAP_LIVE=1, opens it"


def connected(
    wanted: str | int | None, ranks: Iterable[int] | None, timeout: float
) -> tuple[list[Peer], Forwarding | None]:
    chosen_ranks = None if ranks is None else set(ranks)
    if isinstance(wanted, str) and wanted.startswith("ssh://"):
        host, name = split_address(wanted)
        known = remote_jobs(host)
        chosen = _of_ranks(choose(name or None, known, f"on {host[-1]} "), chosen_ranks)
        forwarding = Forwarding(host, chosen)
        try:
            return _linked(chosen, forwarding.sockets, timeout), forwarding
        except BaseException:
            forwarding.close()
            raise
    known = jobs()
    chosen = _of_ranks(choose(wanted, known), chosen_ranks)
    return _linked(chosen, [job.socket for job in chosen], timeout), None


def choose(wanted: str | int | None, known: Sequence[Job], where: str = "") -> list[Job]:
    """The ranks of the job that is meant: by process number, by name, or the newest."""
    if not known:
        raise NotServingError(f"no job {where}listens; {_HOW}")
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


def _of_ranks(found: list[Job], ranks: set[int] | None) -> list[Job]:
    chosen = [job for job in found if ranks is None or job.rank in ranks]
    if not chosen:
        raise NotServingError(
            f"the job has no rank {sorted(ranks or ())}; it has {[job.rank for job in found]}"
        )
    return chosen


def _linked(found: Sequence[Job], sockets: Sequence[str], timeout: float) -> list[Peer]:
    peers: list[Peer] = []
    try:
        for job, socket in zip(found, sockets, strict=True):
            peers.append(Peer(_link(job, socket, timeout), job.rank))
    except BaseException:
        for peer in peers:
            peer.link.close()
        raise
    return peers


def _link(job: Job, socket: str, timeout: float) -> Link:
    try:
        return connect(socket, timeout=timeout, about={"kind": "session"})
    except RefusedError:
        raise
    except (OSError, BadFrameError) as error:
        raise NotServingError(
            f"the job {job.name!r} (pid {job.pid}) does not answer: {error}; tt.jobs() lists what listens"
        ) from error
