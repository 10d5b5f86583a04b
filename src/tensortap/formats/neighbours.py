"""Whose process is at the other end of a TCP connection within this machine, where the system tells."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from tensortap.core.errors import RefusedError
from tensortap.formats.dialing import host_of

_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_LOOPBACK = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
_LISTENS = "0A"


class _Row(NamedTuple):
    local: str
    remote: str
    state: str
    uid: int


def check_listener(address: str) -> None:
    """Refuse to send to a port of this machine that another user listens at."""
    host = host_of(address)
    family = _LOOPBACK.get(host or "")
    if family is None:
        return
    port = f":{int(address.rpartition(':')[2]):04X}"
    uids = {row.uid for row in _rows(family) if row.state == _LISTENS and row.local.endswith(port)}
    if uids and not uids & _allowed():
        raise RefusedError(
            f"user {min(uids)} listens at {address}, and this is user {os.geteuid()}; values go to the same "
            "user's session only, unless both sides have a token"
        )


def check_caller(connection: socket.socket) -> None:
    """Refuse a process of another user on this machine."""
    if connection.family not in _TABLES:
        return
    mine, theirs = connection.getsockname(), connection.getpeername()
    family = _LOOPBACK.get(theirs[0])
    if family is None:
        return
    wanted = (_cell(family, theirs), _cell(family, mine))
    uids = {row.uid for row in _rows(family) if (row.local, row.remote) == wanted}
    if uids and not uids & _allowed():
        raise RefusedError(
            f"a process of user {min(uids)} connected, and this is user {os.geteuid()}; values come from the "
            "same user's jobs only, unless both sides have a token"
        )


def _allowed() -> set[int]:
    return {os.geteuid(), 0}


def _rows(family: int) -> Iterator[_Row]:
    try:
        with open(_TABLES[socket.AddressFamily(family)], encoding="ascii") as table:
            next(table)
            for line in table:
                _, local, remote, state, *_, uid = line.split(maxsplit=8)[:8]
                yield _Row(local, remote, state, int(uid))
    except (OSError, StopIteration, ValueError):
        return


def _cell(family: int, place: tuple[str, int]) -> str:
    """As the table has it: each word of four bytes turned round."""
    raw = socket.inet_pton(family, place[0])
    words = "".join(raw[at : at + 4][::-1].hex() for at in range(0, len(raw), 4))
    return f"{words.upper()}:{place[1]:04X}"
