"""Links over real sockets: frames arrive whole, strangers do not get in, nothing hangs."""

import hmac
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

from tensortap.core.errors import NotServingError, RefusedError
from tensortap.transport.connection import Connection, accept_connection, connect
from tensortap.transport.frames import BadFrameError, FrameKind, FrameLimits, encode_head
from tensortap.transport.handshake import token_proof
from tensortap.transport.sockets import open_socket, wrap_tls
from tensortap.transport.tls import certificate_fingerprint, client_tls, create_self_signed, server_tls
from tensortap.transport.values import decode_from_wire, encode_for_wire

TIMEOUT = 20


@pytest.fixture
def ends():
    """Two links at the ends of one connection, closed after the test."""
    with ExitStack() as open_links:

        def make(**limits):
            one, other = (Connection(end, FrameLimits(**limits)) for end in socket.socketpair())
            open_links.callback(one.close)
            open_links.callback(other.close)
            return one, other

        yield make


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return create_self_signed(tmp_path_factory.mktemp("certificate"))


@contextmanager
def listening(address=None, **options):
    """Accept one connection and shake hands; gives the address and the future link."""
    listener = socket.create_server(("127.0.0.1", 0)) if address is None else unix_server(address)
    name = address or "127.0.0.1:{1}".format(*listener.getsockname())

    def accept():
        return accept_connection(listener.accept()[0], **options)

    with listener, ThreadPoolExecutor(1) as pool:
        yield name, pool.submit(accept)


