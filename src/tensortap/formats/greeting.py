"""Who is there: versions, the peer's user and a proof of the token, before anything else is said or read."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, Protocol

from tensortap.core.errors import RefusedError
from tensortap.formats.streams import remaining
from tensortap.formats.wire import VERSION, Kind, Limits

Role = Literal["connect", "accept"]
GREETING = Limits(meta=4096, data=0, json_depth=4)
_PURPOSE = b"tensortap link 1"
_NONCE_NBYTES = 32
_NONCE = re.compile(f"[0-9a-f]{{{2 * _NONCE_NBYTES}}}")
_CREDENTIALS = struct.Struct("@iii")
_PEER_OPTION = getattr(socket, "SO_PEERCRED", None)
log = logging.getLogger("tensortap.link")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side: its process and user where the system tells them, and what it says of itself."""

    pid: int | None = None
    uid: int | None = None
    about: dict[str, Any] = field(default_factory=dict)


class Talk(Protocol):
    def send(
        self, kind: Kind, meta: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> int: ...

    def receive(self, timeout: float | None = None) -> Any: ...


def check_peer(connection: socket.socket) -> Peer:
    """The process behind a unix socket; another user's is refused, but for root's."""
    if connection.family != socket.AF_UNIX or _PEER_OPTION is None:
        return Peer()
    told = connection.getsockopt(socket.SOL_SOCKET, _PEER_OPTION, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(told)
    if uid not in (os.geteuid(), 0):
        raise RefusedError(
            f"process {pid} of user {uid} is at the other end of a socket of user {os.geteuid()}; "
            "only the same user and root may link"
        )
    if uid != os.geteuid():
        log.warning("process %d of root has linked to a process of user %d", pid, os.geteuid())
    return Peer(pid, uid)


def greet_acceptor(
    link: Talk, token: str | None, binding: str, deadline: float | None, about: Mapping[str, Any], peer: Peer
) -> Peer:
    """Speak first, as the side that connected."""
    mine = secrets.token_hex(_NONCE_NBYTES)
    link.send(Kind.HELLO, {"versions": [VERSION], "nonce": mine}, timeout=remaining(deadline))
    hello = _expect(link, Kind.HELLO, deadline)
    _check_version(hello)
    _check_need(token, bool(hello.get("token")))
    nonces = (mine, _nonce(hello))
    if token:
        link.send(Kind.AUTH, {"proof": proof(token, "connect", nonces, binding)}, timeout=remaining(deadline))
        answer = _expect(link, Kind.AUTH, deadline)
        if not _is_proved(answer, token, "accept", nonces, binding):
            raise RefusedError("the listener does not know the token; do not trust what is at that address")
    link.send(Kind.OK, {"about": about}, timeout=remaining(deadline))
    return replace(peer, about=_about(_expect(link, Kind.OK, deadline)))


def greet_connector(
    link: Talk, token: str | None, binding: str, deadline: float | None, about: Mapping[str, Any], peer: Peer
) -> Peer:
    """Answer, as the side that accepted."""
    hello = _expect(link, Kind.HELLO, deadline)
    mine = secrets.token_hex(_NONCE_NBYTES)
    own = {"versions": [VERSION], "nonce": mine, "token": bool(token)}
    link.send(Kind.HELLO, own, timeout=remaining(deadline))
    _check_version(hello)
    nonces = (_nonce(hello), mine)
    if token:
        if not _is_proved(_expect(link, Kind.AUTH, deadline), token, "connect", nonces, binding):
            _turn_away(link, deadline)
        link.send(Kind.AUTH, {"proof": proof(token, "accept", nonces, binding)}, timeout=remaining(deadline))
    told = _about(_expect(link, Kind.OK, deadline))
    link.send(Kind.OK, {"about": about}, timeout=remaining(deadline))
    return replace(peer, about=told)


def proof(token: str, role: Role, nonces: tuple[str, str], binding: str) -> str:
    """Shows that this side knows the token. Both nonces make it good once, the role keeps it from being
    sent back, and the certificate's fingerprint from being passed on by somebody in between."""
    said = "\n".join((role, *nonces, binding)).encode()
    return hmac.new(token.encode(), _PURPOSE + b"\n" + said, "sha256").hexdigest()


def _is_proved(answer: dict[str, Any], token: str, role: Role, nonces: tuple[str, str], binding: str) -> bool:
    expected = proof(token, role, nonces, binding)
    return hmac.compare_digest(expected.encode(), _text(answer, "proof").encode("utf-8", "replace"))


def _turn_away(link: Talk, deadline: float | None) -> NoReturn:
    link.send(Kind.ERR, {"error": "the token is not the listener's"}, timeout=remaining(deadline))
    raise RefusedError("somebody connected with a wrong token, and was refused")


def _check_version(hello: dict[str, Any]) -> None:
    versions = hello.get("versions")
    if type(versions) is not list or VERSION not in versions:
        raise RefusedError(
            f"the other side speaks versions {_shown(versions)} of the protocol, this one {VERSION}; "
            "use the same tensortap on both"
        )


def _check_need(token: str | None, is_asked: bool) -> None:
    if is_asked and not token:
        raise RefusedError("the listener asks for a token, and none was given; see its message at the start")
    if token and not is_asked:
        raise RefusedError(
            "a token was given, but the listener has none, so it cannot prove who it is; "
            "start it with the token, or connect without"
        )


def _expect(link: Talk, kind: Kind, deadline: float | None) -> dict[str, Any]:
    frame = link.receive(remaining(deadline))
    if frame.kind is Kind.ERR:
        raise RefusedError(f"the other side refused: {_shown(frame.meta.get('error'))}")
    if frame.kind is not kind:
        raise RefusedError(f"the other side said {frame.kind.name} where {kind.name} belongs")
    meta: dict[str, Any] = frame.meta
    return meta


def _about(meta: dict[str, Any]) -> dict[str, Any]:
    about = meta.get("about", {})
    return about if type(about) is dict else {}


def _nonce(hello: dict[str, Any]) -> str:
    """Of a fixed form, so that no two greetings give a proof of the same text."""
    nonce = _text(hello, "nonce")
    if _NONCE.fullmatch(nonce) is None:
        raise RefusedError(f"the other side's nonce is not {2 * _NONCE_NBYTES} hexadecimal digits")
    return nonce


def _text(meta: dict[str, Any], key: str) -> str:
    text = meta.get(key)
    if type(text) is not str or not text:
        raise RefusedError(f"the other side's greeting has no {key}")
    return text


def _shown(said: Any) -> str:
    """What a stranger said, fit for a terminal."""
    return "".join(one if one.isprintable() else "?" for one in str(said))[:300]
