"""Start a program, forward signals to it, and exit as it exited."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

# What a terminal or a scheduler sends; signals ignored here are inherited as ignored.
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH")
_FROM_TERMINAL = 0x80  # si_code of what the kernel sends to all processes of a terminal
_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)
_SET_PARENT_DEATH_SIGNAL = 1
STARTUP_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


class CannotStartError(Exception):
    """The system does not execute the program; the message is one sentence."""


def run_program(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run it to completion; return its exit code, or minus the signal that ended it.

    Input, output, terminal and process group are those of this process. A signal that the terminal sends, or
    somebody sends to the whole group, reaches the program by itself; any other is passed on.
    """
    forwarded = {signal.Signals[name] for name in _FORWARDED if hasattr(signal, name)}
    forwarded = {number for number in forwarded if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    try:
        # A function before the program is safe here, where no other thread can hold a lock.
        process = _start(command, environment, lambda: _prepare_child(before))
        return _wait(process, {*forwarded, signal.SIGCHLD})
    finally:
        _drop_pending(forwarded)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    command: Sequence[str], environment: dict[str, str], begin: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """Start the program; a script without a shebang line is run by sh, as shells do."""
    for arguments in (list(command), ["/bin/sh", *command]):
        try:
            return subprocess.Popen(arguments, env=environment, close_fds=False, preexec_fn=begin)
        except OSError as error:
            if error.errno != errno.ENOEXEC or arguments[0] == "/bin/sh":
                raise CannotStartError(_explain_failure(command[0], error)) from None
    raise AssertionError("sh is tried last")


def _explain_failure(program: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.exists(program):
        return f"{program} cannot be started: the interpreter in its first line does not exist"
    return f"{program} cannot be started: {error.strerror or error}"


def exit_like(status: int) -> int:
    """The exit code for a status; a signal that ended the program is raised in this process, too."""
    if status >= 0:
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


def _prepare_child(mask: set[int | signal.Signals]) -> None:
    """In the child, before exec: restore the signal mask, and die with the parent."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _die_with_parent()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], awaited: set[signal.Signals]) -> int:
    probe = GroupSignalProbe()
    try:
        while process.poll() is None:
            info = signal.sigwaitinfo(awaited)
            if info.si_signo == signal.SIGCHLD:
                continue
            is_for_group = probe.has_received(info.si_signo)
            if info.si_code == _FROM_TERMINAL and info.si_signo in _TERMINAL:
                continue
            with contextlib.suppress(ProcessLookupError):
                if not is_for_group or os.getpgid(process.pid) != os.getpgrp():
                    process.send_signal(info.si_signo)
    finally:
        probe.end()
    return int(process.returncode)


class GroupSignalProbe:
    """A process of our group with all signals blocked: one that is pending there, too, was sent to the whole
    group (as `timeout` does), so the program has received it. There is no other way to know."""

    def __init__(self) -> None:
        self._process = _fork_probe() if os.path.isdir("/proc/self") else 0

    def has_received(self, number: int) -> bool:
        if not self._process or not _pending_signals(self._process) >> (number - 1) & 1:
            return False
        self.end()  # with its pending signals, so that the next one is noticed, too
        self._process = _fork_probe()
        return True

    def end(self) -> None:
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def _fork_probe() -> int:
    """Fork a process that only waits; it inherits the blocked signals."""
    process = os.fork()
    if process:
        return process
    _die_with_parent()
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # a reader of our output must not wait for the probe
    while True:
        signal.pause()


def _pending_signals(process: int) -> int:
    """The pending signals of a process, as a bit mask."""
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as status:
        line = next(line for line in status if line.startswith("ShdPnd:"))
    return int(line.split()[1], 16)


def _drop_pending(signals: set[signal.Signals]) -> None:
    """Discard signals sent to the group after the program had ended."""
    while signal.sigpending() & signals:
        signal.sigtimedwait(signals, 0)
