"""Live sessions and jobs that are killed, stopped, forked or not who they should be."""

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.transport.frames import HEADER_NBYTES, FrameKind, encode_head

pytestmark = pytest.mark.process

SESSION = Path(__file__).with_name("live_session.py")
PRELUDE = """
import os, sys, time
import torch
import tensortap as tt

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())

def say(*words):
    print(*words, flush=True)
"""
STEPS = """
tt.listen("job")
tt.expose(model)
say("ready")
number, last, longest = 0, time.monotonic(), 0.0
while True:
    model(torch.randn(1024, 256))
    number += 1
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    if number % 50 == 0:
        say(number, longest, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
        longest = 0.0
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *command],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


@pytest.fixture
def job(start, tmp_path):
    """Start a program that says `ready`; the lines that it says then are read by the test."""

    def run(code: str = STEPS, *arguments: str) -> subprocess.Popen[str]:
        program = tmp_path / f"job{len(list(tmp_path.iterdir()))}.py"
        program.write_text(PRELUDE + textwrap.dedent(code))
        process = start(str(program), *arguments)
        line = process.stdout.readline()
        assert line == "ready\n", process.communicate(timeout=20)[1]
        return process

    return run


@pytest.fixture
def session(start):
    """A session in a process of its own, which has got something."""

    def run(name: str, pattern: str) -> subprocess.Popen[str]:
        process = start(str(SESSION), name, pattern)
        assert process.stdout.readline() == "0\n", process.communicate(timeout=20)[1]
        return process

    return run


def reports(process, count):
    """What the job says of its next steps: number, longest step, descriptors, threads."""
    return [[float(word) for word in process.stdout.readline().split()] for _ in range(count)]


def wait_until(is_so, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def test_a_stopped_session_does_not_hold_up_the_job_and_a_killed_one_is_forgotten(job, session):
    process = job()
    before = reports(process, 4)[-1]
    looking = session("job", "*")
    os.kill(looking.pid, signal.SIGSTOP)
    stopped = reports(process, 6)
    assert max(longest for _, longest, *_ in stopped[1:]) < 1.0
    looking.kill()
    wait_until(lambda: reports(process, 1)[0][2] == before[2])
    after = session("job", "0")
    assert after.stdout.readline() == "1\n"


def test_a_session_that_goes_on_after_a_stop_sees_new_values(job, session):
    process = job()
    looking = session("job", "*")
    os.kill(looking.pid, signal.SIGSTOP)
    reports(process, 3)
    os.kill(looking.pid, signal.SIGCONT)
    number = int(looking.stdout.readline())
    wait_until(lambda: int(looking.stdout.readline()) > number + 20)


RANKS = """
import torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
tt.listen("job")
tt.expose(model)
say("ready")
number, last, longest = 0, time.monotonic(), 0.0
while True:
    dist.all_reduce(model(torch.randn(64, 256)).detach())
    number += 1
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    if number % 50 == 0:
        say(number, longest)
        longest = 0.0
"""


def test_no_rank_of_a_job_stalls_when_a_session_is_stopped(start, session, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    program = tmp_path / "ranks.py"
    program.write_text(PRELUDE + RANKS)
    ranks = [start(str(program), str(rank), str(tmp_path / "meeting")) for rank in range(2)]
    for process in ranks:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=20)[1]
    looking, other = session("job", "*"), session("job", "0")
    os.kill(looking.pid, signal.SIGSTOP)
    for process in ranks:
        assert max(longest for _, longest in reports(process, 8)[1:]) < 1.0
    number = int(other.stdout.readline())
    wait_until(lambda: int(other.stdout.readline()) > number + 10)


def test_a_hundred_sessions_one_after_the_other_leave_nothing_in_the_job(job):
    process = job()

    def resident():
        with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    lines = Drain(process)
    sizes = []
    for number in range(100):
        with tt.attach("job") as session:
            session.tap("0", timeout=10).next(timeout=10)
        if number in (20, 99):
            sizes.append((resident(), lines.last()))
    (before, first), (after, last) = sizes
    assert after - before < 16 << 20
    wait_until(lambda: lines.last()[2:] == first[2:] or lines.last()[2] < first[2])
    assert last[3] <= first[3] + 1
    lines.stop()


class Drain:
    """Reads what a job says, so that it never waits for the pipe."""

    def __init__(self, process):
        self._process, self._lines = process, []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def last(self):
        """A report that was made from now on."""
        count = len(self._lines)
        wait_until(lambda: len(self._lines) > count + 1)
        return [float(word) for word in self._lines[-1].split()]

    def stop(self):
        self._process.kill()
        self._thread.join(20)

    def _run(self):
        for line in self._process.stdout:
            self._lines.append(line)


FORKING = """
tt.listen("parent")
tt.expose(model)
say("ready")
while not any("attached" in repr(tt.listen()) and "0 attached" not in repr(tt.listen()) for _ in (1,)):
    model(torch.randn(2, 256))
