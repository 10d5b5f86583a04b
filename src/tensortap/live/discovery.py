"""Where the jobs of this user listen: a private folder of sockets, each with a note that says whose it is."""

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
from tensortap.formats.table import table_html, table_text

_LONGEST_PATH = 100  # bytes; the system allows a few more for a socket
_LARGEST_NOTE = 1 << 16
_JUST_NOW = 60.0  # seconds
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SOCKET, _NOTE = ".sock", ".json"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Job:
    """One process that listens; the ranks of one launch share `job`."""

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
    """Jobs, shown as a table; the newest come first."""

    def __repr__(self) -> str:
        return table_text(self._table()) if self else "no job listens; tt.listen() in a program opens it"

    def _repr_html_(self) -> str:
        return table_html(f"{len(self)} listening", self._table())

    def _table(self) -> list[list[str]]:
        rows = [[one.name, str(one.pid), _rank(one), _age(one.started), one.program] for one in self]
        return [["name", "pid", "rank", "for", "program"], *rows]


def jobs() -> Jobs:
    """The listening jobs of this user on this host; what a dead one left behind is removed.

    >>> tt.jobs()
    """
    found = [job for folder in _folders() for job in _listening(folder)]
    return Jobs(sorted(found, key=lambda job: (-job.started, job.rank)))


def abandoned() -> list[Path]:
    """The sockets and notes that dead jobs left behind; `jobs()` removes most of them, this removes none."""
    return sorted(path for folder in _folders() for path in _left_in(folder))


def described(name: str, here: RankInfo, folder: Path) -> Job:
    """This process as a job."""
    stem = f"{_safe(name)}-r{here.rank}-{os.getpid()}"
    program = sys.argv[0] if sys.argv else ""
    path = str(folder / (stem + _SOCKET))
    return Job(
        name, os.getpid(), here.rank, here.world_size, _launch(here), path, time.time(), program, os.getcwd()
    )


def private_folder() -> Path:
    """The folder for sockets, made if need be; one that others could write to is refused."""
    folder = next(one for one in _folders() if len(os.fsencode(one)) < _LONGEST_PATH - 40)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder):
        return folder


class Note:
    """The file beside a socket. Its lock says that the job lives: it ends with the process, however that
    ends, and is seen through the walls of containers, where process numbers are not."""

    def __init__(self, job: Job) -> None:
        self.path = Path(job.socket).with_suffix(_NOTE)
        self._descriptor = -1
        self.write(job)

    def write(self, job: Job) -> None:
        """Written and locked under another name first: nobody sees half of it, or one without a lock."""
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.path.parent)
        try:
            os.write(descriptor, json.dumps(asdict(job)).encode())
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.replace(temporary, self.path)
        except BaseException:
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
        """Close this process's copy only."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _folders() -> list[Path]:
    runtime = setting("XDG_RUNTIME_DIR")
    own = [Path(runtime) / "tensortap"] if runtime else []
    return [*own, Path(f"/tmp/tensortap-{os.geteuid()}")]


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder, once it is known to be this user's alone."""
    try:
        descriptor = os.open(folder, _OPEN | os.O_DIRECTORY)
    except NotADirectoryError as error:  # a link, among others
        raise RefusedError(f"{folder} is no folder of its own; remove it, it holds sockets only") from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise RefusedError(
                f"{folder} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; "
                f"sockets need a folder of user {os.geteuid()} with mode 700"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _listening(folder: Path) -> list[Job]:
    try:
        with _opened(folder) as inside:
            notes = [name for name in os.listdir(inside) if name.endswith(_NOTE) and name[0] != "."]
            return [job for name in notes if (job := _read(folder, inside, name)) is not None]
    except FileNotFoundError:
        return []


def _left_in(folder: Path) -> list[Path]:
    try:
        with _opened(folder) as inside:
            names = [name for name in os.listdir(inside) if name[0] != "."]
            alive = {Path(name).stem for name in names if name.endswith(_NOTE) and _is_alive(inside, name)}
            left = [
                name for name in names if name.endswith((_NOTE, _SOCKET)) and Path(name).stem not in alive
            ]
            return [folder / name for name in left if not _is_new(inside, name)]
    except (FileNotFoundError, RefusedError):  # one that is not ours alone is not ours to clean
        return []


def _is_new(inside: int, name: str) -> bool:
    """A job that is just beginning has a socket before it has a note."""
    try:
        return time.time() - os.stat(name, dir_fd=inside, follow_symlinks=False).st_mtime < _JUST_NOW
    except OSError:
        return True


def _is_alive(inside: int, note: str) -> bool:
    try:
        descriptor = os.open(note, _OPEN, dir_fd=inside)
    except OSError:
        return False
    try:
        return _is_locked(descriptor)
    finally:
        os.close(descriptor)


def _read(folder: Path, inside: int, name: str) -> Job | None:
    try:
        descriptor = os.open(name, _OPEN, dir_fd=inside)
    except OSError:  # gone meanwhile, or a link
        return None
    try:
        if not _is_locked(descriptor):
            _remove(inside, name)
            return None
        text = os.read(descriptor, _LARGEST_NOTE)
    finally:
        os.close(descriptor)
    return job_of(text, folder / (Path(name).stem + _SOCKET))


def job_of(text: bytes | str, socket: Path | None = None) -> Job | None:
    """The job that a note tells of; None for anything else."""
    try:
        told: Any = json.loads(text)
        known = {field.name: told[field.name] for field in fields(Job)}
        job = Job(**{**known, "socket": str(socket)} if socket is not None else known)
    except (ValueError, TypeError, KeyError):
        return None
    numbers = (job.pid, job.rank, job.world)
    texts = (job.name, job.job, job.socket, job.program)
    are_sound = all(type(one) is int for one in numbers) and all(type(one) is str for one in texts)
    return job if are_sound and isinstance(job.started, float | int) else None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _remove(inside: int, note: str) -> None:
    for name in (Path(note).stem + _SOCKET, note):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=inside)


def _safe(name: str) -> str:
    """The name as part of a file's; the note has it as it was given."""
    plain = _UNSAFE.sub("_", name).strip(".") or "job"
    return plain if len(plain) <= 24 else plain[:16] + hashlib.sha256(name.encode()).hexdigest()[:8]


def _launch(here: RankInfo) -> str:
    """What the ranks of one launch share; without a launcher, they have one parent."""
    told = launch_id() or f"parent={os.getppid()}"
    known = f"{told} world={here.world_size}" if here.world_size > 1 else f"process={os.getpid()}@{time.time()}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _rank(job: Job) -> str:
    return f"{job.rank}/{job.world}" if job.world > 1 else "-"


def _age(started: float) -> str:
    seconds = max(time.time() - started, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
