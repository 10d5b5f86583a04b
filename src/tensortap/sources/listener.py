"""A source of records sent by other processes: accepts their connections and emits what arrives."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any
from weakref import WeakSet

from tensortap.core.errors import NotServingError, RefusedError, TensortapError
from tensortap.core.interpreter import call_in_forked_children
from tensortap.core.tap import Tap
from tensortap.transport.connection import Connection, Frame, accept_connection
from tensortap.transport.frames import DEFAULT_LIMITS, FrameKind, FrameLimits
from tensortap.transport.schema import decode_record
from tensortap.transport.tls import TlsConfig, check_client_user
from tensortap.transport.values import TargetFramework, decode_from_wire

MAX_CONNECTIONS = 64
_MAX_UNCONFIRMED = 32  # frames, or
_MAX_UNCONFIRMED_BYTES = 32 << 20
_RATE_WINDOW, _MAX_IN_WINDOW = 5.0, 1000  # seconds and values over which the rate is measured
_JOIN_TIMEOUT = 5.0  # seconds to wait for each connection's thread
_MAX_WARNINGS = 20  # refusals; a scanner must not fill the session's log
_listeners: WeakSet[Listener] = WeakSet()
log = logging.getLogger("tensortap.listener")


@dataclass(slots=True)
class Producer:
    """A job that is or was connected: its process facts, and counts of what it sent."""

    about: dict[str, Any]
    since: float = field(default_factory=time)
    values: int = 0
    nbytes: int = 0
    dropped: int = 0  # by the job, because this session was slow or absent
    overhead: float = 0.0  # the share of its time that the job spends on sending
    lag: float = 0.0  # seconds from the call to the arrival of the latest value
    is_connected: bool = True
    _window: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_IN_WINDOW), repr=False)

    @property
    def rate(self) -> float:
        """Recent values per second."""
        now = monotonic()
        recent = [moment for moment in self._window if now - moment < _RATE_WINDOW]
        return len(recent) / max(now - recent[0], 0.1) if recent else 0.0

    def count(self, frame: Frame, seen: float) -> None:
        self.values += 1
        self._window.append(monotonic())
        self.nbytes += frame.data.nbytes
        job_status = frame.meta.get("job")
        if type(job_status) is dict:
            self.dropped = int(_status_number(job_status, "dropped"))
            self.overhead = _status_number(job_status, "spent") / max(_status_number(job_status, "age"), 1e-3)
        self.lag = max(time() - seen, 0.0) if seen else 0.0


class Listener:
    """Listens on a TCP port while the tap is open; `port=0` takes a free one.

    Other interfaces than loopback need a token, and TLS or `insecure=True`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
        insecure: bool = False,
        limits: FrameLimits = DEFAULT_LIMITS,
        into: TargetFramework = "own",
    ) -> None:
        require_protection(host, token, tls, insecure)
        self.host, self.port = host, port
        self._token, self._tls = token, tls
        self._limits, self._into = limits, into
        self.producers: list[Producer] = []
        self.refused = 0
        self._socket: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._connections: dict[int, socket.socket | Connection] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def fingerprint(self) -> str:
        """Of its certificate; empty without TLS."""
        return self._tls.fingerprint if self._tls is not None else ""

    def allow(self, most: int | None) -> None:
        """Refuse values of more bytes than that before memory is allocated for them."""
        if most is not None and most < self._limits.data:
            self._limits = replace(self._limits, data=most)

    def open(self) -> None:
        """Bind the port; connections wait until the source is started."""
        if self._socket is None:
            self._socket = open_listen_socket(self.host, self.port)
            self.port = self._socket.getsockname()[1]
            call_in_forked_children(_abandon_all)
            _listeners.add(self)

    def start(self, tap: Tap) -> None:
        self.open()
        self._spawn(self._accept, self._socket, tap)

    def stop(self) -> None:
        with self._lock:
            listen_socket, self._socket = self._socket, None
            connections = list(self._connections.values())
            threads = list(self._threads)
        if listen_socket is not None:
            shut_down(listen_socket)
        for connection in connections:
            shut_down(connection)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_TIMEOUT)

    def _spawn(self, target: Any, *arguments: Any) -> None:
        def run() -> None:
            try:
                target(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="tensortap-listener", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listen_socket: socket.socket, tap: Tap) -> None:
        while self._socket is listen_socket:
            try:
                connection, _ = listen_socket.accept()
            except OSError as error:
                if self._socket is not listen_socket or error.errno == errno.EBADF:
                    return
                log.warning("a connection could not be accepted: %s", error)
                threading.Event().wait(0.1)  # out of file descriptors, say: not in a tight loop
                continue
            if not self._admit(connection):
                connection.close()
                self._warn(f"{MAX_CONNECTIONS} jobs are connected; one more was turned away")
                continue
            self._spawn(self._serve, connection, tap)

    def _admit(self, connection: socket.socket) -> bool:
        with self._lock:
            has_room = self._socket is not None and len(self._connections) < MAX_CONNECTIONS
            if has_room:
                self._connections[id(connection)] = connection
            return has_room

    def _serve(self, connection: socket.socket, tap: Tap) -> None:
        key = id(connection)
        try:
            if self._token is None:
                check_client_user(connection)
            connected = accept_connection(connection, self._token, self._tls, limits=self._limits)
        except (OSError, ValueError, TensortapError) as error:
            self._end(key, connection)
            if self._socket is not None:
                self._warn(f"a connection was refused: {error}")
            return
        producer = Producer(connected.peer.about)
        with self._lock:
            self._connections[key] = connected
            is_open = self._socket is not None
            self.producers.append(producer)
        try:
            if is_open:
                self._receive(connected, producer, tap)
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError):
                self._warn(f"the connection to {_describe_producer(producer)} was ended: {error}")
        finally:
            producer.is_connected = False
            self._end(key, connected)

    def _end(self, key: int, connection: socket.socket | Connection) -> None:
        connection.close()
        with self._lock:
            self._connections.pop(key, None)

    def _receive(self, connection: Connection, producer: Producer, tap: Tap) -> None:
        """Receive frames until the job sends BYE."""
        acknowledgements = _Acknowledgements(connection)
        while (frame := connection.receive()).kind is not FrameKind.BYE:
            if frame.kind is FrameKind.DATA:
                self._emit(frame, producer, tap)
                acknowledgements.add(frame)

    def _emit(self, frame: Frame, producer: Producer, tap: Tap) -> None:
        # The link has looked at the tree: a node that is no list is the value itself.
        tree: list[Any] = frame.meta.get("tree") or []
        is_plain = len(tree) == 1 and type(tree[0]) is not list
        value = tree[0] if is_plain else decode_from_wire(frame.meta, frame.data, self._limits, self._into)
        record = decode_record(frame.meta, value)
        producer.count(frame, record.time)
        tap.emit(record)

    def _warn(self, message: str) -> None:
        self.refused += 1
        if self.refused <= _MAX_WARNINGS:
            more = "; further ones are only counted" if self.refused == _MAX_WARNINGS else ""
            log.warning("%s%s", message, more)

    def _abandon(self) -> None:
        """In a forked child: the port and the connections remain the parent's."""
        self._lock = threading.Lock()
        listen_socket, self._socket = self._socket, None
        for connection in (listen_socket, *self._connections.values()):
            if isinstance(connection, Connection):
                connection.abandon()
            elif connection is not None:
                os.close(connection.detach())
        self._connections, self._threads = {}, set()


