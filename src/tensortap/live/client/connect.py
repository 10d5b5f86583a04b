"""Find a job and connect to its ranks, on this host or over ssh, which forwards their sockets."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tensortap.core.errors import NotServingError, RefusedError, UnknownNameError
from tensortap.core.patterns import closest_names
from tensortap.live.discovery import Job, jobs, parse_job
from tensortap.transport.connection import Connection, Frame, connect
from tensortap.transport.frames import BadFrameError, FrameKind
from tensortap.transport.sockets import closing_on_error

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
        with closing_on_error(forwarding):
            return _connect_ranks(chosen, forwarding.sockets, timeout), forwarding
    listening = jobs()
    chosen = _select_ranks(choose_job(wanted, listening), chosen_ranks)
    return _connect_ranks(chosen, [job.socket for job in chosen], timeout), None


def choose_job(wanted: str | int | None, known: Sequence[Job], where: str = "") -> list[Job]:
    """The ranks of one job, chosen by pid, by name, or the newest."""
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
    with contextlib.ExitStack() as undo:
        for job, socket in zip(rank_jobs, sockets, strict=True):
            connections.append(RankConnection(_connect(job, socket, timeout), job.rank))
            undo.callback(connections[-1].link.close)
        undo.pop_all()
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


_SEND_SECONDS = 5.0
_ids = itertools.count(1)


class RankConnection:
    """A connection to one rank. Any thread may send requests; the reader thread delivers the responses."""

    def __init__(self, link: Connection, rank: int) -> None:
        self.link = link
        self.about = link.peer.about
        rank_in_handshake = self.about.get("rank")
        self.rank = rank_in_handshake if type(rank_in_handshake) is int else rank
        self.stats: dict[str, Any] = {}
        self.received = self.nbytes = 0
        self.is_alive = True
        self.close_reason = ""
        self._pending: dict[int, _PendingResponse] = {}

    @property
    def name(self) -> str:
        return str(self.about.get("name", "job"))

    def send(self, kind: FrameKind, meta: dict[str, Any]) -> None:
        try:
            self.link.send(kind, meta, timeout=_SEND_SECONDS)
        except OSError as error:
            raise NotServingError(
                self.close_reason or f"the job {self.name!r} does not answer: {error}"
            ) from error

    def request_stats(self) -> None:
        """Request STATS, so that they are known at once; a dead job is noticed later."""
        with contextlib.suppress(NotServingError, TimeoutError):
            self.request(FrameKind.STATS, {}, timeout=1.0)

    def request(self, kind: FrameKind, meta: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        """Send a request and wait for the response, which may have several frames."""
        number = next(_ids)
        response = self._pending[number] = _PendingResponse()
        try:
            self.send(kind, {**meta, "id": number})
            if not response.is_done.wait(timeout):
                raise TimeoutError(f"rank {self.rank} of the job {self.name!r} did not answer in {timeout} s")
        finally:
            del self._pending[number]
        return response.frames_or_raise()

    def deliver(self, frame: Frame) -> None:
        response = self._pending.get(frame.meta.get("id", -1))
        if response is not None:
            response.add(frame)

    def end(self, reason: str) -> None:
        """Close the connection, and fail all pending requests."""
        if self.is_alive:
            self.is_alive, self.close_reason = False, reason
            self.link.close()
            for response in list(self._pending.values()):
                response.fail(reason)


class _PendingResponse:
    def __init__(self) -> None:
        self.is_done = threading.Event()
        self._frames: list[Frame] = []
        self._failure = ""

    def add(self, frame: Frame) -> None:
        self._frames.append(frame)
        if not frame.meta.get("more"):
            self.is_done.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self.is_done.set()

    def frames_or_raise(self) -> list[dict[str, Any]]:
        if self._failure:
            raise NotServingError(self._failure)
        error = next((frame.meta for frame in self._frames if frame.kind is FrameKind.ERR), None)
        if error is not None:
            error_class = {"refused": RefusedError, "unknown": UnknownNameError}.get(
                str(error.get("kind")), ValueError
            )
            raise error_class(str(error.get("error", "refused")))
        return [frame.meta for frame in self._frames]


_HOST_PATTERN = re.compile(r"[A-Za-z0-9_.@:%\[\]-]+")
# Plain sh and cat: tensortap need not be on the PATH of the remote login shell.
_LIST_SCRIPT = (
    'for f in "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"/tensortap/*.json /tmp/tensortap-$(id -u)/*.json; '
    'do [ -f "$f" ] && cat "$f" && echo; done; true'
)
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def split_address(address: str) -> tuple[list[str], str]:
    """The ssh arguments for the host, and the job's name ("" for any), of `ssh://user@host:22/name`."""
    parts = urlsplit(address)
    host = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname or ""
    if parts.scheme != "ssh" or not _HOST_PATTERN.fullmatch(host) or host.startswith("-"):
        raise ValueError(f"the address {address!r} is not of the form 'ssh://host/name'")
    port = ["-p", str(parts.port)] if parts.port else []
    return [*port, "--", host], unquote(parts.path.strip("/"))


def list_command(host: Sequence[str]) -> list[str]:
    return ["ssh", *_SSH_OPTIONS, *host, _LIST_SCRIPT]


def forward_command(host: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The ssh command that forwards `pairs` of local and remote sockets, and runs nothing remotely."""
    forwards = [word for local, remote in pairs for word in ("-L", f"{local}:{remote}")]
    strict = ["-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindMask=0177"]
    return ["ssh", "-N", "-T", *_SSH_OPTIONS, *strict, *forwards, *host]


def remote_jobs(host: Sequence[str], timeout: float = 20.0) -> list[Job]:
    """The jobs in the job files of a remote host; some may be dead, which shows on connecting."""
    try:
        completed = subprocess.run(
            list_command(host),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotServingError(f"ssh to {host[-1]} failed: {error}; try `ssh {host[-1]} true`") from error
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotServingError(f"ssh to {host[-1]} failed: {reason}; try `ssh {host[-1]} true`")
    remote = [
        job for line in completed.stdout.splitlines() if line.strip() and (job := parse_job(line)) is not None
    ]
    return sorted(remote, key=lambda job: (-job.started, job.rank))


class SshForwarding:
    """An ssh process that forwards the sockets of remote jobs to local ones, until `close`."""

    def __init__(self, host: Sequence[str], jobs: Sequence[Job], timeout: float = 15.0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tensortap-ssh-"))
        self.sockets = [str(self._folder / f"{number}.sock") for number in range(len(jobs))]
        pairs = [(local, job.socket) for local, job in zip(self.sockets, jobs, strict=True)]
        self._process = subprocess.Popen(
            forward_command(host, pairs), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with closing_on_error(self):
            self._wait(timeout)

    def close(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not all(os.path.exists(path) for path in self.sockets):
            if self._process.poll() is not None or time.monotonic() > deadline:
                stderr = (
                    self._process.stderr.read()
                    if self._process.stderr and self._process.poll() is not None
                    else ""
                )
                raise NotServingError(
                    f"ssh did not forward the sockets: {stderr.strip() or 'it took too long'}"
                )
            time.sleep(0.02)
