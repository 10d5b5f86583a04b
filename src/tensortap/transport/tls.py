"""TLS with the user's or a self-signed certificate, pinned by fingerprint; the user at the other end of a
loopback connection."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tensortap.core.errors import NotServingError, RefusedError

_VALIDITY_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The TLS configuration of one side. `fingerprint` is the listener's own, or the one a client
    requires."""

    context: ssl.SSLContext
    fingerprint: str = ""

    @property
    def is_listening(self) -> bool:
        return self.context.protocol == ssl.PROTOCOL_TLS_SERVER


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path


def server_tls(certificate: str | Path, key: str | Path) -> TlsConfig:
    """TLS of the listening side, from its certificate and key files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return TlsConfig(context, certificate_fingerprint(certificate))


def client_tls(fingerprint: str = "", authority: str | Path | None = None) -> TlsConfig:
    """TLS of the connecting side. With a fingerprint, only that certificate is trusted; without, one
    signed by `authority` for the host's name, or by one of the system's authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if fingerprint:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the fingerprint is checked instead
    elif authority is not None:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    return TlsConfig(context, _normalize_fingerprint(fingerprint))


def certificate_fingerprint(certificate: str | Path) -> str:
    """SHA-256 of the first certificate in the file, as 64 hex digits."""
    text = Path(certificate).read_text(encoding="ascii", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in text or end not in text:
        raise ValueError(f"{certificate} holds no certificate in PEM form")
    first = begin + text.split(begin, 1)[1].split(end, 1)[0] + end
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


def check_certificate(connection: ssl.SSLSocket, expected: str) -> str:
    """The fingerprint of the listener's certificate; raises if another is expected."""
    fingerprint = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if expected and fingerprint != expected:
        raise RefusedError(
            f"the listener's certificate has the fingerprint {fingerprint}, expected was {expected}; "
            "ask the listener for its fingerprint again, and by another way"
        )
    return fingerprint


def create_self_signed(folder: str | Path) -> CertificateFiles:
    """A self-signed certificate and key in that folder, created on first use by `openssl`."""
    pair = CertificateFiles(Path(folder, "certificate.pem"), Path(folder, "key.pem"))
    if pair.certificate.exists() and pair.key.exists():
        return pair
    program = shutil.which("openssl")
    if program is None:
        raise NotServingError(
            "a certificate cannot be made without the `openssl` program; install it, give the files of "
            "a certificate and key of your own, or forward the port with ssh"
        )
    pair.key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _run_openssl(program, pair)
    return pair


def _run_openssl(program: str, pair: CertificateFiles) -> None:
    # The key file is created private before anything is written to it.
    os.close(os.open(pair.key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    pair.key.chmod(0o600)
    arguments = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        _VALIDITY_DAYS,
    ]
    files = ["-subj", "/CN=tensortap", "-keyout", str(pair.key), "-out", str(pair.certificate)]
    finished = subprocess.run(
        [program, *arguments, *files], capture_output=True, text=True, timeout=60, check=False
    )
    if finished.returncode:
        pair.key.unlink(missing_ok=True)
        pair.certificate.unlink(missing_ok=True)
        raise NotServingError(f"openssl could not make a certificate: {finished.stderr.strip()[-300:]}")


def _normalize_fingerprint(fingerprint: str) -> str:
    """Accepts the format of `openssl x509 -fingerprint` and ours."""
    return fingerprint.rsplit("=", 1)[-1].replace(":", "").strip().lower()


_TCP_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_LOOPBACK_FAMILIES = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
_TCP_LISTEN = "0A"


class _TcpRow(NamedTuple):
    local: str
    remote: str
    state: str
    uid: int


def check_listener_user(address: str) -> None:
    """Refuse to send to a local port on which another user listens."""
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
    """Refuse a local process of another user."""
    if connection.family not in _TCP_TABLES:
        return
    mine, theirs = connection.getsockname(), connection.getpeername()
    family = _LOOPBACK_FAMILIES.get(theirs[0])
    if family is None:
        return
    endpoints = (_hex_address(family, theirs), _hex_address(family, mine))
    uids = {row.uid for row in _tcp_rows(family) if (row.local, row.remote) == endpoints}
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


def _hex_address(family: int, endpoint: tuple[str, int]) -> str:
    """As in /proc/net/tcp: each 4-byte word reversed."""
    raw = socket.inet_pton(family, endpoint[0])
    words = "".join(raw[at : at + 4][::-1].hex() for at in range(0, len(raw), 4))
    return f"{words.upper()}:{endpoint[1]:04X}"


def parse_host(address: str) -> str | None:
    """The host of `"host:port"`; None for the path of a unix socket."""
    if "/" in address and "://" not in address:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65535:
        raise ValueError(f"the address {address!r} is neither 'host:port' nor the path of a unix socket")
    return host.removeprefix("[").removesuffix("]")