class _Acknowledgements:
    """Sends acks: when the job requests one because its queue is empty, and after a number of values."""

    def __init__(self, connection: Connection) -> None:
        self._link = connection
        self._count = self._nbytes = 0

    def add(self, frame: Frame) -> None:
        self._count += 1
        self._nbytes += frame.data.nbytes
        is_due = self._count >= _MAX_UNCONFIRMED or self._nbytes >= _MAX_UNCONFIRMED_BYTES
        number = frame.meta.get("number")
        if type(number) is int and (is_due or frame.meta.get("ask") is True):
            self._count = self._nbytes = 0
            self._link.send(FrameKind.OK, {"got": number})


def _describe_producer(producer: Producer) -> str:
    about = producer.about
    return f"process {about.get('pid')} of {about.get('host')}"


def _status_number(job_status: dict[str, Any], key: str) -> float:
    number = job_status.get(key)
    return number if type(number) in (int, float) and 0 <= number < 1 << 62 else 0  # type: ignore[operator,return-value]


def _abandon_all() -> None:
    for listener in list(_listeners):
        listener._abandon()


_BACKLOG = 128
_LOOPBACK = ("127.", "::1", "localhost")


def require_protection(host: str, token: str | None, tls: TlsConfig | None, insecure: bool) -> None:
    if host.startswith(_LOOPBACK):
        return
    if not token:
        raise RefusedError(
            f"listening at {host} needs a token, since others can reach it; set THING_TOKEN on both sides, "
            "or stay at 127.0.0.1 and forward the port with ssh"
        )
    if tls is None and not insecure:
        raise RefusedError(
            f"listening at {host} would send values in clear; use TLS, forward the port with ssh, or say "
            "insecure=True"
        )


def open_listen_socket(host: str, port: int) -> socket.socket:
    if type(port) is not int or not 0 <= port < 1 << 16:  # the system would take what is left of it
        raise NotServingError(f"cannot listen at {host}:{port}: a port is a number below 65536")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listen_socket = socket.socket(family, kind, protocol)
    except OSError as error:
        raise NotServingError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    try:
        listen_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listen_socket.bind(address)
        listen_socket.listen(_BACKLOG)
    except OSError as error:
        listen_socket.close()
        raise _listen_error(host, port, error) from error
    return listen_socket


def _listen_error(host: str, port: int, error: OSError) -> NotServingError:
    if error.errno == errno.EADDRINUSE:
        return NotServingError(
            f"port {port} of {host} is taken, perhaps by another session that serves; end that one, or give "
            "another port here and as THING_PORT in the job"
        )
    return NotServingError(f"cannot listen at {host}:{port}: {error.strerror or error}")


def shut_down(connection: socket.socket | Connection) -> None:
    """Close it, and wake threads that block on it."""
    if isinstance(connection, socket.socket):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more
    connection.close()
