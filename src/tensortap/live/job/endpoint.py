"""The job's side of live sessions: a private unix socket, and the one thread that serves it."""

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
from tensortap.core.interpreter import call_in_forked_children
from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_on, setting
from tensortap.core.steps import add_step_listener, remove_step_listener
from tensortap.live.discovery import Job, JobFile, describe_process, private_folder
from tensortap.live.job.connection import SessionConnection
from tensortap.live.job.control import Control, DumpTarget
from tensortap.live.job.exposed import exposed_models
from tensortap.live.job.handler import RequestHandler
from tensortap.live.job.outgoing import OutgoingBudget
from tensortap.live.job.tap import DEFAULT_SHARE
from tensortap.transport.connection import accept_connection
from tensortap.transport.frames import BadFrameError, FrameKind, encode_head
from tensortap.transport.sockets import closing_on_error

_MAX_SESSIONS = 64
_MAX_HANDSHAKES = 8
_STATS_INTERVAL = 0.5  # seconds between two STATS frames
_POLL_INTERVAL = 0.02  # seconds, while something is tapped
_CLOSE_TIMEOUT = 1.0  # seconds
log = logging.getLogger("tensortap.live")


class Endpoint:
    """Listens from construction until `close` or the end of the program; a forked child abandons it."""

    def __init__(self, name: str, dump_to: DumpTarget, share: float | None = DEFAULT_SHARE) -> None:
        self.job: Job = describe_process(name, rank_info(), private_folder())
        budget = OutgoingBudget(int(float(setting("TENSORTAP_LIVE_MB")) * (1 << 20)))
        label = Path(self.job.socket).stem.rpartition("-")[0]
        self.control = Control(exposed_models, budget, dump_to, label, share)
        self._handler = RequestHandler(self.job, self.control, exposed_models)
        self._connections: list[SessionConnection] = []
        self._accepted: list[SessionConnection] = []  # after the handshake, not yet served
        self._handshakes = 0
        self._is_closing = self._is_awake = False
        self._listener = _bind_socket(self.job.socket)
        self._job_file = JobFile(self.job)
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wakes)
        self._thread = threading.Thread(target=self._run, name="tensortap-live", daemon=True)
        add_step_listener(self.control.at_step)
        exposed_models.open(self.control.at_forward)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._is_closing

    def close(self) -> None:
        """Disconnect all sessions and remove the socket, within two seconds."""
        if self._is_closing:
            return
        self._is_closing = True
        self._detach()
        self.wake()
        self._thread.join(2 * _CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptors, without a word to the sessions."""
        self._is_closing = True
        self._detach(is_shared=True)
        for connection in [*self._connections, *self._accepted]:
            connection.close(is_shared=True)
        with contextlib.suppress(OSError):
            os.close(self._listener.detach())
        self._job_file.abandon()
        self._end_selector()

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b".")

    def refresh(self) -> None:
        """Update the job file if the rank has become known since: the process group may start later."""
        here = rank_info()
        if (here.rank, here.world_size) != (self.job.rank, self.job.world):
            job = describe_process(self.job.name, here, Path(self.job.socket).parent)
            self.job = self._handler.job = replace(job, socket=self.job.socket, started=self.job.started)
            self._job_file.write(self.job)

    def __repr__(self) -> str:
        state = f"{len(self._connections)} attached" if self.is_open else "closed"
        return f"<job {self.job.name!r} pid {self.job.pid} listens at {self.job.socket}, {state}>"

    def _detach(self, *, is_shared: bool = False) -> None:
        remove_step_listener(self.control.at_step)
        exposed_models.close()
        self.control.close(is_shared=is_shared)

    def _run(self) -> None:
        try:
            last_report = time.monotonic()
            while not self._is_closing:
                has_sessions = bool(self._connections)
                for key, events in self._selector.select(self._select_timeout()):
                    key.data(key, events) if not isinstance(key.data, SessionConnection) else self._serve(
                        key.data, events
                    )
                self._serve_all()
                if has_sessions and time.monotonic() - last_report > _STATS_INTERVAL:
                    last_report = time.monotonic()
                    self.refresh()
                    self._handler.report_stats(self._connections)
        except Exception:  # a guest's thread: no failure of ours may end the program
            log.exception("the live endpoint failed and is closed; the program goes on")
        finally:
            self._end()

    def _select_timeout(self) -> float | None:
        """The timeout of select(); None, which waits for a wake-up, while no session is connected."""
        if not self._connections:
            return None
        return (
            _POLL_INTERVAL
            if any(connection.subscriptions for connection in self._connections)
            else _STATS_INTERVAL
        )

    def _accept(self, *_: Any) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) + self._handshakes >= _MAX_SESSIONS or self._handshakes >= _MAX_HANDSHAKES:
            client.close()
            return
        # In a thread of its own: a slow client must not block the socket thread.
        self._handshakes += 1
        threading.Thread(
            target=self._shake_hands, args=(client,), name="tensortap-greeting", daemon=True
        ).start()

    def _shake_hands(self, client: socket.socket) -> None:
        try:
            about = {**_job_facts(self.job), "allows": ["look", "tap", "when"]}
            link = accept_connection(client, about=about)
            self._accepted.append(SessionConnection(client, link, self.wake))
        except (OSError, BadFrameError, TensortapError) as error:
            level = logging.WARNING if isinstance(error, RefusedError) else logging.DEBUG
            log.log(level, "a connection to the live endpoint was refused: %s", error)
        finally:
            self._handshakes -= 1
            self.wake()

    def _drain_wakes(self, *_: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _serve_all(self) -> None:
        self._is_awake = False
        while self._accepted:
            connection = self._accepted.pop()
            self._connections.append(connection)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        for connection in list(self._connections):
            self._serve(connection, 0)

    def _serve(self, connection: SessionConnection, events: int) -> None:
        if not connection.is_open:
            return
        try:
            if events & selectors.EVENT_READ:
                for frame in connection.receive():
                    self._handler.handle(connection, frame)
            wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.send_pending() else 0)
            if self._selector.get_key(connection.socket).events != wants:
                self._selector.modify(connection.socket, wants, connection)
        except (OSError, BadFrameError) as error:
            self._disconnect(connection, str(error))

    def _disconnect(self, connection: SessionConnection, reason: str) -> None:
        log.debug("a session ended: %s", reason)
        self._connections.remove(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.close()
        self._handler.drop_session(connection)

    def _end(self) -> None:
        """Stop listening, and send pending frames until the timeout."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            os.unlink(self.job.socket)
        self._job_file.remove()
        self._selector.unregister(self._listener)
        self._listener.close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        for connection in [*self._connections, *self._accepted]:
            connection.enqueue(
                encode_head(FrameKind.BYE, {"why": "the job has ended, or closed its endpoint"})
            )
        while self._connections and time.monotonic() < deadline and not self._is_all_sent():
            self._selector.select(0.05)
        for connection in [*self._connections, *self._accepted]:
            connection.close()
        self._end_selector()

    def _is_all_sent(self) -> bool:
        waiting = False
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                waiting |= connection.send_pending()
        return not waiting

    def _end_selector(self) -> None:
        self._selector.close()
        for end in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(end)


_endpoint: Endpoint | None = None


def listen(
    name: str | None = None, *, dump_to: DumpTarget = "runs", share: float | None = DEFAULT_SHARE
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
        _endpoint = Endpoint(name or _default_name(), dump_to, share)
        atexit.register(_endpoint.close)
        call_in_forked_children(_forget_in_child)
    return _endpoint


def _default_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else ""
    return script or "python"


def _job_facts(job: Job) -> dict[str, Any]:
    return {"name": job.name[:200], "pid": job.pid, "rank": job.rank, "world": job.world, "job": job.job}


def _bind_socket(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closing_on_error(listener):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a dead process with the same pid
        listener.bind(path)
        os.chmod(path, 0o600)  # until then the folder's mode protects it
        listener.listen(16)
        listener.setblocking(False)
    return listener


def _forget_in_child() -> None:
    global _endpoint
    endpoint, _endpoint = _endpoint, None
    if endpoint is not None and endpoint.is_open:
        atexit.unregister(endpoint.close)
        try:
            endpoint.abandon()
        except Exception:  # inside the program's own fork
            log.exception("the live endpoint of the parent process was not let go of properly")
