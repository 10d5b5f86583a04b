"""Sockets with deadlines: connect over TCP or unix sockets, with or without TLS, safe for several threads."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tensortap.core.errors import RefusedError
from tensortap.transport.tls import TlsConfig, check_certificate, parse_host

Bytes = bytes | bytearray | memoryview
_READ_AHEAD = 1 << 16
_MIN_DIRECT_READ = 1 << 15  # bytes; larger reads go directly into the target
_MAX_VECTORS = 512
_TLS_CHUNK = 1 << 20
_TIMEVAL = struct.Struct("@ll")
_WAIT_ALL = getattr(socket, "MSG_WAITALL", 0)
_DO_NOT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)


class Closable(Protocol):
    def close(self) -> None: ...


class ByteStream(Protocol):
    """A bidirectional byte stream. Deadlines are in monotonic time; None waits forever."""

    ahead: ReadAheadBuffer

    def send(self, views: Sequence[Bytes], deadline: float | None) -> int:
        """Send some of these bytes, in order; returns how many."""

    def read_into(self, view: memoryview, deadline: float | None) -> int:
        """Read at least one byte and at most what fits; 0 if the other side has closed."""

    def read_ahead(self, deadline: float | None) -> None:
        """Wait for bytes; the buffer stays empty if the other side has closed."""

    def close(self, *, is_shared: bool = False) -> None: ...


def deadline_after(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def remaining_seconds(deadline: float | None) -> float | None:
    """Seconds until the deadline; raises TimeoutError if it has passed."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side did not answer in time")
    return left


class SocketStream:
    """A plain socket. The kernel enforces separate send and receive timeouts: Python's `settimeout` is one
    for both, and costs a `poll` per call."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(True)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._limited: set[int] = set()  # directions with a kernel timeout
        self.ahead = ReadAheadBuffer()

    def send(self, views: Sequence[Bytes], deadline: float | None) -> int:
        is_limited = deadline is not None or socket.SO_SNDTIMEO in self._limited
        flags = self._set_timeout(socket.SO_SNDTIMEO, deadline) if is_limited else 0
        try:
            if len(views) == 1:
                return self._socket.send(views[0], flags)
            return self._socket.sendmsg(views[:_MAX_VECTORS], (), flags)
        except BlockingIOError:
            raise TimeoutError("the other side took nothing in time") from None

    def read_into(self, view: memoryview, deadline: float | None) -> int:
        if self.ahead.start == self.ahead.end:
            if view.nbytes >= _MIN_DIRECT_READ:
                return self._receive(view, deadline, _WAIT_ALL)
            self.read_ahead(deadline)
        return self.ahead.take(view)

    def read_ahead(self, deadline: float | None) -> None:
        ahead = self.ahead
        ahead.start, ahead.end = 0, self._receive(ahead.space, deadline)

    def close(self, *, is_shared: bool = False) -> None:
        _close(self._socket, is_shared)

    def _receive(self, view: memoryview, deadline: float | None, flags: int = 0) -> int:
        if deadline is not None or socket.SO_RCVTIMEO in self._limited:
            flags = self._set_timeout(socket.SO_RCVTIMEO, deadline) or flags
        try:
            return self._socket.recv_into(view, 0, flags)
        except BlockingIOError:
            raise TimeoutError("nothing came in time") from None

    def _set_timeout(self, option: int, deadline: float | None) -> int:
        """Set the kernel's timeout; returns the flags for a non-blocking call if the deadline has passed."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return _DO_NOT_WAIT
        (self._limited.discard if left is None else self._limited.add)(option)
        micros = 0 if left is None else max(int(left * 1e6), 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(micros, 1_000_000)))
        return 0


