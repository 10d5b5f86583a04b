"""The job's side of live sessions: a private socket, and one thread that alone touches it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensortap.core.errors import RefusedError, TensortapError
from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_on, setting
from tensortap.core.steps import remove_step_listener, add_step_listener
from tensortap.formats.link import handshake
from tensortap.formats.wire import BadFrameError, Kind, head
from tensortap.live.control import Control, Target
from tensortap.live.desk import Desk
from tensortap.live.discovery import Job, Note, described, private_folder
from tensortap.live.line import SessionLine
from tensortap.live.offers import offers
from tensortap.live.pace import SHARE
from tensortap.live.parcels import Budget

_MOST_SESSIONS = 64
_MOST_GREETINGS = 8
_TELL_EVERY = 0.5  # seconds between two reports of how the job is doing
_LOOK_AGAIN = 0.02  # seconds, while something is tapped
_FAREWELL = 1.0  # seconds
log = logging.getLogger("tensortap.live")


class Endpoint:
    """Listens from when it is made until `close`, the end of the program, or a fork, for the child."""

    def __init__(self, name: str, dump_to: Target, share: float | None = SHARE) -> None:
        self.job: Job = described(name, rank_info(), private_folder())
        budget = Budget(int(float(setting("TENSORTAP_LIVE_MB")) * (1 << 20)))
        label = Path(self.job.socket).stem.rpartition("-")[0]
        self.control = Control(offers, budget, dump_to, label, share)
        self._desk = Desk(self.job, self.control, offers)
        self._lines: list[SessionLine] = []
        self._greeted: list[SessionLine] = []  # by their own threads, not taken over yet
        self._greetings = 0
        self._is_closing = self._is_awake = False
        self._listener = _listen(self.job.socket)
        self._note = Note(self.job)
        self._wakes, self._wake_end = os.pipe()
        for end in (self._wakes, self._wake_end):
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakes, selectors.EVENT_READ, self._drain)
        self._thread = threading.Thread(target=self._run, name="tensortap-live", daemon=True)
        add_step_listener(self.control.at_step)
        offers.open(self.control.at_forward)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._is_closing

    def close(self) -> None:
        """Say goodbye to the sessions, and leave nothing behind; takes two seconds at the most."""
        if self._is_closing:
            return
        self._is_closing = True
        self._leave()
        self.wake()
        self._thread.join(2 * _FAREWELL)

    def abandon(self) -> None:
        """In the child of a fork: close the copies, disturb nobody."""
        self._is_closing = True
        self._leave(is_shared=True)
        for line in [*self._lines, *self._greeted]:
            line.close(is_shared=True)
        with contextlib.suppress(OSError):
            os.close(self._listener.detach())
        self._note.abandon()
        self._end_selector()

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(OSError):
                os.write(self._wake_end, b".")

    def refresh(self) -> None:
        """The process group may have come after the socket: then the rank in the note was not known yet."""
        here = rank_info()
        if (here.rank, here.world_size) != (self.job.rank, self.job.world):
            now = described(self.job.name, here, Path(self.job.socket).parent)
            self.job = self._desk.job = replace(now, socket=self.job.socket, started=self.job.started)
            self._note.write(self.job)

    def __repr__(self) -> str:
        state = f"{len(self._lines)} attached" if self.is_open else "closed"
        return f"<job {self.job.name!r} pid {self.job.pid} listens at {self.job.socket}, {state}>"

    def _leave(self, *, is_shared: bool = False) -> None:
        remove_step_listener(self.control.at_step)
        offers.close()
        self.control.close(is_shared=is_shared)

    def _run(self) -> None:
        try:
            told = time.monotonic()
            while not self._is_closing:
                has_sessions = bool(self._lines)
                for key, events in self._selector.select(self._patience()):
                    key.data(key, events) if not isinstance(key.data, SessionLine) else self._serve(
                        key.data, events
                    )
                self._pump()
                if has_sessions and time.monotonic() - told > _TELL_EVERY:
                    told = time.monotonic()
                    self.refresh()
                    self._desk.tell_all(self._lines)
        except Exception:
            log.exception("the live endpoint failed and is closed; the program goes on")
        finally:
            self._end()

    def _patience(self) -> float | None:
        """How long to sleep unless somebody wakes us: for ever when there is nobody to tell anything."""
        if not self._lines:
            return None
        return _LOOK_AGAIN if any(line.subscriptions for line in self._lines) else _TELL_EVERY

    def _accept(self, *_: Any) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._lines) + self._greetings >= _MOST_SESSIONS or self._greetings >= _MOST_GREETINGS:
            connection.close()
            return
        # A stranger may take his time; the link thread may not.
        self._greetings += 1
        threading.Thread(
            target=self._greet, args=(connection,), name="tensortap-greeting", daemon=True
        ).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            about = {**_about(self.job), "allows": ["look", "tap", "when"]}
            link = handshake(connection, about=about)
            self._greeted.append(SessionLine(connection, link, self.wake))
        except (OSError, BadFrameError, TensortapError) as error:
            level = logging.WARNING if isinstance(error, RefusedError) else logging.DEBUG
            log.log(level, "a connection to the live endpoint was refused: %s", error)
        finally:
            self._greetings -= 1
            self.wake()

    def _drain(self, *_: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)

    def _pump(self) -> None:
        self._is_awake = False
        while self._greeted:
            line = self._greeted.pop()
            self._lines.append(line)
            self._selector.register(line.socket, selectors.EVENT_READ, line)
        for line in list(self._lines):
            self._serve(line, 0)

    def _serve(self, line: SessionLine, events: int) -> None:
        if not line.is_open:
            return
        try:
            if events & selectors.EVENT_READ:
                for frame in line.receive():
                    self._desk.answer(line, frame)
            wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.pump() else 0)
            if self._selector.get_key(line.socket).events != wants:
                self._selector.modify(line.socket, wants, line)
        except (OSError, BadFrameError) as error:
            self._hang_up(line, str(error))

    def _hang_up(self, line: SessionLine, why: str) -> None:
        log.debug("a session ended: %s", why)
        self._lines.remove(line)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.socket)
        line.close()
        self._desk.forget(line)

    def _end(self) -> None:
        """Nobody connects any more; what waits is sent while there is time."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            os.unlink(self.job.socket)
        self._note.remove()
        self._selector.unregister(self._listener)
        self._listener.close()
        deadline = time.monotonic() + _FAREWELL
        for line in [*self._lines, *self._greeted]:
            line.post(head(Kind.BYE, {"why": "the job has ended, or closed its endpoint"}))
        while self._lines and time.monotonic() < deadline and not self._is_all_sent():
            self._selector.select(0.05)
        for line in [*self._lines, *self._greeted]:
            line.close()
        self._end_selector()

    def _is_all_sent(self) -> bool:
        waiting = False
        for line in list(self._lines):
            with contextlib.suppress(OSError):
                waiting |= line.pump()
        return not waiting

    def _end_selector(self) -> None:
        self._selector.close()
        for end in (self._wakes, self._wake_end):
            with contextlib.suppress(OSError):
                os.close(end)


