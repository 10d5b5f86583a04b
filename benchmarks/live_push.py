"""What `catch` costs the job and how fast values arrive, as ratios to a bare socket, a memcpy and gRPC.

Servers are processes of their own. With `--peers` a design of unary gRPC calls of 128 KB is measured in the
same rounds; that needs grpcio in .venv-peers (see peers.txt).
"""

import contextlib
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import Table, finish, medians, tell

MB = 1 << 20
SIZE = 64 * MB
KEPT = 4  # values that a receiver holds, each in memory of its own
IN_FLIGHT = 3  # within the budget of what may wait
PER_TURN = 6
CHUNK = 128 << 10
table = Table("live push")
PEERS = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"


def raw_server() -> None:
    """Receives blocks of SIZE bytes into new memory, keeps a few, answers each with a byte."""
    door = socket.create_server(("127.0.0.1", 0))
    print(door.getsockname()[1], flush=True)
    connection, _ = door.accept()
    kept: deque[Any] = deque(maxlen=KEPT)
    while True:
        block = np.empty(SIZE, np.uint8)
        view, got = memoryview(block), 0
        while got < SIZE:
            count = connection.recv_into(view[got:], 0, socket.MSG_WAITALL)
            if not count:
                return
            got += count
        kept.append(block)
        connection.sendall(b".")


def echo_server() -> None:
    door = socket.create_server(("127.0.0.1", 0))
    print(door.getsockname()[1], flush=True)
    connection, _ = door.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(4096):
        connection.sendall(data)


def our_server() -> None:
    from tensortap.core.tap import Tap
    from tensortap.sinks.memory import History
    from tensortap.sources.listener import Listener

    listener = Listener()
    with Tap(sinks=[History(KEPT * (SIZE + MB))]).attach(listener):
        print(listener.port, flush=True)
        sys.stdin.read()


