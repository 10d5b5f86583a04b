"""A listening socket: who may open one where, and what is said when it cannot be opened."""

from __future__ import annotations

import errno
import socket

from tensortap.core.errors import NotServingError, RefusedError
from tensortap.transport.connection import Connection
from tensortap.transport.tls import TlsConfig

_BACKLOG = 128
_LOOPBACK = ("127.", "::1", "localhost")


def refuse_open_door(host: str, token: str | None, tls: TlsConfig | None, insecure: bool) -> None:
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


def open_door(host: str, port: int) -> socket.socket:
    if type(port) is not int or not 0 <= port < 1 << 16:  # the system would take what is left of it
        raise NotServingError(f"cannot listen at {host}:{port}: a port is a number below 65536")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family, kind, protocol)
    except OSError as error:
        raise NotServingError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(place)
        door.listen(_BACKLOG)
    except OSError as error:
        door.close()
        raise _cannot_listen(host, port, error) from error
    return door


def _cannot_listen(host: str, port: int, error: OSError) -> NotServingError:
    if error.errno == errno.EADDRINUSE:
        return NotServingError(
            f"port {port} of {host} is taken, perhaps by another session that serves; end that one, or give "
            "another port here and as THING_PORT in the job"
        )
    return NotServingError(f"cannot listen at {host}:{port}: {error.strerror or error}")


def shut(connection: socket.socket | Connection) -> None:
    """Close it, also for a thread that waits in it."""
    if isinstance(connection, socket.socket):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more
    connection.close()
