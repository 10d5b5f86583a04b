"""An authenticated connection to another process: frames in both directions over a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from tensortap.transport.frames import (
    DEFAULT_LIMITS,
    HEADER_NBYTES,
    BadFrameError,
    FrameHeader,
    FrameKind,
    FrameLimits,
    encode_head,
    parse_header,
    parse_meta,
)
from tensortap.transport.handshake import (
    HANDSHAKE_LIMITS,
    PeerInfo,
    check_unix_peer,
    handshake_as_client,
    handshake_as_server,
)
from tensortap.transport.schema import data_nbytes
from tensortap.transport.sockets import (
    ByteStream,
    SocketStream,
    closing_on_error,
    deadline_after,
    open_socket,
    remaining_seconds,
    wrap_tls,
)
from tensortap.transport.tls import TlsConfig, parse_host

_Array = np.ndarray[Any, Any]
_SCRATCH_NBYTES = 1 << 20
_ALIGNMENT = 64
_NO_DATA = np.empty(0, np.uint8)


class Frame(NamedTuple):
    """A received frame. `data` is owned by the receiver, writable and 64-byte aligned."""

    kind: FrameKind
    meta: dict[str, Any]
    data: _Array
    seq: int


class Connection:
    """Any thread may send, one at a time may receive. Failures of the connection raise OSError
    (`TimeoutError` among them), protocol violations raise BadFrameError."""

    def __init__(self, connection: socket.socket | ByteStream, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._stream = SocketStream(connection) if isinstance(connection, socket.socket) else connection
        self.limits = limits
        self.peer = PeerInfo()
        self._sending = threading.Lock()
        self._sent = 0
        self._incoming = _PartialFrame()
        self.is_closed = False

    def send(
        self,
        kind: FrameKind,
        meta: Mapping[str, Any] | None = None,
        buffers: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> int:
        """Send a complete frame; returns its size. The buffers are neither copied nor joined.

        After a timeout within a frame the connection is closed, since the other side cannot resynchronise.
        """
        views = [memoryview(part).cast("B") for part in buffers if len(part)] if buffers else []
        nbytes = sum(view.nbytes for view in views) if views else 0
        with self._sending:
            self._check_open()
            text = encode_head(kind, meta, nbytes, self._sent, self.limits)
            self._send([text, *views], deadline_after(timeout))
            self._sent += 1
        return len(text) + nbytes

    def receive(self, timeout: float | None = None) -> Frame:
        """The next frame. After a timeout the next call resumes where this one stopped; `timeout=0` polls."""
        self._check_open()
        deadline = deadline_after(timeout)
        try:
            while True:
                frame = self._receive(deadline)
                if frame is not None:
                    return frame
                remaining_seconds(deadline)  # a flood of unknown frames must not keep us here
        except TimeoutError:
            raise
        except (OSError, ValueError):  # after invalid bytes the stream is out of sync
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; idempotent, and safe from another thread than the one waiting in it."""
        self.is_closed = True
        self._stream.close()

    def abandon(self) -> None:
        """Close only this process's copy of the socket, as a forked child must."""
        self.is_closed = True
        self._stream.close(is_shared=True)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ConnectionError("the link is closed")

    def _send(self, views: list[Any], deadline: float | None) -> None:
        has_begun = False
        try:
            while views:
                count = self._stream.send(views, deadline)
                has_begun = True
                if len(views) == 1 and count == len(views[0]):
                    return
                views = _drop_sent(views, count)
        except BaseException as error:  # an interrupt too leaves half a frame behind
            if has_begun or not isinstance(error, TimeoutError):
                self.close()
            raise

    def _receive(self, deadline: float | None) -> Frame | None:
        """One complete frame, or None for one of a kind unknown to this version."""
        at = self._incoming
        if at.header is None and not at.received:
            frame = self._receive_buffered(deadline)
            if frame is not None:
                return frame
        if at.header is None:
            self._fill(at, deadline)
            at.begin_meta(parse_header(at.target, self.limits))
        header: FrameHeader = at.header  # type: ignore[assignment]
        if at.meta is None:
            self._fill(at, deadline)
            at.meta = parse_meta(at.target, self.limits)
            at.begin_data(self._allocate_data(header, at.meta))
        if not header.is_known:
            self._skip(at, header.data_nbytes, deadline)
            self._incoming = _PartialFrame()
            return None
        self._fill(at, deadline)
        self._incoming = _PartialFrame()
        return Frame(cast(FrameKind, header.kind), at.meta, at.array, header.seq)

    def _receive_buffered(self, deadline: float | None) -> Frame | None:
        """A frame that is complete in the read-ahead buffer, as most are; None (and nothing consumed)
        otherwise."""
        ahead = self._stream.ahead
        if ahead.start == ahead.end:
            self._stream.read_ahead(deadline)
        meta_start = ahead.start + HEADER_NBYTES
        if meta_start > ahead.end:
            return None
        header = parse_header(ahead.space[ahead.start : meta_start], self.limits)
        kind, _, meta_nbytes, nbytes, seq = header
        start = meta_start + meta_nbytes
        if start + nbytes > ahead.end or type(kind) is not FrameKind:
            return None
        meta = parse_meta(ahead.space[meta_start:start], self.limits)
        if "tree" in meta:
            self._check_length(meta["tree"], nbytes)
        data = _allocate_aligned(nbytes) if nbytes else _NO_DATA
        if nbytes:
            data.data[:] = ahead.space[start : start + nbytes]
        ahead.start = start + nbytes
        return Frame(kind, meta, data, seq)

    def _allocate_data(self, header: FrameHeader, meta: dict[str, Any]) -> _Array:
        """Memory for the data, after checking its length against the meta."""
        if not header.is_known:
            return np.empty(min(_SCRATCH_NBYTES, header.data_nbytes), np.uint8)
        if "tree" in meta:
            self._check_length(meta["tree"], header.data_nbytes)
        return _allocate_aligned(header.data_nbytes) if header.data_nbytes else _NO_DATA

    def _check_length(self, tree: Any, nbytes: int) -> None:
        expected = data_nbytes(tree, self.limits)
        if expected != nbytes:
            raise BadFrameError(f"a value of {expected} bytes comes with {nbytes} bytes of data")

    def _fill(self, at: _PartialFrame, deadline: float | None) -> None:
        while at.received < at.target.nbytes:
            at.received += self._read(at.target[at.received :], deadline)

    def _skip(self, at: _PartialFrame, nbytes: int, deadline: float | None) -> None:
        while at.received < nbytes:
            at.received += self._read(at.target[: nbytes - at.received], deadline)

    def _read(self, view: memoryview, deadline: float | None) -> int:
        count = self._stream.read_into(view, deadline)
        if not count:
            raise ConnectionError("the other side closed the connection")
        return count