def unix_server(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


@contextmanager
def linked(calling=None, accepting=None, address=None):
    with listening(address, **(accepting or {})) as (name, accepted):
        caller = connect(name, **(calling or {}))
        listener = accepted.result(TIMEOUT)
        try:
            yield caller, listener
        finally:
            caller.close()
            listener.close()


def raw_end(link_limits=None):
    """A plain socket, and the link at its other end."""
    one, other = socket.socketpair()
    return one, Connection(other, link_limits or FrameLimits())


def send_in_background(link, value, times=1):
    made = encode_for_wire(value)

    def send():
        for _ in range(times):
            link.send(FrameKind.DATA, made.meta, made.buffers)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


def for_ever(call):
    while True:
        call()


def assert_closed(connection):
    """What was said last may come first; a reset tells that not all of ours was read."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass


def unknown_frame(nbytes):
    """A frame of a kind that this version does not have."""
    fields = struct.pack("<2sBBIIQQ", b"TT", 1, 99, 0, 2, nbytes, 0)
    return fields + struct.pack("<I", zlib.crc32(fields)) + b"{}" + bytes(nbytes)


def test_a_frame_arrives_with_kind_meta_data_and_number(ends):
    one, other = ends()
    one.send(FrameKind.PING)
    size = one.send(FrameKind.DATA, {"name": "x"}, [np.arange(3, dtype=np.uint8), b"abc"])
    assert other.receive(TIMEOUT).kind is FrameKind.PING
    frame = other.receive(TIMEOUT)
    assert (frame.kind, frame.meta, bytes(frame.data), frame.seq) == (
        FrameKind.DATA,
        {"name": "x"},
        b"\0\1\2abc",
        1,
    )
    assert size == 32 + len('{"name":"x"}') + 6


def test_a_large_tensor_arrives_exactly_aligned_and_writable(ends):
    one, other = ends()
    value = torch.randn(3_000_000)
    sender = send_in_background(one, value)
    frame = other.receive(TIMEOUT)
    sender.join()
    assert frame.data.ctypes.data % 64 == 0
    assert frame.data.flags.writeable
    assert torch.equal(decode_from_wire(frame.meta, frame.data), value)


def test_a_frame_of_thousands_of_buffers_arrives(ends):
    one, other = ends()
    value = [torch.full((5,), float(number)) for number in range(3000)]
    sender = send_in_background(one, value)
    frame = other.receive(TIMEOUT)
    sender.join()
    assert [int(part[0]) for part in decode_from_wire(frame.meta, frame.data)] == list(range(3000))


def test_many_threads_send_through_one_link_and_every_frame_is_whole(ends):
    one, other = ends()
    senders = [send_in_background(one, np.full(50_000, number, np.uint8), 20) for number in range(4)]
    seen = [other.receive(TIMEOUT) for _ in range(80)]
    for sender in senders:
        sender.join()
    assert all(len(set(frame.data[::1000])) == 1 for frame in seen)
    assert [frame.seq for frame in seen] == list(range(80))


def test_both_sides_send_large_frames_at_once(ends):
    one, other = ends()
    senders = [send_in_background(link, np.ones(2_000_000)) for link in (one, other)]
    assert one.receive(TIMEOUT).data.nbytes == other.receive(TIMEOUT).data.nbytes == 16_000_000
    for sender in senders:
        sender.join()


def test_a_frame_that_comes_byte_by_byte_survives_every_timeout():
    raw, link = raw_end()
    made = encode_for_wire([torch.arange(3), "é"])
    frame = encode_head(FrameKind.DATA, made.meta, made.nbytes) + b"".join(made.buffers)
    for byte in frame[:-1]:
        raw.sendall(bytes([byte]))
        with pytest.raises(TimeoutError):
            link.receive(timeout=0)
    raw.sendall(frame[-1:])
    arrived = link.receive(timeout=0)
    assert decode_from_wire(arrived.meta, arrived.data)[1] == "é"
    raw.close()
    link.close()


def test_a_timeout_is_kept_and_does_not_close_the_link(ends):
    one, other = ends()
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        other.receive(timeout=0.1)
    assert 0.09 < time.monotonic() - begin < 5
    one.send(FrameKind.PING)
    assert other.receive().kind is FrameKind.PING  # and the limit is not left behind


def test_a_reader_that_takes_nothing_ends_a_send_at_its_timeout(ends):
    one, other = ends()
    with pytest.raises(TimeoutError):
        one.send(FrameKind.DATA, {}, [np.zeros(64 << 20, np.uint8)], timeout=0.2)
    assert one.is_closed  # half a frame has gone: nothing can follow it
    with pytest.raises(ConnectionError):
        for_ever(lambda: other.receive(TIMEOUT))


def test_a_timeout_before_the_first_byte_leaves_the_link_whole():
    one, link = raw_end()
    with pytest.raises(TimeoutError):
        for_ever(lambda: link.send(FrameKind.EVENT, {"text": "x" * 100}, timeout=0))
    assert not link.is_closed
    one.close()
    link.close()


def test_the_end_of_the_other_side_is_a_connection_error(ends):
    one, other = ends()
    one.close()
    with pytest.raises(ConnectionError, match="the other side closed the connection"):
        other.receive(TIMEOUT)
    with pytest.raises(ConnectionError, match="the link is closed"):
        other.send(FrameKind.PING)


def test_closing_wakes_a_thread_that_waits_and_may_be_done_twice(ends):
    one, other = ends()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.receive)
        one.send(FrameKind.PING)
        assert waiting.result(TIMEOUT).kind is FrameKind.PING
        waiting = pool.submit(other.receive)
        other.close()
        other.close()
        assert isinstance(waiting.exception(TIMEOUT), ConnectionError | OSError)


def test_a_kind_of_a_later_version_is_passed_over_with_its_data():
    raw, link = raw_end(FrameLimits(data=4 << 20))
    sender = threading.Thread(target=lambda: raw.sendall(unknown_frame(3 << 20) + encode_head(FrameKind.BYE)))
    sender.start()
    assert link.receive(TIMEOUT).kind is FrameKind.BYE
    sender.join()
    raw.close()
    link.close()


def test_what_is_announced_beyond_the_limits_is_refused_before_it_comes():
    raw, link = raw_end(FrameLimits(data=1000))
    raw.sendall(encode_head(FrameKind.DATA, {}, 1001))
    with pytest.raises(BadFrameError, match="1001 of data; allowed are 1048576 and 1000"):
        link.receive(TIMEOUT)
    assert link.is_closed
    raw.close()


def test_data_of_another_length_than_the_value_are_refused_before_they_come():
    raw, link = raw_end()
    raw.sendall(encode_head(FrameKind.DATA, {"tree": [["array", "numpy", "int8", [4]]]}, 3 << 30))
    with pytest.raises(BadFrameError, match="a value of 4 bytes comes with 3221225472 bytes"):
        link.receive(TIMEOUT)
    raw.close()


@pytest.mark.parametrize("nbytes", [0, 7, 9])
def test_data_of_another_length_are_refused_also_where_all_came_at_once(nbytes):
    raw, link = raw_end()
    with raw:
        raw.sendall(
            encode_head(FrameKind.DATA, {"tree": [["array", "numpy", "uint8", [8]]]}, nbytes) + bytes(nbytes)
        )
        with pytest.raises(BadFrameError, match=f"a value of 8 bytes comes with {nbytes} bytes of data"):
            link.receive(5)
        assert link.is_closed


def test_a_child_of_a_fork_lets_go_of_the_link_without_ending_it(ends):
    one, other = ends()
    child = os.fork()
    if not child:
        one.abandon()
        os._exit(0 if one.is_closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    one.send(FrameKind.PING)
    assert other.receive(TIMEOUT).kind is FrameKind.PING


@pytest.mark.parametrize("address", [None, "unix"])
def test_both_sides_learn_what_the_other_tells_of_itself(tmp_path, address):
    path = None if address is None else str(tmp_path / "s")
    with linked({"about": {"pid": 1}}, {"about": {"run": "r", "rank": 0}}, path) as (caller, listener):
        assert caller.peer.about == {"run": "r", "rank": 0}
        assert listener.peer.about == {"pid": 1}
        assert (listener.peer.uid, listener.peer.pid) == (
            (os.geteuid(), os.getpid()) if path else (None, None)
        )
        caller.send(FrameKind.DATA, {}, [bytes(10_000)])
        assert (
            listener.receive(TIMEOUT).data.nbytes == 10_000
        )  # the limits are no longer those of the greeting


def test_the_same_token_on_both_sides_links_them():
    with linked({"token": "secret"}, {"token": "secret"}) as (caller, listener):
        caller.send(FrameKind.PING)
        assert listener.receive(TIMEOUT).kind is FrameKind.PING


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ("wrong", "secret", "the other side refused: the token is not the listener's"),
        (None, "secret", "asks for a token, and none was given"),
        ("secret", None, "the listener has none, so it cannot prove who it is"),
    ],
    ids=["wrong", "none", "not asked for"],
)
def test_a_token_that_does_not_fit_is_refused(mine, theirs, told):
    with listening(token=theirs) as (address, accepted):
        with pytest.raises(RefusedError, match=told):
            connect(address, token=mine)
        assert isinstance(accepted.exception(TIMEOUT), RefusedError | ConnectionError)


def test_an_empty_token_is_no_secret():
    with pytest.raises(ValueError, match="would let everybody in"):
        accept_connection(socket.socket(), token="")


def test_a_proof_cannot_be_sent_back_to_the_one_who_gave_it():
    """Somebody without the token listens, and answers with what the caller itself has said."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def mirror():
            link = Connection(listener.accept()[0])
            hello = link.receive(TIMEOUT).meta
            link.send(FrameKind.HELLO, {**hello, "token": True})
            link.send(FrameKind.AUTH, link.receive(TIMEOUT).meta)
            return link

        mirrored = pool.submit(mirror)
        with pytest.raises(RefusedError, match="does not know the token"):
            connect("127.0.0.1:{1}".format(*listener.getsockname()), token="secret")
        mirrored.result(TIMEOUT).close()


def test_a_proof_is_what_the_specification_says():
    text = b"tensortap link 1\nconnect\n" + b"a" * 64 + b"\n" + b"b" * 64 + b"\nfingerprint"
    expected = hmac.new(b"secret", text, "sha256").hexdigest()
    assert token_proof("secret", "connect", ("a" * 64, "b" * 64), "fingerprint") == expected


def test_the_token_itself_is_never_sent():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        said = []

        def listen():
            link = Connection(listener.accept()[0])
            said.append(link.receive(TIMEOUT).meta)
            link.send(FrameKind.HELLO, {"versions": [1], "nonce": "ab" * 32, "token": True})
            said.append(link.receive(TIMEOUT).meta)
            link.close()

        heard = pool.submit(listen)
        with pytest.raises(OSError):
            connect("127.0.0.1:{1}".format(*listener.getsockname()), token="top-secret")
        heard.result(TIMEOUT)
    assert len(said) == 2
    assert "top-secret" not in str(said)


GREETING = {"versions": [1], "nonce": "ab" * 32}
HELLO = encode_head(FrameKind.HELLO, GREETING)
GARBAGE = {
    "http": (b"GET /data HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody\r\n\r\n", "looks like HTTP"),
    "tls": (b"\x16\x03\x01\x02\x00" + bytes(100), "looks like TLS"),
    "random": (random.Random(3).randbytes(100), "no frame of tensortap"),
    "data before greeting": (encode_head(FrameKind.DATA, {"tree": [1]}), "said DATA where HELLO belongs"),
    "large meta": (encode_head(FrameKind.HELLO, {**GREETING, "more": "x" * 5000}), "allowed are 4096 and 0"),
    "data in greeting": (encode_head(FrameKind.HELLO, GREETING, 1) + b"x", "allowed are 4096 and 0"),
    "large data in greeting": (encode_head(FrameKind.HELLO, GREETING, 4 << 30), "allowed are 4096 and 0"),
    "no nonce": (encode_head(FrameKind.HELLO, {"versions": [1]}), "has no nonce"),
    "odd nonce": (
        encode_head(FrameKind.HELLO, {**GREETING, "nonce": "ab\n" * 21 + "a"}),
        "not 64 hexadecimal digits",
    ),
    "other version": (encode_head(FrameKind.HELLO, {**GREETING, "versions": [7]}), r"speaks versions \[7\]"),
    "number for a proof": (HELLO + encode_head(FrameKind.AUTH, {"proof": 5}), "has no proof"),
    "odd text for a proof": (HELLO + encode_head(FrameKind.AUTH, {"proof": "\ud800"}), "wrong token"),
    "without a proof": (HELLO + encode_head(FrameKind.OK, {"about": {}}), "said OK where AUTH belongs"),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_stranger_is_refused_and_its_connection_closed(garbage):
    said, told = GARBAGE[garbage]
    with listening(token="secret") as (address, accepted):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as stranger:
            stranger.sendall(said)
            with pytest.raises((BadFrameError, RefusedError), match=told):
                accepted.result(TIMEOUT)
            assert_closed(stranger)


HALF_A_HEADER = encode_head(FrameKind.HELLO)[:20]


@pytest.mark.parametrize("said", [b"", HALF_A_HEADER], ids=["none", "half"])
def test_a_stranger_that_says_nothing_is_let_go_at_the_deadline(said):
    with listening(timeout=0.2) as (address, accepted):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as stranger:
            stranger.sendall(said)
            assert isinstance(accepted.exception(TIMEOUT), TimeoutError)
            assert stranger.recv(1000) == b""


def test_a_stranger_that_floods_with_kinds_we_do_not_know_is_let_go_at_the_deadline():
    flood = unknown_frame(0) * 1000
    with listening(timeout=0.3) as (address, accepted):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as stranger:
            with pytest.raises(OSError):
                for_ever(lambda: stranger.sendall(flood))
            assert isinstance(accepted.exception(TIMEOUT), TimeoutError)


def test_nobody_listens_where_nobody_listens(tmp_path):
    with pytest.raises(OSError):
        connect(str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["host", "host:port", ":1", "host:70000", "tcp://host:1x", ""])
def test_an_address_that_is_none_is_refused_with_a_sentence(address):
    with pytest.raises(ValueError, match="neither 'host:port' nor the path of a unix socket"):
        connect(address)


OTHER_USER = """
import os, socket, sys
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(connection.recv(100))
"""


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_at_a_unix_socket():
    path = f"/tmp/tensortap-test-{os.getpid()}.sock"  # where another user may go
    try:
        with listening(path) as (_, accepted):
            os.chmod(path, 0o777)
            stranger = subprocess.run(
                [sys.executable, "-c", OTHER_USER, path], capture_output=True, timeout=TIMEOUT, check=False
            )
            with pytest.raises(RefusedError, match="of user 65534 is at the other end of a socket of user 0"):
                accepted.result(TIMEOUT)
    finally:
        os.unlink(path)
    assert stranger.stdout == b"b''\n", stranger.stderr


def test_with_tls_a_pinned_certificate_and_a_token_frames_go_both_ways_at_once(pair):
    server = server_tls(*pair)
    tls = client_tls(certificate_fingerprint(pair.certificate))
    with linked({"tls": tls, "token": "t"}, {"tls": server, "token": "t"}) as (caller, listener):
        senders = [send_in_background(link, np.arange(1_000_000), 2) for link in (caller, listener)]
        for link in (caller, listener) * 2:
            frame = link.receive(TIMEOUT)
            assert decode_from_wire(frame.meta, frame.data)[-1] == 999_999
        for sender in senders:
            sender.join()
        with pytest.raises(TimeoutError):
            caller.receive(timeout=0.05)


def test_openssls_way_of_writing_a_fingerprint_is_understood(pair):
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", str(pair.certificate)]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert client_tls(written).fingerprint == certificate_fingerprint(pair.certificate)


@pytest.mark.parametrize(
    ("tls", "told"),
    [(lambda: client_tls("ab" * 32), "expected was abab"), (client_tls, "certificate is not trusted")],
    ids=["another fingerprint", "unknown authority"],
)
def test_another_certificate_than_the_expected_one_is_refused(pair, tls, told):
    with listening(tls=server_tls(*pair)) as (address, accepted):
        with pytest.raises(RefusedError, match=told):
            connect(address, tls=tls())
        assert accepted.exception(TIMEOUT)


def test_one_side_with_tls_and_one_without_do_not_link(pair):
    with listening(tls=server_tls(*pair)) as (address, accepted):
        with pytest.raises((OSError, BadFrameError)):
            connect(address)
        assert "do both sides use it?" in str(accepted.exception(TIMEOUT))
    with listening() as (address, accepted):
        with pytest.raises(OSError):
            connect(address, tls=client_tls("ab" * 32))
        assert "looks like TLS" in str(accepted.exception(TIMEOUT))


def test_a_proof_of_the_token_does_not_pass_somebody_in_between(pair, tmp_path):
    """Who shows the caller a certificate of its own cannot pass the caller's proof on to the listener."""
    between = create_self_signed(tmp_path)
    trusting = client_tls(certificate_fingerprint(between.certificate))  # the caller was given the wrong one
    real = {"token": "secret", "tls": server_tls(*pair)}
    with listening(**real) as (address, accepted), socket.create_server(("127.0.0.1", 0)) as trap:
        with ThreadPoolExecutor(1) as pool:
            relay = pool.submit(pass_on, trap, server_tls(*between), address, pair)
            with pytest.raises((RefusedError, ConnectionError)):
                connect("127.0.0.1:{1}".format(*trap.getsockname()), "secret", trusting)
            relay.result(TIMEOUT)
        assert isinstance(accepted.exception(TIMEOUT), RefusedError)


def pass_on(trap, tls, address, pair):
    """Decrypt what comes, and pass it on in both directions until somebody hangs up."""
    inner = wrap_tls(trap.accept()[0], tls, None, None)[0]
    outer = wrap_tls(
        open_socket(address, TIMEOUT), client_tls(certificate_fingerprint(pair.certificate)), None, "x"
    )[0]
    links = {"caller": Connection(inner), "listener": Connection(outer)}
    try:
        for one, other in [("caller", "listener"), ("listener", "caller")] * 2:
            frame = links[one].receive(TIMEOUT)
            links[other].send(frame.kind, frame.meta)
    except OSError:
        pass
    finally:
        links["caller"].close()
        links["listener"].close()


def test_a_certificate_is_made_once_and_its_key_is_the_users_own(tmp_path):
    first = create_self_signed(tmp_path / "new")
    made = first.certificate.read_bytes()
    assert first.key.stat().st_mode & 0o777 == 0o600
    assert create_self_signed(tmp_path / "new") == first
    assert first.certificate.read_bytes() == made


def test_without_the_openssl_program_a_sentence_tells_what_else_can_be_done(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotServingError, match=r"without the `openssl` program; .* forward the port with ssh"):
        create_self_signed(tmp_path / "new")


def test_a_file_without_a_certificate_is_named(tmp_path):
    (tmp_path / "c.pem").write_text("nothing")
    with pytest.raises(ValueError, match="holds no certificate"):
        certificate_fingerprint(tmp_path / "c.pem")


READER = """
import socket, sys
from tensortap.transport.connection import Connection
link = Connection(socket.socket(fileno=int(sys.argv[1])))
for _ in range(4):
    assert link.receive().data.nbytes == 8 << 20
    print("got", flush=True)
"""


@pytest.mark.process
def test_a_stopped_reader_is_waited_for_and_goes_on_where_it_was():
    one, other = socket.socketpair()
    command = [sys.executable, "-c", READER, str(other.fileno())]
    reader = subprocess.Popen(command, pass_fds=[other.fileno()], stdout=subprocess.PIPE)
    other.close()
    link, data = Connection(one), bytes(8 << 20)
    with reader, ThreadPoolExecutor(1) as pool:
        link.send(FrameKind.DATA, {}, [data], timeout=TIMEOUT)
        assert reader.stdout.readline() == b"got\n"
        reader.send_signal(signal.SIGSTOP)
        sending = pool.submit(
            lambda: [link.send(FrameKind.DATA, {}, [data], timeout=TIMEOUT) for _ in range(3)]
        )
        with pytest.raises(TimeoutError):
            sending.result(0.2)
        reader.send_signal(signal.SIGCONT)
        sending.result(TIMEOUT)
        assert reader.stdout.read() == b"got\n" * 3
    assert reader.returncode == 0
    link.close()
