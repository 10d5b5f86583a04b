"""Jobs that push and sessions that serve: absent, killed, stopped, restarted, forked; nobody waits long."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tensortap.core.errors import RefusedError
from tensortap.core.record import Record
from tensortap.sinks.stream import Stream
from tensortap.transport.tls import check_client_user

pytestmark = pytest.mark.process

SESSION = Path(__file__).with_name("push_session.py")
NOBODY = 65534


class Session:
    """A session in a process of its own."""

    def __init__(self, port=0, **options):
        pipe = subprocess.PIPE
        command = [sys.executable, str(SESSION), str(port), json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert "listening at" in self.process.stdout.readline()
        self.port = int(self.process.stdout.readline())
        self.address = f"127.0.0.1:{self.port}"

    def values(self, name):
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def session():
    """Start sessions; all of them are ended."""
    started = []

    def start(port=0, **options):
        started.append(Session(port, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def stream():
    opened = []

    def open_stream(session, **options):
        opened.append(Stream(session.address, **options))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.close(0.1)
        one.close(5)


def test_a_script_that_catches_and_ends_at_once_delivers(session, run_python):
    there = session()
    run_python(
        """
        import numpy as np, tensortap as tt
        for number in range(200):
            tt.catch(number, "n")
        tt.catch(np.full(8_000_000, 7), "large")
        """,
        THING_PORT=str(there.port),
    )
    assert there.values("n") == list(range(200))


def test_a_script_without_a_session_gets_one_message_and_pays_for_no_copies(run_python):
    """A thousand calls take less processor time than fifty of the copies that they would have made."""
    done = run_python(
        """
        import time, numpy as np, tensortap as tt
        value = np.ones(1_000_000)
        assert not tt.catch(value, "x").wait(10)
        began = time.process_time()
        for number in range(1000):
            tt.catch(value, "x")
        calls = time.process_time() - began
        target, began = np.zeros(1_000_000), time.process_time()
        for number in range(50):
            np.copyto(target, value)
        print(calls / (time.process_time() - began))
        """,
        THING_PORT="1",
    )
    assert done.stderr.count("nobody takes values at 127.0.0.1:1") == 1
    assert len(done.stderr.splitlines()) == 1
    assert float(done.stdout) < 1


def test_a_stopped_session_delays_the_end_of_a_script_by_two_seconds_at_most(session, run_python):
    there = session()
    there.signal(signal.SIGSTOP)
    done = run_python(
        """
        import atexit, time, numpy as np
        began = []
        atexit.register(lambda: print(time.monotonic() - began[0]))
        import tensortap as tt
        for number in range(20):
            tt.catch(np.zeros(8_000_000), "x")
            tt.catch(number, "y", server=f"localhost")
        began.append(time.monotonic())
        """,
        THING_PORT=str(there.port),
    )
    there.signal(signal.SIGCONT)
    assert float(done.stdout) < 2.6


def test_a_stopped_session_never_holds_up_the_job_and_gets_the_newest_when_it_goes_on(session, stream):
    there = session()
    job = stream(there, budget=8 << 20)
    assert job.send(Record("x", 0)).wait(5)
    there.signal(signal.SIGSTOP)
    value = np.zeros(1 << 18)
    longest = 0.0
    for number in range(1, 100):
        value[:] = number
        began = time.monotonic()
        last = job.send(Record("big", value))
        longest = max(longest, time.monotonic() - began)
    assert longest < 1
    assert job.dropped > 80
    assert not last.wait(0)
    there.signal(signal.SIGCONT)
    assert job.send(Record("x", 1)).wait(10)
    assert last.wait(10)
    assert there.values("x") == [0, 1]


def test_a_killed_session_is_noticed_and_its_successor_found(session, stream):
    first = session()
    job = stream(first)
    assert job.send(Record("x", 0)).wait(5)
    first.end()
    _until(lambda: job.has_no_listener)
    assert job.send(Record("x", 1)).wait() is False
    second = session(first.port)
    _until(lambda: job.send(Record("x", 2)).wait(1))
    assert second.values("x")[-1] == 2


def test_a_session_killed_amid_a_value_costs_no_more_than_what_was_on_its_way(session, stream, caplog):
    there = session()
    job = stream(there)
    assert job.send(Record("x", 0)).wait(5)
    there.signal(signal.SIGSTOP)
    ways = [job.send(Record("x", np.zeros(1 << 20))) for _ in range(5)]
    there.end()
    assert [way.wait(10) for way in ways] == [False] * 5


def test_a_job_that_is_killed_leaves_the_session_as_it_was(session, run_python):
    there = session()
    run_python(
        """
        import os, signal, numpy as np, tensortap as tt
        tt.catch(1, "x").wait(5)
        tt.catch(np.zeros(10_000_000), "cut")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        THING_PORT=str(there.port),
        check=False,
    )
    assert there.values("x") == [1]
    run_python('import tensortap as tt; tt.catch(2, "x")', THING_PORT=str(there.port))
    assert there.values("x") == [1, 2]


