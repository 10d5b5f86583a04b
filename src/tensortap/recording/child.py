"""Start a program, pass signals on to it, and end as it ended."""

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

# What a terminal or a scheduler sends; those that are ignored here are ignored there, and stay so.
_PASSED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH")
_FROM_TERMINAL = 0x80  # si_code of what the kernel sends to all processes of a terminal
_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)
_SET_PARENT_DEATH_SIGNAL = 1
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


class CannotStartError(Exception):
    """The system does not execute the program; the message is one sentence."""


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run it to its end; below zero, the number of the signal that ended it.

    Input, output, terminal and process group are those of this process. A signal that the terminal sends, or
    somebody sends to the whole group, reaches the program by itself; any other is passed on.
    """
    passed = {signal.Signals[name] for name in _PASSED if hasattr(signal, name)}
    passed = {one for one in passed if signal.getsignal(one) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed, signal.SIGCHLD})
    try:
        # A function before the program is safe here, where no other thread can hold a lock.
        process = _started(command, environment, lambda: _begin(before))
        return _wait(process, {*passed, signal.SIGCHLD})
    finally:
        _drop_pending(passed)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(
    command: Sequence[str], environment: dict[str, str], begin: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """A file that says no interpreter is read by sh, as shells do it."""
    for words in (list(command), ["/bin/sh", *command]):
        try:
            return subprocess.Popen(words, env=environment, close_fds=False, preexec_fn=begin)
        except OSError as error:
            if error.errno != errno.ENOEXEC or words[0] == "/bin/sh":
                raise CannotStartError(_why(command[0], error)) from None
    raise AssertionError("sh is tried last")


def _why(program: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.exists(program):
        return f"{program} cannot be started: the interpreter in its first line does not exist"
    return f"{program} cannot be started: {error.strerror or error}"


def end_like(status: int) -> int:
    """The exit code for a status; a signal that ended the program ends this process, too."""
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


def _begin(mask: set[int | signal.Signals]) -> None:
    """In the child, before the program: signals as they were, and no life after this process's death."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _die_with_parent()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], awaited: set[signal.Signals]) -> int:
    witness = Witness()
    try:
        while process.poll() is None:
            told = signal.sigwaitinfo(awaited)
            if told.si_signo == signal.SIGCHLD:
                continue
            is_for_all = witness.has_got(told.si_signo)
            if told.si_code == _FROM_TERMINAL and told.si_signo in _TERMINAL:
                continue
            with contextlib.suppress(ProcessLookupError):
                if not is_for_all or os.getpgid(process.pid) != os.getpgrp():
                    process.send_signal(told.si_signo)
    finally:
        witness.leave()
    return int(process.returncode)


class Witness:
    """A process of our group in which signals only wait: one that waits there, too, was sent to the group
    (as `timeout` does), and the program has got it. The system tells this in no other way."""

    def __init__(self) -> None:
        self._process = _stand_by() if os.path.isdir("/proc/self") else 0

    def has_got(self, number: int) -> bool:
        if not self._process or not _waiting(self._process) >> (number - 1) & 1:
            return False
        self.leave()  # with what it has got, so that the next one is noticed, too
        self._process = _stand_by()
        return True

    def leave(self) -> None:
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def _stand_by() -> int:
    """Called while the signals are blocked, which the new process inherits."""
    process = os.fork()
    if process:
        return process
    _die_with_parent()
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # whoever reads our output waits for nobody else
    while True:
        signal.pause()


def _waiting(process: int) -> int:
    """The signals that wait for a process, a bit for each."""
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as status:
        line = next(line for line in status if line.startswith("ShdPnd:"))
    return int(line.split()[1], 16)


def _drop_pending(signals: set[signal.Signals]) -> None:
    """What was sent to both of us when the program was over already has had its effect."""
    while signal.sigpending() & signals:
        signal.sigtimedwait(signals, 0)
