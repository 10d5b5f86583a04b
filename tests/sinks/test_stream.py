"""A stream takes a snapshot and returns, keeps the order, never waits for the network, counts its drops."""

import socket
import threading
import time

import numpy as np
import pytest
import torch

from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.sinks.open import open_sink
from tensortap.sinks.outbox import Outbox, QueuedValue
from tensortap.sinks.stream import Stream
from tensortap.sources.listener import Listener
from tensortap.testing import SinkContract
from tensortap.transport.connection import accept_connection
from tensortap.transport.frames import FrameKind
from tensortap.transport.values import WireValue

MB = 1 << 20


@pytest.fixture
def server():
    """A session that keeps what arrives."""
    memory, listener = Memory(keep=None), Listener()
    with Tap(sinks=[memory], on_error="log").attach(listener):
        listener.memory = memory
        yield listener


@pytest.fixture
def stream(server):
    stream = Stream(server.address)
    yield stream
    stream.close()


@pytest.fixture
def stream_of():
    opened = []

    def open_stream(server, **options):
        opened.append(Stream(server.address, **options))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.close()


class Deaf:
    """A listener that greets and then reads nothing until it is told to."""

    def __init__(self):
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        self.links, self.names = [], []
        self.greeted, self.may_read = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        link = accept_connection(self.door.accept()[0])
        self.links.append(link)
        self.greeted.set()
        self.may_read.wait()
        try:
            while (frame := link.receive()).kind is not FrameKind.BYE:
                self.names.append(frame.meta["name"])
                link.send(FrameKind.OK, {"got": frame.meta["number"]})
        except OSError:
            pass

    def close(self):
        self.may_read.set()
        for link in self.links:
            link.close()
        self.door.close()
        self.thread.join(5)


@pytest.fixture
def deaf():
    deaf = Deaf()
    yield deaf
    deaf.close()


class TestStreamKeepsTheContractOfSinks(SinkContract):
    @pytest.fixture(autouse=True)
    def _with_a_server(self, server):
        self.server = server

    def make(self):
        return Stream(self.server.address)

    def read(self, sink):
        return [(record.name, record.step, record.value) for record in self.server.memory.records]