class TlsStream:
    """A TLS socket. OpenSSL allows one thread at a time, so nobody waits while holding the lock."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._socket = connection
        connection.setblocking(False)
        self._lock = threading.Lock()
        self.ahead = ReadAheadBuffer()

    def send(self, views: Sequence[Bytes], deadline: float | None) -> int:
        first = next((view for view in views if len(view)), b"")
        chunk = memoryview(first)[:_TLS_CHUNK]
        return int(self._when_ready(lambda: self._socket.send(chunk), deadline))

    def read_into(self, view: memoryview, deadline: float | None) -> int:
        if self.ahead.start == self.ahead.end:
            if view.nbytes >= _MIN_DIRECT_READ:
                return self._read(view, deadline)
            self.read_ahead(deadline)
        return self.ahead.take(view)

    def read_ahead(self, deadline: float | None) -> None:
        self.ahead.start, self.ahead.end = 0, self._read(self.ahead.space, deadline)

    def close(self, *, is_shared: bool = False) -> None:
        _close(self._socket, is_shared)

    def do_handshake(self, deadline: float | None) -> None:
        self._when_ready(self._socket.do_handshake, deadline)

    def _read(self, view: memoryview, deadline: float | None) -> int:
        return int(self._when_ready(lambda: self._socket.recv_into(view), deadline))

    def _when_ready(self, call: Any, deadline: float | None) -> Any:
        while True:
            try:
                with self._lock:
                    return call()
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            _wait(self._socket, event, deadline)


class ReadAheadBuffer:
    """Bytes that came together with those asked for, in `space` from `start` to `end`: many small frames
    arrive in one call."""

    __slots__ = ("end", "space", "start")

    def __init__(self) -> None:
        self.space = memoryview(bytearray(_READ_AHEAD))
        self.start = self.end = 0

    def take(self, view: memoryview) -> int:
        count = min(view.nbytes, self.end - self.start)
        view[:count] = self.space[self.start : self.start + count]
        self.start += count
        return count


def _wait(connection: socket.socket, event: int, deadline: float | None) -> None:
    left = remaining_seconds(deadline)
    poll = select.poll()
    try:
        poll.register(connection, event)
    except ValueError:  # closed by another thread
        raise ConnectionError("the connection was closed") from None
    poll.poll(None if left is None else max(left * 1000, 1))


def _close(connection: socket.socket, is_shared: bool) -> None:
    """Shut down the connection, waking a thread that waits in it; if shared, close only this process's
    copy."""
    if is_shared:
        with contextlib.suppress(OSError):
            os.close(connection.detach())
        return
    with contextlib.suppress(OSError, ValueError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    connection.close()


_LOOPBACK = ("127.0.0.1", "::1")
_SEND_BUFFER = 128 << 10  # bytes; the kernel doubles it


def open_socket(address: str, timeout: float) -> socket.socket:
    host = parse_host(address)
    if host is not None:
        connection = socket.create_connection((host, int(address.rpartition(":")[2])), timeout)
        _limit_send_buffer(connection)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closing_on_error(connection):
        connection.settimeout(timeout)
        connection.connect(address)
    return connection


def _limit_send_buffer(connection: socket.socket) -> None:
    """On loopback, bytes stay in the CPU cache while few are in flight; the megabytes of the default send
    buffer fall out of it, which takes half as long again."""
    if connection.getpeername()[0] in _LOOPBACK:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)


def wrap_tls(
    connection: socket.socket, tls: TlsConfig | None, deadline: float | None, host: str | None
) -> tuple[ByteStream, str]:
    """The stream, and the certificate fingerprint that a token proof is bound to (empty without TLS)."""
    if tls is None:
        return SocketStream(connection), ""
    name = None if tls.is_listening else host
    connection.setblocking(False)
    wrapped = tls.context.wrap_socket(
        connection, server_side=tls.is_listening, do_handshake_on_connect=False, server_hostname=name
    )
    stream = TlsStream(wrapped)
    with closing_on_error(wrapped):
        _tls_handshake(stream, deadline)
        return stream, tls.fingerprint if tls.is_listening else check_certificate(wrapped, tls.fingerprint)


def _tls_handshake(stream: TlsStream, deadline: float | None) -> None:
    try:
        stream.do_handshake(deadline)
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(
            f"the listener's certificate is not trusted ({error.verify_message}); "
            "give its fingerprint, or the file of the authority that signed it"
        ) from error
    except ssl.SSLError as error:
        raise ConnectionError(f"no TLS could be agreed on ({error.reason}); do both sides use it?") from error


@contextlib.contextmanager
def closing_on_error(resource: Closable) -> Iterator[None]:
    """Close the resource if the block is left by an exception, also by an interrupt."""
    with contextlib.ExitStack() as undo:
        undo.callback(resource.close)
        yield
        undo.pop_all()
