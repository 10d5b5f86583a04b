"""The handshake: protocol versions, the peer's user, and a proof of the token before anything else.

The token is read from the environment or from a private file of the user.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from tensortap.core.errors import RefusedError
from tensortap.core.settings import setting
from tensortap.transport.frames import WIRE_VERSION, FrameKind, FrameLimits
from tensortap.transport.sockets import remaining_seconds

Role = Literal["connect", "accept"]
HANDSHAKE_LIMITS = FrameLimits(meta=4096, data=0, json_depth=4)
_PURPOSE = b"tensortap link 1"
_NONCE_NBYTES = 32
_NONCE = re.compile(f"[0-9a-f]{{{2 * _NONCE_NBYTES}}}")
_CREDENTIALS = struct.Struct("@iii")
_PEER_OPTION = getattr(socket, "SO_PEERCRED", None)
log = logging.getLogger("tensortap.link")


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The peer: its pid and uid if the system provides them, and how it describes itself."""

    pid: int | None = None
    uid: int | None = None
    about: dict[str, Any] = field(default_factory=dict)


class FrameChannel(Protocol):
    def send(
        self, kind: FrameKind, meta: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> int: ...

    def receive(self, timeout: float | None = None) -> Any: ...


def check_unix_peer(connection: socket.socket) -> PeerInfo:
    """The peer process of a unix socket; other users are refused, except root."""
    if connection.family != socket.AF_UNIX or _PEER_OPTION is None:
        return PeerInfo()
    credentials = connection.getsockopt(socket.SOL_SOCKET, _PEER_OPTION, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid not in (os.geteuid(), 0):
        raise RefusedError(
            f"process {pid} of user {uid} is at the other end of a socket of user {os.geteuid()}; "
            "only the same user and root may link"
        )
    if uid != os.geteuid():
        log.warning("process %d of root has linked to a process of user %d", pid, os.geteuid())
    return PeerInfo(pid, uid)


def handshake_as_client(
    channel: FrameChannel,
    token: str | None,
    binding: str,
    deadline: float | None,
    about: Mapping[str, Any],
    peer: PeerInfo,
) -> PeerInfo:
    """Speak first, as the side that connected."""
    mine = secrets.token_hex(_NONCE_NBYTES)
    channel.send(
        FrameKind.HELLO, {"versions": [WIRE_VERSION], "nonce": mine}, timeout=remaining_seconds(deadline)
    )
    hello = _expect_frame(channel, FrameKind.HELLO, deadline)
    _check_version(hello)
    _check_token_requirement(token, bool(hello.get("token")))
    nonces = (mine, _read_nonce(hello))
    if token:
        channel.send(
            FrameKind.AUTH,
            {"proof": token_proof(token, "connect", nonces, binding)},
            timeout=remaining_seconds(deadline),
        )
        answer = _expect_frame(channel, FrameKind.AUTH, deadline)
        if not _verify_proof(answer, token, "accept", nonces, binding):
            raise RefusedError("the listener does not know the token; do not trust what is at that address")
    channel.send(FrameKind.OK, {"about": about}, timeout=remaining_seconds(deadline))
    return replace(peer, about=_read_about(_expect_frame(channel, FrameKind.OK, deadline)))


def handshake_as_server(
    channel: FrameChannel,
    token: str | None,
    binding: str,
    deadline: float | None,
    about: Mapping[str, Any],
    peer: PeerInfo,
) -> PeerInfo:
    """Respond, as the side that accepted."""
    hello = _expect_frame(channel, FrameKind.HELLO, deadline)
    mine = secrets.token_hex(_NONCE_NBYTES)
    own = {"versions": [WIRE_VERSION], "nonce": mine, "token": bool(token)}
    channel.send(FrameKind.HELLO, own, timeout=remaining_seconds(deadline))
    _check_version(hello)
    nonces = (_read_nonce(hello), mine)
    if token:
        if not _verify_proof(
            _expect_frame(channel, FrameKind.AUTH, deadline), token, "connect", nonces, binding
        ):
            _reject(channel, deadline)
        channel.send(
            FrameKind.AUTH,
            {"proof": token_proof(token, "accept", nonces, binding)},
            timeout=remaining_seconds(deadline),
        )
    peer_about = _read_about(_expect_frame(channel, FrameKind.OK, deadline))
    channel.send(FrameKind.OK, {"about": about}, timeout=remaining_seconds(deadline))
    return replace(peer, about=peer_about)


def token_proof(token: str, role: Role, nonces: tuple[str, str], binding: str) -> str:
    """An HMAC that proves knowledge of the token. The nonces prevent replay, the role prevents reflection,
    and the certificate's fingerprint prevents relaying by a man in the middle."""
    message = "\n".join((role, *nonces, binding)).encode()
    return hmac.new(token.encode(), _PURPOSE + b"\n" + message, "sha256").hexdigest()


def _verify_proof(
    answer: dict[str, Any], token: str, role: Role, nonces: tuple[str, str], binding: str
) -> bool:
    expected = token_proof(token, role, nonces, binding)
    return hmac.compare_digest(expected.encode(), _read_string(answer, "proof").encode("utf-8", "replace"))


def _reject(channel: FrameChannel, deadline: float | None) -> NoReturn:
    channel.send(
        FrameKind.ERR, {"error": "the token is not the listener's"}, timeout=remaining_seconds(deadline)
    )
    raise RefusedError("somebody connected with a wrong token, and was refused")


def _check_version(hello: dict[str, Any]) -> None:
    versions = hello.get("versions")
    if type(versions) is not list or WIRE_VERSION not in versions:
        raise RefusedError(
            f"the other side speaks versions {_sanitize(versions)} of the protocol, this one {WIRE_VERSION}; "
            "use the same tensortap on both"
        )


def _check_token_requirement(token: str | None, is_asked: bool) -> None:
    if is_asked and not token:
        raise RefusedError("the listener asks for a token, and none was given; see its message at the start")
    if token and not is_asked:
        raise RefusedError(
            "a token was given, but the listener has none, so it cannot prove who it is; "
            "start it with the token, or connect without"
        )


def _expect_frame(channel: FrameChannel, kind: FrameKind, deadline: float | None) -> dict[str, Any]:
    frame = channel.receive(remaining_seconds(deadline))
    if frame.kind is FrameKind.ERR:
        raise RefusedError(f"the other side refused: {_sanitize(frame.meta.get('error'))}")
    if frame.kind is not kind:
        raise RefusedError(f"the other side said {frame.kind.name} where {kind.name} belongs")
    meta: dict[str, Any] = frame.meta
    return meta


def _read_about(meta: dict[str, Any]) -> dict[str, Any]:
    about = meta.get("about", {})
    return about if type(about) is dict else {}


def _read_nonce(hello: dict[str, Any]) -> str:
    """Of a fixed length, so that the concatenation in a proof is unambiguous."""
    nonce = _read_string(hello, "nonce")
    if _NONCE.fullmatch(nonce) is None:
        raise RefusedError(f"the other side's nonce is not {2 * _NONCE_NBYTES} hexadecimal digits")
    return nonce


def _read_string(meta: dict[str, Any], key: str) -> str:
    text = meta.get(key)
    if type(text) is not str or not text:
        raise RefusedError(f"the other side's greeting has no {key}")
    return text


def _sanitize(message: Any) -> str:
    """Untrusted text, made safe for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(message))[:300]


_TOKEN_FILE = Path(".config", "tensortap", "token")


def read_token() -> str | None:
    """`THING_TOKEN`, else the first line of `~/.config/tensortap/token`; None if neither exists."""
    return setting("THING_TOKEN") or _read_token_file(Path.home() / _TOKEN_FILE)


def _read_token_file(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise RefusedError(f"the token in {path} can be read by others; chmod 600 it, and change it")
            return file.readline().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