def test_what_was_waited_for_is_there_exactly(stream, server):
    sent = {
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "sliced": torch.arange(10)[::3],
        "bf16": torch.randn(4).bfloat16(),
        "fp8": torch.randn(4).to(torch.float8_e4m3fn),
        "none": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for name, value in sent.items():
        assert stream.send(Record(name, value)).wait(5)
    for record in server.memory.records:
        value = sent[record.name].detach()
        assert record.value.dtype == value.dtype
        assert record.value.shape == value.shape
        assert torch.equal(record.value.float(), value.float())


def test_a_record_that_came_through_a_tap_has_its_receipt_in_the_thread_that_emitted_it(stream, server):
    tap = Tap(sinks=[stream])
    tap.emit(Record("x", 1))
    elsewhere = threading.Thread(target=tap.emit, args=(Record("y", object()),))
    elsewhere.start()
    elsewhere.join()
    assert stream.last_delivery.wait(5)


def test_a_value_changed_after_the_call_arrives_as_it_was(deaf):
    stream = Stream(deaf.address)
    value = torch.zeros(MB)
    ways = [stream.send(Record(str(number), value.add_(1))) for number in range(5)]
    value.zero_()
    deaf.may_read.set()
    assert all(way.wait(5) for way in ways)
    assert deaf.names == ["0", "1", "2", "3", "4"]
    stream.close()


def test_small_and_large_values_arrive_in_the_order_of_the_calls(stream, server):
    sizes = [1, 300_000, 2, 3, 500_000, 4] * 20
    for number, size in enumerate(sizes):
        stream.send(Record("x", np.full(size, number)))
    stream.flush()
    assert [int(record.value[0]) for record in server.memory.records] == list(range(len(sizes)))


def test_a_full_queue_drops_the_oldest_that_wait_and_counts_them(deaf, caplog):
    stream = Stream(deaf.address, budget=8 * MB)
    first = stream.send(Record("first", np.zeros(7 * MB, np.uint8)))
    assert deaf.greeted.wait(5)
    while stream._outbox.waiting:  # until the thread has begun with it
        time.sleep(0.001)
    ways = [stream.send(Record(str(number), np.zeros(MB // 2, np.uint8))) for number in range(4)]
    assert [way.wait(0) for way in ways] == [False] * 4
    assert stream.dropped == 3
    assert [repr(way) for way in ways] == ["<not delivered>"] * 3 + ["<on its way>"]
    deaf.may_read.set()
    assert first.wait(5)
    assert ways[-1].wait(5)
    stream.close()
    assert deaf.names == ["first", "3"]
    assert caplog.text.count("the oldest that wait are dropped") == 1


def test_what_was_confirmed_counts_no_more_towards_the_budget(stream_of, server):
    """Three at a time fit; a fourth comes each time the first of them is confirmed."""
    stream, ways = stream_of(server, budget=4 * MB), []
    for number in range(300):
        ways.append(stream.send(Record(str(number), np.zeros(MB, np.uint8))))
        assert number < 2 or ways[number - 2].wait(5)
    assert all(way.wait(5) for way in ways)
    assert stream.dropped == 0


def test_a_listener_that_reads_nothing_never_holds_up_the_caller(deaf):
    stream = Stream(deaf.address, budget=8 * MB)
    value = np.zeros(MB, np.uint8)
    began = time.monotonic()
    for _ in range(200):
        stream.send(Record("x", value))
    assert time.monotonic() - began < 2
    assert stream.dropped >= 180
    began = time.monotonic()
    stream.close(0.2)
    assert time.monotonic() - began < 1.5


def test_where_nobody_listens_one_message_says_so_and_no_snapshot_is_taken(caplog, unheard):
    stream = Stream(unheard)
    assert stream.send(Record("x", np.zeros(3))).wait(5) is False
    assert stream.has_no_listener
    huge = np.broadcast_to(np.zeros(1), (1 << 40,))  # a snapshot of this would take terabytes
    assert [stream.send(Record("x", huge)).wait() for _ in range(100)] == [False] * 100
    assert caplog.text.count("nobody takes values at") == 1
    stream.close()


def test_a_listener_that_comes_later_is_found(unheard):
    stream = Stream(unheard)
    assert not stream.send(Record("x", 1)).wait(5)
    with Tap(sinks=[memory := Memory(keep=None)]).attach(Listener(port=int(unheard.split(":")[1]))):
        arrives_within(stream, 5)
        assert memory.records[-1].value == 2
        stream.close()


def test_a_listener_that_ends_and_returns_is_found_again(caplog):
    listener = Listener()
    with Tap(sinks=[Memory()]).attach(listener):
        stream = Stream(listener.address)
        assert stream.send(Record("x", 1)).wait(5)
    while not stream.has_no_listener:
        time.sleep(0.001)
    assert not stream.send(Record("x", 1)).wait()
    with Tap(sinks=[Memory()]).attach(Listener(port=listener.port)):
        arrives_within(stream, 5)
        stream.close()


def test_what_cannot_be_sent_is_reported_once_and_never_raised(stream, caplog):
    for _ in range(3):
        assert stream.send(Record("thing", object())).wait() is False
    assert stream.send(Record("meta", torch.empty(2, device="meta"))).wait() is False
    assert caplog.text.count("'thing' is not sent") == 1
    assert "a meta tensor" in caplog.text


def test_a_meta_too_large_for_a_frame_is_refused_and_the_next_value_goes(stream, caplog):
    assert stream.send(Record("x" * (2 << 20), 1)).wait(5) is False
    assert stream.send(Record("y", 1)).wait(5)
    assert "not sent" in caplog.text


def test_closing_delivers_what_waits_and_leaves_no_thread(server):
    stream = Stream(server.address)
    for number in range(50):
        stream.send(Record("x", np.full(1000, number)))
    stream.close()
    assert len(server.memory.records) == 50
    assert stream.send(Record("x", 1)).wait() is False


def test_an_address_is_a_sink_for_every_tool(server):
    with Tap(sinks=[open_sink(f"tcp://{server.address}")]) as tap:
        tap.emit(Record("x", np.arange(3)))
    assert [record.name for record in server.memory.records] == ["x"]


def test_what_is_no_address_is_refused_at_once():
    with pytest.raises(ValueError, match="neither 'host:port' nor the path"):
        Stream("nowhere")


def arrives_within(stream, seconds):
    end = time.monotonic() + seconds
    while not stream.send(Record("x", 2)).wait(1):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def unheard():
    """An address at which nobody listens."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


def test_what_was_lost_with_a_connection_takes_no_room_any_more():
    box, lost = Outbox(10_000), QueuedValue(WireValue({}, [], 8_000), b"")
    box.reserve(lost.cost)
    box.mark_in_flight(lost)
    assert box.drop_unconfirmed() == 1
    box.reserve(3_000)
    box.waiting.append(QueuedValue(WireValue({}, [], 952), b""))
    assert box.reserve(3_000) == 0