def test_parent_and_child_of_a_fork_send_over_connections_of_their_own(session, run_python):
    there = session()
    done = run_python(
        """
        import os, tensortap as tt
        assert tt.catch(0, "parent").wait(5)
        before = tt.catch(1, "parent")
        child = os.fork()
        if not child:
            assert before.wait(5) in (True, False)
            assert tt.catch(10, "child").wait(5)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert tt.catch(2, "parent").wait(5)
        print("done")
        """,
        THING_PORT=str(there.port),
    )
    assert done.stdout == "done\n"
    assert there.values("parent") == [0, 1, 2]
    assert there.values("child") == [10]


def test_a_forked_worker_that_ends_at_once_delivers(session, run_python):
    there = session()
    run_python(
        """
        import multiprocessing, tensortap as tt
        tt.catch(0, "x").wait(5)
        def work(number):
            tt.catch(number, "x")
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(number,)) for number in (1, 2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        """,
        THING_PORT=str(there.port),
    )
    assert sorted(there.values("x")) == [0, 1, 2]


def test_a_session_that_forks_keeps_its_port_to_itself(session, run_python):
    done = run_python(
        """
        import os, signal, tensortap as tt
        from tensortap.compat import thing
        tt.serve(port=0)
        port = thing._session.listener.port
        tt.catch(5, "x", server=f"127.0.0.1:{port}").wait(5)
        child = os.fork()
        if not child:
            assert tt.get("x") == 5
            signal.pause()
        tt.stop_serving()
        tt.serve(port=port)
        os.kill(child, 9)
        os.waitpid(child, 0)
        print("done")
        """
    )
    assert done.stdout.endswith("done\n")


def test_eight_jobs_send_to_one_session(session, tmp_path):
    there = session()
    code = 'import sys, tensortap as tt\nfor n in range(50): tt.catch(n, "j" + sys.argv[1])'
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(job)], env={**os.environ, "THING_PORT": str(there.port)}
        )
        for job in range(8)
    ]
    assert [job.wait(60) for job in jobs] == [0] * 8
    assert [there.values(f"j{job}") for job in range(8)] == [list(range(50))] * 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_listener_gets_nothing(tmp_path, caplog):
    """Somebody else took the port first."""
    code = """
        import encodings.idna, os, socket, sys  # before: another user cannot read this interpreter
        os.setuid(65534)
        door = socket.create_server(("127.0.0.1", 0))
        print(door.getsockname()[1], flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as thief:
        stream = Stream(f"127.0.0.1:{int(thief.stdout.readline())}")
        assert not stream.send(Record("x", 1)).wait(5)
        stream.close()
    assert f"user {NOBODY} listens at" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_job_is_turned_away():
    code = """
        import encodings.idna, os, socket, sys  # before: another user cannot read this interpreter
        os.setuid(65534)
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as caller:
            sys.stdin.read()
    """
    with socket.create_server(("127.0.0.1", 0)) as door:
        command = [sys.executable, "-c", textwrap.dedent(code), str(door.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as caller:
            door.settimeout(10)
            connection, _ = door.accept()
            with connection, pytest.raises(RefusedError, match=f"a process of user {NOBODY} connected"):
                check_client_user(connection)
            caller.stdin.close()


def _until(holds, seconds=10):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