def grpc_server() -> None:
    from concurrent import futures

    import grpc  # type: ignore[import-not-found]

    kept: deque[Any] = deque(maxlen=KEPT)
    parts: list[bytes] = []

    def take(request: bytes, context: Any) -> bytes:
        parts.append(request)
        if len(parts) == SIZE // CHUNK:
            kept.append(np.frombuffer(b"".join(parts), np.uint8))
            parts.clear()
        return b"."

    handler = grpc.method_handlers_generic_handler(
        "Thing", {"Catch": grpc.unary_unary_rpc_method_handler(take)}
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()


def grpc_client(port: str) -> None:
    """A line on standard input is answered with the seconds that one value took."""
    import grpc

    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/Thing/Catch")
    block = np.ones(SIZE, np.uint8)
    for _ in sys.stdin:
        began = time.perf_counter()
        for start in range(0, SIZE, CHUNK):
            call(block[start : start + CHUNK].tobytes())
        print(time.perf_counter() - began, flush=True)


@contextlib.contextmanager
def process(*arguments: str, python: str | Path = sys.executable) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([python, __file__, *arguments], stdin=pipe, stdout=pipe, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def throughput(peers: bool) -> None:
    """64 MB values in a row, from the call to the confirmation of the last."""
    from tensortap.core.record import Record
    from tensortap.sinks.stream import Stream

    with contextlib.ExitStack() as stack:
        raw_port, our_port = (
            int(line_of(stack.enter_context(process(name)))) for name in ("raw_server", "our_server")
        )
        raw = stack.enter_context(socket.create_connection(("127.0.0.1", raw_port)))
        stream = Stream(f"127.0.0.1:{our_port}")
        stack.callback(stream.close)
        values = [np.full(SIZE, number, np.uint8) for number in range(3)]

        def send_raw() -> None:
            for number in range(PER_TURN):
                raw.sendall(values[number % 3].data)
            for _ in range(PER_TURN):
                assert raw.recv(1) == b"."

        def send_ours() -> None:
            ways: deque[Any] = deque()
            for number in range(PER_TURN):
                if len(ways) == IN_FLIGHT:
                    assert ways.popleft().wait(60)
                ways.append(stream.send(Record("x", values[number % 3])))
            assert all(way.wait(60) for way in ways)

        contestants: dict[str, Callable[[], object]] = {"raw": send_raw, "ours": send_ours}
        grpc_times: list[float] = []
        if peers:
            client = grpc_contestant(stack)
            contestants["grpc"] = lambda: grpc_times.append(client())
        found = medians(contestants, 9)
        gigabytes = PER_TURN * SIZE / 1e9
        tell("a bare TCP socket, 64 MB values", gigabytes / found["raw"], "GB/s")
        tell("ours, snapshot included", gigabytes / found["ours"], "GB/s")
        table.add(
            "64 MB values, time by the bare socket's (0.85 of its speed)",
            found["ours"] / found["raw"],
            1 / 0.85,
        )
        if peers:
            grpc = statistics.median(grpc_times)
            tell("gRPC, calls of 128 KB", SIZE / 1e9 / grpc, "GB/s")
            table.add(
                "64 MB values, time by that of gRPC calls of 128 KB", found["ours"] / PER_TURN / grpc, 0.1
            )


def grpc_contestant(stack: contextlib.ExitStack) -> Callable[[], float]:
    port = line_of(stack.enter_context(process("grpc_server", python=PEERS)))
    client = stack.enter_context(process("grpc_client", port, python=PEERS))

    def one_value() -> float:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
        return float(line_of(client))

    return one_value


def round_trip() -> None:
    """A number there, and the word that it arrived back."""
    from tensortap.core.record import Record
    from tensortap.sinks.stream import Stream

    with contextlib.ExitStack() as stack:
        echo_port, our_port = (
            int(line_of(stack.enter_context(process(name)))) for name in ("echo_server", "our_server")
        )
        echo = stack.enter_context(socket.create_connection(("127.0.0.1", echo_port)))
        echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked: queue.Queue[tuple[bytes, threading.Event]] = queue.Queue()
        threading.Thread(target=echoes, args=(echo, asked), daemon=True).start()
        stream = Stream(f"127.0.0.1:{our_port}")
        stack.callback(stream.close)

        def by_queue_and_thread() -> None:
            arrived = threading.Event()
            asked.put((b"x" * 64, arrived))
            arrived.wait()

        def ours() -> None:
            assert stream.send(Record("x", 1.0)).wait(10)

        found = medians({"echo": repeated(by_queue_and_thread), "ours": repeated(ours)}, 61)
        tell("an echo through a queue and a thread", found["echo"] / 50 * 1e6, "us")
        table.add(
            "scalar round trip by an echo through a queue and a thread", found["ours"] / found["echo"], 2
        )


def echoes(echo: socket.socket, asked: "queue.Queue[tuple[bytes, threading.Event]]") -> None:
    with contextlib.suppress(OSError):
        while True:
            data, arrived = asked.get()
            echo.sendall(data)
            echo.recv(4096)
            arrived.set()


def repeated(call: Callable[[], object], times: int = 50) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def blocking() -> None:
    """How long the caller of `catch` is held up by 64 MB."""
    import tensortap as tt

    with process("our_server") as server:
        address = f"127.0.0.1:{line_of(server)}"
        value, target = np.ones(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        way: Any = tt.catch(value, "x", server=address)

        def ours() -> None:
            nonlocal way
            way = tt.catch(value, "x", server=address)

        found = medians(
            {"memcpy": lambda: np.copyto(target, value), "catch": ours}, 41, after=lambda: way.wait(60)
        )
        tell("one memcpy of 64 MB", found["memcpy"] * 1e3, "ms")
        table.add(
            "the caller of catch(64 MB) is held up, by one memcpy", found["catch"] / found["memcpy"], 1.5
        )


def nobody_there() -> None:
    """A call when no session serves, and one whose turn it is not."""
    import tensortap as tt

    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        value = np.ones(SIZE, np.uint8)
        assert not tt.catch(value, "x", server=address).wait(10)
        found = medians(
            {
                "away": repeated(lambda: tt.catch(value, "x", server=address), 1000),
                "turn": repeated(lambda: tt.catch(value, "y", server=address, every=1 << 40), 1000),
            },
            41,
        )
    table.add("catch(64 MB) while nobody serves", found["away"] * 1e3, 10, "us")
    table.add("catch when it is not this call's turn", found["turn"] * 1e3, 5, "us")


def main() -> int:
    print("live push: `catch` to `serve`, by what the same machine does in the same rounds")
    throughput("--peers" in sys.argv)
    round_trip()
    blocking()
    nobody_there()
    return finish([table])


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        one.__name__: one for one in (raw_server, echo_server, our_server, grpc_server, grpc_client)
    }
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main() > 0)