_endpoint: Endpoint | None = None


def listen(
    name: str | None = None, *, dump_to: Target = "runs", share: float | None = SHARE
) -> Endpoint | None:
    """Open this process to live sessions of the same user: `tt.attach()` finds it.

    A private unix socket, nothing on the network. Called again it returns what it opened. `dump_to` is where
    conditions dump to: a folder, or a function of the record. Taps that cost more than `share` of step time
    are taken in fewer steps; None lets them cost what they cost.

    >>> tt.listen("pretraining")
    >>> tt.expose(model)
    """
    global _endpoint
    if not is_on():
        return None
    if _endpoint is None or not _endpoint.is_open:
        if not hasattr(socket, "AF_UNIX"):
            raise RefusedError("live sessions need unix sockets, which this system does not have")
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"share is {share}; give a part of step time such as 0.03, or None for no limit")
        _endpoint = Endpoint(name or _own_name(), dump_to, share)
        atexit.register(_endpoint.close)
        _watch_forks()
    return _endpoint


def _own_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else ""
    return script or "python"


def _about(job: Job) -> dict[str, Any]:
    return {"name": job.name[:200], "pid": job.pid, "rank": job.rank, "world": job.world, "job": job.job}


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process with the same number, long gone
        listener.bind(path)
        os.chmod(path, 0o600)  # before that, the folder alone keeps others out
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


_watches_forks = False


def _watch_forks() -> None:
    global _watches_forks
    if not _watches_forks and hasattr(os, "register_at_fork"):
        _watches_forks = True
        os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    global _endpoint
    endpoint, _endpoint = _endpoint, None
    if endpoint is not None and endpoint.is_open:
        atexit.unregister(endpoint.close)
        try:
            endpoint.abandon()
        except Exception:
            log.exception("the live endpoint of the parent process was not let go of properly")
