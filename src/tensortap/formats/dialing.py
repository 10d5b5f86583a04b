"""From an address to a stream of bytes: TCP or a unix socket, inside TLS or not."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

from tensortap.core.errors import RefusedError
from tensortap.formats.certificates import TlsConfig, check_certificate
from tensortap.formats.streams import ByteStream, SocketStream, TlsStream

_LOOPBACK = ("127.0.0.1", "::1")
_SEND_BUFFER = 128 << 10  # bytes; the system takes twice that


def parse_host(address: str) -> str | None:
    """The host of `"host:port"`; None for the path of a unix socket."""
    if "/" in address and "://" not in address:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65535:
        raise ValueError(f"the address {address!r} is neither 'host:port' nor the path of a unix socket")
    return host.removeprefix("[").removesuffix("]")


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
    """Within one machine bytes go from cache to cache while few are on their way; the megabytes that the
    system would let wait there fall out of it, and take half as long again."""
    if connection.getpeername()[0] in _LOOPBACK:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)


def wrap_tls(
    connection: socket.socket, tls: TlsConfig | None, deadline: float | None, host: str | None
) -> tuple[ByteStream, str]:
    """The stream, and what a proof of the token is bound to: the certificate, where there is one."""
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
        stream.greet(deadline)
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(
            f"the listener's certificate is not trusted ({error.verify_message}); "
            "give its fingerprint, or the file of the authority that signed it"
        ) from error
    except ssl.SSLError as error:
        raise ConnectionError(f"no TLS could be agreed on ({error.reason}); do both sides use it?") from error


@contextlib.contextmanager
def closing_on_error(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