class _PartialFrame:
    """The state of the frame that is being received."""

    __slots__ = ("array", "header", "meta", "received", "target")

    def __init__(self) -> None:
        self.header: FrameHeader | None = None
        self.meta: dict[str, Any] | None = None
        self.array: _Array = _NO_DATA
        self.target = memoryview(bytearray(HEADER_NBYTES))
        self.received = 0

    def begin_meta(self, header: FrameHeader) -> None:
        self.header, self.received = header, 0
        self.target = memoryview(bytearray(header.meta_nbytes))

    def begin_data(self, array: _Array) -> None:
        self.array, self.received = array, 0
        self.target = array.data


def connect(
    address: str,
    token: str | None = None,
    tls: TlsConfig | None = None,
    timeout: float = 3.0,
    *,
    about: Mapping[str, Any] | None = None,
    limits: FrameLimits = DEFAULT_LIMITS,
) -> Connection:
    """A connection to a listener at `"host:port"` or at the path of a unix socket.

    `about` describes this side to the other, after both have proved that they know the token.
    """
    deadline = deadline_after(timeout)
    connection = open_socket(address, timeout)
    return _establish(
        connection, handshake_as_client, token, tls, deadline, about, limits, parse_host(address)
    )


def accept_connection(
    connection: socket.socket,
    token: str | None = None,
    tls: TlsConfig | None = None,
    timeout: float = 3.0,
    *,
    about: Mapping[str, Any] | None = None,
    limits: FrameLimits = DEFAULT_LIMITS,
) -> Connection:
    """The handshake on an accepted socket; closes it if the client is refused."""
    deadline = deadline_after(timeout)
    return _establish(connection, handshake_as_server, token, tls, deadline, about, limits, None)


def _establish(
    connection: socket.socket,
    greet: Callable[..., PeerInfo],
    token: str | None,
    tls: TlsConfig | None,
    deadline: float | None,
    about: Mapping[str, Any] | None,
    limits: FrameLimits,
    host: str | None,
) -> Connection:
    """Before the handshake is complete, only small frames are accepted."""
    with closing_on_error(connection):
        if token == "":
            raise ValueError("an empty token would let everybody in; give a secret, or None for no token")
        peer = check_unix_peer(connection)
        stream, binding = wrap_tls(connection, tls, deadline, host)
        established = Connection(stream, HANDSHAKE_LIMITS)
        with closing_on_error(established):
            established.peer = greet(established, token, binding, deadline, about or {}, peer)
        established.limits = limits
        return established


def _allocate_aligned(nbytes: int) -> _Array:
    """64-byte aligned memory. Not recycled: freshly zeroed huge pages are in the cache when the bytes
    arrive, which was faster."""
    try:
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    except MemoryError:
        raise BadFrameError(f"there is no memory for a frame of {nbytes} bytes") from None
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes]


def _drop_sent(views: list[Any], count: int) -> list[Any]:
    """The views that remain after that many bytes were sent."""
    for number, view in enumerate(views):
        if count < len(view):
            return [memoryview(view)[count:], *views[number + 1 :]]
        count -= len(view)
    return []
