"""Real processes and a real small disk for the tests of this room."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt

Done = subprocess.CompletedProcess[str]
RunPython = Callable[..., Done]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run a program in a process of its own, outside any repository; the folder for runs is argv[1]."""

    def run(code: str, *arguments: str, check: bool = True, **settings: str) -> Done:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(program), str(tmp_path / "runs"), *arguments],
            cwd=tmp_path,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=45)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its children too, should they hang
                os.killpg(process.pid, signal.SIGKILL)
        assert not check or process.returncode == 0, errors
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    return run


@pytest.fixture
def only_run(tmp_path: Path) -> Callable[[], tt.Run]:
    """Open the one run there is under `runs/`."""

    def open_run() -> tt.Run:
        (path,) = [entry for entry in (tmp_path / "runs").iterdir() if not entry.name.startswith(".")]
        return tt.Run(path)

    return open_run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    reason = _mount(["-t", "tmpfs", "-o", "size=2m", "none"], disk)
    if reason:
        print(reason)
        pytest.skip(reason)
    try:
        yield disk
        tt.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def remount() -> Callable[[Path, str], None]:
    def apply(disk: Path, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)

    return apply


@pytest.fixture
def fill() -> Callable[[Path], Path]:
    """Take all space that is left; the file returned gives it back when it is deleted."""

    def write(disk: Path, leave: int = 0) -> Path:
        ballast = disk / "ballast"
        room = os.statvfs(disk)
        ballast.write_bytes(b"\0" * (room.f_bavail * room.f_frsize - leave))
        return ballast

    return write


@pytest.fixture
def numbers() -> Callable[..., np.ndarray]:
    """Content that is known from a number alone."""
    return lambda seed, count=1000: np.arange(count, dtype=np.float64) + seed


def _mount(options: list[str], folder: Path) -> str:
    """Mount; the reason when it is not possible here."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root: run this file under `unshare -rm`"
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    return f"no disk can be mounted here: {done.stderr.strip()}" if done.returncode else ""
