"""Whose process is at the other end of a TCP connection within this machine, where the system tells."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from tensortap.core.errors import RefusedError
from tensortap.formats.dialing import parse_host

_TCP_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_LOOPBACK_FAMILIES = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
_TCP_LISTEN = "0A"


class _TcpRow(NamedTuple):
    local: str
    remote: str
    state: str
    uid: int


def check_listener_user(address: str) -> None:
    """Refuse to send to a port of this machine that another user listens at."""
    host = parse_host(address)
    family = _LOOPBACK_FAMILIES.get(host or "")
    if family is None:
        return
    port = f":{int(address.rpartition(':')[2]):04X}"
    uids = {row.uid for row in _tcp_rows(family) if row.state == _TCP_LISTEN and row.local.endswith(port)}
    if uids and not uids & _allowed_uids():
        raise RefusedError(
            f"user {min(uids)} listens at {address}, and this is user {os.geteuid()}; values go to the same "
            "user's session only, unless both sides have a token"
        )


def check_client_user(connection: socket.socket) -> None:
    """Refuse a process of another user on this machine."""
    if connection.family not in _TCP_TABLES:
        return
    mine, theirs = connection.getsockname(), connection.getpeername()
    family = _LOOPBACK_FAMILIES.get(theirs[0])
    if family is None:
        return
    wanted = (_hex_address(family, theirs), _hex_address(family, mine))
    uids = {row.uid for row in _tcp_rows(family) if (row.local, row.remote) == wanted}
    if uids and not uids & _allowed_uids():
        raise RefusedError(
            f"a process of user {min(uids)} connected, and this is user {os.geteuid()}; values come from the "
            "same user's jobs only, unless both sides have a token"
        )


def _allowed_uids() -> set[int]:
    return {os.geteuid(), 0}


def _tcp_rows(family: int) -> Iterator[_TcpRow]:
    try:
        with open(_TCP_TABLES[socket.AddressFamily(family)], encoding="ascii") as table:
            next(table)
            for line in table:
                _, local, remote, state, *_, uid = line.split(maxsplit=8)[:8]
                yield _TcpRow(local, remote, state, int(uid))
    except (OSError, StopIteration, ValueError):
        return


def _hex_address(family: int, place: tuple[str, int]) -> str:
    """As the table has it: each word of four bytes turned round."""
    raw = socket.inet_pton(family, place[0])
    words = "".join(raw[at : at + 4][::-1].hex() for at in range(0, len(raw), 4))
    return f"{words.upper()}:{place[1]:04X}"
