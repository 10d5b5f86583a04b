"""A listener takes values from jobs it knows, refuses everything else with a sentence, and goes on."""

import socket
import threading
import time

import numpy as np
import pytest

from tensortap.core.errors import NotServingError, RefusedError
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.sinks.stream import Stream
from tensortap.sources import listener as listening
from tensortap.sources.listener import Listener
from tensortap.transport.connection import Connection, connect
from tensortap.transport.frames import HEADER_NBYTES, FrameKind, encode_head
from tensortap.transport.handshake import PeerInfo, handshake_as_client
from tensortap.transport.tls import client_tls, create_self_signed, server_tls


@pytest.fixture
def serve():
    """Start a listener; its memory is what arrived."""
    taps = []

    def start(**options):
        listener = Listener(**options)
        listener.memory = Memory(keep=None)
        taps.append(Tap(sinks=[listener.memory], on_error="log").attach(listener))
        return listener

    yield start
    for tap in taps:
        tap.close()


@pytest.fixture
def send():
    """Send a record, and say whether it arrived."""
    streams = []

    def send(listener, record, **options):
        streams.append(Stream(listener.address, **options))
        return streams[-1].send(record).wait(10)

    yield send
    for stream in streams:
        stream.close()


def test_a_record_arrives_with_all_that_is_known_of_it(serve, send):
    listener = serve()
    sent = Record("x", np.arange(3), kind="output", step=4, rank=2, call=1, order=9, time=1.5)
    assert send(listener, sent)
    (got,) = listener.memory.records
    assert got.with_value(None) == sent.with_value(None)
    assert got.value.tolist() == [0, 1, 2]


def test_a_producer_is_known_by_what_it_says_of_itself(serve, send):
    listener = serve()
    send(listener, Record("x", np.zeros(1000), time=time.time()))
    (job,) = listener.producers
    assert job.is_connected
    assert (job.values, job.nbytes) == (1, 8000)
    assert job.about["rank"] == 0
    assert 0 <= job.lag < 5
    assert job.rate > 0


def test_several_jobs_send_to_one_session(serve, send):
    listener = serve()
    arrived = [send(listener, Record(str(number), number)) for number in range(8)]
    assert arrived == [True] * 8
    assert [record.value for record in listener.memory.records] == list(range(8))
    assert sum(job.is_connected for job in listener.producers) == 8


def test_a_second_listener_at_the_port_is_refused_with_a_sentence(serve):
    port = serve().port
    with pytest.raises(NotServingError, match=f"port {port} of .* is taken, perhaps by another session"):
        serve(port=port)


def test_a_port_that_cannot_be_is_refused_with_a_sentence(serve):
    with pytest.raises(NotServingError, match=":70000: a port is a number below 65536"):
        serve(port=70000)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 32, "looks like HTTP"),
        (b"\0" * 64, "no frame of tensortap"),
        (encode_head(FrameKind.DATA, {"name": "x", "tree": [1]}), "said DATA where HELLO belongs"),
        (encode_head(FrameKind.HELLO, {"versions": [99], "nonce": "x"}), "speaks versions"),
    ],
    ids=["HTTP", "zeros", "data", "version"],
)
def test_whoever_does_not_greet_is_refused_and_the_service_goes_on(serve, send, caplog, said, told):
    listener = serve()
    with socket.create_connection(("127.0.0.1", listener.port), 5) as stranger:
        stranger.sendall(said)
        answer = b""
        while more := _received(stranger):
            answer += more
    _until(lambda: told in caplog.text)
    assert b"OK" not in answer
    assert send(listener, Record("x", 1))


def _received(connection):
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_frame_that_says_too_much_ends_its_own_connection_only(serve, send, caplog):
    listener = serve()
    listener.allow(1 << 20)
    link = connect(listener.address)
    tree = [["array", "numpy", "uint8", [1 << 30]]]
    link._stream.send([encode_head(FrameKind.DATA, {"name": "x", "tree": tree}, 1 << 30)], None)
    with pytest.raises(OSError):
        link.receive(5)
    link.close()
    _until(lambda: "allowed are 1048576" in caplog.text)
    assert send(listener, Record("x", 1))


