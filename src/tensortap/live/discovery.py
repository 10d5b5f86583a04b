"""Where the jobs of this user listen: a private folder of sockets, each with a JSON file about its job."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tensortap.core.errors import RefusedError
from tensortap.core.ranks import RankInfo, launch_id
from tensortap.core.settings import setting
from tensortap.render import html
from tensortap.render.text import format_table

_MAX_PATH_BYTES = 100  # for a socket; the system allows a few more
_MAX_JOB_FILE_BYTES = 1 << 16
_STARTUP_SECONDS = 60.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SOCKET, _JOB_FILE = ".sock", ".json"
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Job:
    """One listening process; the ranks of one launch have the same `job`."""

    name: str
    pid: int
    rank: int
    world: int
    job: str
    socket: str
    started: float
    program: str = ""
    folder: str = ""

    def __repr__(self) -> str:
        rank = f" rank {self.rank} of {self.world}" if self.world > 1 else ""
        return f"<job {self.name!r} pid {self.pid}{rank}>"


class Jobs(list[Job]):
    """Jobs, newest first, printed as a table."""

    def __repr__(self) -> str:
        return format_table(self._table()) if self else "no job listens; tt.listen() in a program opens it"

    def _repr_html_(self) -> str:
        return html.table(self._table(), f"{len(self)} listening")

    def _table(self) -> list[list[str]]:
        rows = [
            [job.name, str(job.pid), _format_rank(job), _format_age(job.started), job.program] for job in self
        ]
        return [["name", "pid", "rank", "for", "program"], *rows]


def jobs() -> Jobs:
    """The listening jobs of this user on this host; files of dead ones are removed.

    >>> tt.jobs()
    """
    listening = [job for folder in _socket_folders() for job in _read_jobs(folder)]
    return Jobs(sorted(listening, key=lambda job: (-job.started, job.rank)))


def stale_files() -> list[Path]:
    """Sockets and job files that dead jobs left behind; `jobs()` removes most of them, this removes none."""
    return sorted(path for folder in _socket_folders() for path in _stale_in(folder))


def describe_process(name: str, ranks: RankInfo, folder: Path) -> Job:
    """This process as a job."""
    stem = f"{_safe_stem(name)}-r{ranks.rank}-{os.getpid()}"
    program = sys.argv[0] if sys.argv else ""
    path = str(folder / (stem + _SOCKET))
    return Job(
        name,
        os.getpid(),
        ranks.rank,
        ranks.world_size,
        _launch_digest(ranks),
        path,
        time.time(),
        program,
        os.getcwd(),
    )


def private_folder() -> Path:
    """The folder for sockets, created if missing; refused if others could write to it."""
    folder = next(
        candidate for candidate in _socket_folders() if len(os.fsencode(candidate)) < _MAX_PATH_BYTES - 40
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _open_private(folder):
        return folder


class JobFile:
    """The file beside a socket. Its lock shows that the job is alive: the system releases it with the
    process, and it works across containers, where pids do not."""

    def __init__(self, job: Job) -> None:
        self.path = Path(job.socket).with_suffix(_JOB_FILE)
        self._descriptor = -1
        self.write(job)

    def write(self, job: Job) -> None:
        """Write and lock under a temporary name, then rename: readers never see it incomplete or unlocked."""
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.path.parent)
        try:
            os.write(descriptor, json.dumps(asdict(job)).encode())
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.replace(temporary, self.path)
        except BaseException:  # an interrupt too leaves no file behind
            os.close(descriptor)
            os.unlink(temporary)
            raise
        self.abandon()
        self._descriptor = descriptor

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptor only."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _socket_folders() -> list[Path]:
    runtime = setting("XDG_RUNTIME_DIR")
    own = [Path(runtime) / "tensortap"] if runtime else []
    return [*own, Path(f"/tmp/tensortap-{os.geteuid()}")]


@contextlib.contextmanager
def _open_private(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder, after checking that only this user can access it."""
    try:
        descriptor = os.open(folder, _OPEN_FLAGS | os.O_DIRECTORY)
    except NotADirectoryError as error:  # also raised for a symbolic link
        raise RefusedError(f"{folder} is no folder of its own; remove it, it holds sockets only") from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise RefusedError(
                f"{folder} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}; "
                f"sockets need a folder of user {os.geteuid()} with mode 700"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _read_jobs(folder: Path) -> list[Job]:
    try:
        with _open_private(folder) as descriptor:
            job_files = [
                name for name in os.listdir(descriptor) if name.endswith(_JOB_FILE) and name[0] != "."
            ]
            return [job for name in job_files if (job := _read_job(folder, descriptor, name)) is not None]
    except FileNotFoundError:
        return []


def _stale_in(folder: Path) -> list[Path]:
    try:
        with _open_private(folder) as descriptor:
            names = [name for name in os.listdir(descriptor) if name[0] != "."]
            alive = {
                Path(name).stem for name in names if name.endswith(_JOB_FILE) and _is_alive(descriptor, name)
            }
            stale = [
                name for name in names if name.endswith((_JOB_FILE, _SOCKET)) and Path(name).stem not in alive
            ]
            return [folder / name for name in stale if not _is_new(descriptor, name)]
    except (FileNotFoundError, RefusedError):  # not cleaned unless it is private to this user
        return []


def _is_new(folder_descriptor: int, name: str) -> bool:
    """Is the file so recent that its job may still be starting? The socket is created before the job file."""
    try:
        return (
            time.time() - os.stat(name, dir_fd=folder_descriptor, follow_symlinks=False).st_mtime
            < _STARTUP_SECONDS
        )
    except OSError:
        return True


def _is_alive(folder_descriptor: int, name: str) -> bool:
    try:
        descriptor = os.open(name, _OPEN_FLAGS, dir_fd=folder_descriptor)
    except OSError:
        return False
    try:
        return _is_locked(descriptor)
    finally:
        os.close(descriptor)


def _read_job(folder: Path, folder_descriptor: int, name: str) -> Job | None:
    try:
        descriptor = os.open(name, _OPEN_FLAGS, dir_fd=folder_descriptor)
    except OSError:  # removed meanwhile, or a symbolic link
        return None
    try:
        if not _is_locked(descriptor):
            _remove_files(folder_descriptor, name)
            return None
        text = os.read(descriptor, _MAX_JOB_FILE_BYTES)
    finally:
        os.close(descriptor)
    return parse_job(text, folder / (Path(name).stem + _SOCKET))


def parse_job(text: bytes | str, socket: Path | None = None) -> Job | None:
    """The job that a job file describes; None if it is malformed."""
    try:
        facts: Any = json.loads(text)
        job_fields = {field.name: facts[field.name] for field in fields(Job)}
        job = Job(**{**job_fields, "socket": str(socket)} if socket is not None else job_fields)
    except (ValueError, TypeError, KeyError):
        return None
    numbers = (job.pid, job.rank, job.world)
    strings = (job.name, job.job, job.socket, job.program)
    are_sound = all(type(value) is int for value in numbers) and all(type(value) is str for value in strings)
    return job if are_sound and isinstance(job.started, float | int) else None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _remove_files(folder_descriptor: int, job_file: str) -> None:
    for name in (Path(job_file).stem + _SOCKET, job_file):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder_descriptor)


def _safe_stem(name: str) -> str:
    """The job name as a safe file stem; the job file has the original name."""
    plain = _UNSAFE.sub("_", name).strip(".") or "job"
    return plain if len(plain) <= 24 else plain[:16] + hashlib.sha256(name.encode()).hexdigest()[:8]


def _launch_digest(ranks: RankInfo) -> str:
    """A digest that the ranks of one launch share; without a launcher, of their parent process."""
    launch = launch_id() or f"parent={os.getppid()}"
    identity = (
        f"{launch} world={ranks.world_size}"
        if ranks.world_size > 1
        else f"process={os.getpid()}@{time.time()}"
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _format_rank(job: Job) -> str:
    return f"{job.rank}/{job.world}" if job.world > 1 else "-"


def _format_age(started: float) -> str:
    seconds = max(time.time() - started, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