for _ in range(50):
    model(torch.randn(2, 256))
    time.sleep(0.002)
child = os.fork()
if not child:
    for _ in range(20):
        model(torch.randn(2, 256))  # the taps of the parent are not the child's
    hooks = sum(len(one._forward_hooks) for one in model.modules())
    descriptors = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if int(one) > 2
                   and os.path.exists(f"/proc/self/fd/{one}") or os.path.islink(f"/proc/self/fd/{one}")]
    say("child", hooks, sum("socket:" in one for one in descriptors))
    own = tt.listen("child")
    say("listening", own.job.pid == os.getpid())
    while sys.stdin.readline().strip() != "end":
        pass
    os._exit(0)
while True:
    model(torch.randn(2, 256))
    time.sleep(0.002)
"""


def test_a_forked_child_has_no_endpoint_of_its_parent_and_can_open_its_own(job):
    process = job(FORKING)
    with tt.attach("parent") as session:
        tapped = session.tap("0", timeout=10)
        assert process.stdout.readline() == "child 0 0\n"
        assert process.stdout.readline() == "listening True\n"
        step = tapped.next(timeout=10).step
        wait_until(lambda: tapped.next(timeout=10).step > step + 20)
        assert sorted(job.name for job in tt.jobs()) == ["child", "parent"]
        with tt.attach("child") as other:
            assert "0.weight" in other.catalog(timeout=0).names
        process.stdin.write("end\n")
        process.stdin.flush()
        wait_until(lambda: [job.name for job in tt.jobs()] == ["parent"])


ENDING = """
tt.listen("ending")
tt.expose(model)
say("ready")
while not any(line.subscriptions for line in tt.listen()._connections):
    time.sleep(0.01)
for _ in range(10):
    model(torch.randn(65536, 256))
say("ends", time.monotonic())
"""


def test_a_program_ends_within_two_seconds_of_a_session_that_takes_nothing(job, start):
    process = job(ENDING)
    looking = start(str(SESSION), "ending", "*")
    assert process.stdout.readline().startswith("ends")
    with contextlib.suppress(ProcessLookupError):
        os.kill(looking.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert process.wait(10) == 0
    assert time.monotonic() - begun < 4  # two for the session, and the end of torch


STRANGER = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
link = socket.socket(socket.AF_UNIX)
try:
    link.connect(sys.argv[1])
except PermissionError:
    print("kept out")
    sys.exit()
link.settimeout(10)
try:
    link.sendall(b"TT" + bytes(100))
    print("refused" if link.recv(100) == b"" else "let in")
except ConnectionError:
    print("refused")
"""


@pytest.mark.parametrize("fence", ["the folder", "the user"])
def test_another_user_is_refused(start, fence, caplog):
    if os.geteuid() != 0:
        reason = "to become another user needs root"
        print(reason)
        pytest.skip(reason)
    endpoint = tt.listen("private")
    try:
        path = endpoint.job.socket
        if fence == "the user":  # as if somebody had opened the folder and the socket to all
            for folder in (Path(path).parent, Path(path).parent.parent):
                folder.chmod(0o711)
            os.chmod(path, 0o666)
        done = start("-c", STRANGER, path)
        assert done.stdout.readline() == ("kept out\n" if fence == "the folder" else "refused\n")
        wait_until(lambda: fence == "the folder" or "of user 65534 is at the other end" in caplog.text)
        Path(path).parent.chmod(0o700)
        with tt.attach("private") as session:
            assert session.is_open
    finally:
        endpoint.close()


class Refusals(logging.Handler):
    """Counts those who were heard and refused; one who was turned away unheard is none of them."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "was refused" in record.getMessage()


def test_ten_thousand_frames_of_garbage_change_nothing_for_the_next_session(monkeypatch, caplog):
    chance, refusals, log = random.Random(7), Refusals(), logging.getLogger("tensortap.live")
    monkeypatch.setattr(log, "propagate", False)
    caplog.set_level(logging.DEBUG, log.name)
    monkeypatch.setattr(log, "handlers", [refusals])
    endpoint = tt.listen("garbage")
    before = len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(20_000):
            if refusals.count < 10_000:
                pester(endpoint.job.socket, garbage(chance))
        assert refusals.count >= 10_000
        with tt.attach("garbage") as session:
            assert session.is_open
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    finally:
        endpoint.close()


def pester(path, words):
    """Say that and no more, and wait until the other side has had enough of it."""
    with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(ConnectionError):
        stranger.settimeout(10)
        stranger.connect(path)
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass


def garbage(chance):
    """Most of it begins with a header that is right, so that what follows is read as well."""
    if chance.random() < 0.25:
        return chance.randbytes(64)
    frame = bytearray(encode_head(FrameKind.HELLO, {"versions": [1], "nonce": "x" * 64}))
    for _ in range(chance.randrange(1, 4)):
        frame[chance.randrange(HEADER_NBYTES if chance.random() < 0.8 else 0, len(frame))] ^= (
            chance.randrange(1, 256)
        )
    return bytes(frame)