def test_a_wrong_token_and_no_token_get_nothing_in(serve, send, caplog):
    listener = serve(token="open sesame")
    assert not send(listener, Record("x", 1), token="guess")
    assert not send(listener, Record("x", 1))
    assert send(listener, Record("x", 2), token="open sesame")
    assert [record.value for record in listener.memory.records] == [2]
    assert "the token is not the listener's" in caplog.text
    assert "asks for a token" in caplog.text
    assert "sesame" not in caplog.text


def test_values_travel_through_tls_to_the_certificate_that_was_named(serve, send, tmp_path):
    tls = server_tls(*create_self_signed(tmp_path))
    listener = serve(tls=tls, token="t")
    assert send(listener, Record("x", np.zeros(100_000)), token="t", tls=client_tls(tls.fingerprint))
    assert not send(listener, Record("x", 1), token="t", tls=client_tls("00" * 32))


@pytest.mark.parametrize("options", [{}, {"token": "t"}, {"insecure": True}])
def test_another_interface_needs_a_token_and_tls_or_a_word(options):
    with pytest.raises(RefusedError, match="listening at 0"):
        Listener("0.0.0.0", **options)


def test_a_token_and_the_word_open_another_interface(serve, send):
    listener = serve(host="0.0.0.0", token="t", insecure=True)
    listener.host = "127.0.0.1"
    assert send(listener, Record("x", 1), token="t")


def test_one_connection_too_many_is_turned_away(serve, monkeypatch, caplog):
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 3)
    listener = serve()
    links = [connect(listener.address) for _ in range(3)]
    with pytest.raises(OSError):
        connect(listener.address)
    links.pop().close()
    _until(lambda: len(listener._connections) == 2)
    links.append(connect(listener.address))
    for link in links:
        link.close()
    assert "3 jobs are connected; one more was turned away" in caplog.text


def test_an_idle_listener_uses_no_processor(serve, send):
    listener = serve()
    send(listener, Record("x", 1))
    began = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - began < 0.02


def test_stopping_closes_the_port_and_all_connections(serve):
    listener = serve()
    links = [connect(listener.address) for _ in range(3)]
    listener.stop()
    for link in links:
        with pytest.raises(OSError):
            link.receive(5)
        link.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port), 5)
    assert not listener._threads


@pytest.mark.law
def test_ten_thousand_random_frames_do_no_harm(serve, send, caplog):
    """Random bytes, and frames with a few bytes changed; each is read by the parser, or it does not count."""
    listener = serve(token="secret")
    listener.allow(1 << 20)
    draw = np.random.default_rng(0)
    for _ in range(9_000):
        _pester(socket.create_connection(("127.0.0.1", listener.port), 5), _garbage(HELLO, draw))
    _until(lambda: listener.refused == 9_000)
    for _ in range(1_000):
        acquaintance = socket.create_connection(("127.0.0.1", listener.port), 5)
        handshake_as_client(Connection(acquaintance), "secret", "", None, {}, PeerInfo())
        _pester(acquaintance, _garbage(DATA, draw))
    assert send(listener, Record("x", 1), token="secret")
    _until(lambda: sum(job.is_connected for job in listener.producers) == 1)
    assert "Traceback" not in caplog.text


HELLO = encode_head(FrameKind.HELLO, {"versions": [1], "nonce": "x" * 64})
DATA = encode_head(
    FrameKind.DATA, {"name": "x", "tree": [["array", "numpy", "uint8", [8]]], "number": 1}, 8
) + bytes(8)


def _pester(stranger, garbage):
    """Say that much and no more, and wait until the other side has had enough of it."""
    with stranger:
        stranger.settimeout(10)
        try:
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass  # it did not even hear us out


def _garbage(frame, draw):
    """Half of it has a header that is right, so that what follows is read as well."""
    way = draw.integers(4)
    if way == 0:
        return draw.bytes(HEADER_NBYTES)
    changed = bytearray(frame)
    first = 0 if way == 1 else HEADER_NBYTES
    for _ in range(draw.integers(1, 4)):
        at = draw.integers(first, len(changed))
        changed[at] ^= draw.integers(1, 256)
    return bytes(changed)


def _until(holds, seconds=5):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)
