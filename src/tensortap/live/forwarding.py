"""Jobs on another host: found and reached by the ssh program, which forwards their sockets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tensortap.core.errors import NotServingError
from tensortap.live.discovery import Job, parse_job

_HOST_PATTERN = re.compile(r"[A-Za-z0-9_.@:%\[\]-]+")
# Plain sh and cat: nothing of ours has to be installed where a login shell finds it.
_LIST_SCRIPT = (
    'for f in "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"/tensortap/*.json /tmp/tensortap-$(id -u)/*.json; '
    'do [ -f "$f" ] && cat "$f" && echo; done; true'
)
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def split_address(address: str) -> tuple[list[str], str]:
    """`ssh://user@host:22/name` as the arguments that name the host, and the job's name ("" for any)."""
    parts = urlsplit(address)
    host = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname or ""
    if parts.scheme != "ssh" or not _HOST_PATTERN.fullmatch(host) or host.startswith("-"):
        raise ValueError(f"the address {address!r} is not of the form 'ssh://host/name'")
    port = ["-p", str(parts.port)] if parts.port else []
    return [*port, "--", host], unquote(parts.path.strip("/"))


def list_command(host: Sequence[str]) -> list[str]:
    return ["ssh", *_SSH_OPTIONS, *host, _LIST_SCRIPT]


def forward_command(host: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """`pairs` are the sockets here and there; nothing is run on the other side."""
    forwards = [word for local, remote in pairs for word in ("-L", f"{local}:{remote}")]
    strict = ["-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindMask=0177"]
    return ["ssh", "-N", "-T", *_SSH_OPTIONS, *strict, *forwards, *host]


def remote_jobs(host: Sequence[str], timeout: float = 20.0) -> list[Job]:
    """The notes that lie on the other host; whether their jobs still live shows when one is called."""
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
    """An ssh process that holds the sockets of some remote jobs open here, until `close`."""

    def __init__(self, host: Sequence[str], jobs: Sequence[Job], timeout: float = 15.0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tensortap-ssh-"))
        self.sockets = [str(self._folder / f"{number}.sock") for number in range(len(jobs))]
        pairs = [(local, job.socket) for local, job in zip(self.sockets, jobs, strict=True)]
        self._process = subprocess.Popen(
            forward_command(host, pairs), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            self._wait(timeout)
        except BaseException:
            self.close()
            raise

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
