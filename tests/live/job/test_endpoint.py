"""The job's side: it never waits for a session, never changes a value, and leaves nothing behind."""

import contextlib
import copy
import gc
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

import tensortap as tt
from tensortap.live.job.subscription import WINDOW
from tensortap.transport.connection import connect
from tensortap.transport.frames import FrameKind


@pytest.fixture
def raw(job):
    """A session that says only what the test says; it grants nothing by itself."""
    link = connect(job.endpoint.job.socket)
    yield link
    link.close()


def ask(link, kind, **meta):
    link.send(kind, {"id": 1, **meta})
    return expect(link, {FrameKind.OK, FrameKind.ERR, FrameKind.CATALOG})


def expect(link, kinds, seconds=10):
    deadline = time.monotonic() + seconds
    while (frame := link.receive(deadline - time.monotonic())).kind not in kinds:
        pass
    return frame


def wait_until(is_so, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.002)


def test_the_socket_is_private_and_gone_after_close(job):
    path = job.endpoint.job.socket
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert tt.jobs()[0].pid == os.getpid()
    job.endpoint.close()
    assert list(Path(path).parent.iterdir()) == []
    assert tt.jobs() == []


def test_listening_twice_is_listening_once(job):
    assert tt.listen("other") is job.endpoint


def test_closed_it_can_be_opened_again(job):
    job.endpoint.close()
    again = tt.listen("again")
    try:
        with tt.attach("again") as session:
            tapped = session.tap("0", timeout=0)
            job.step()
            assert tapped.next(timeout=5).name == "0"
    finally:
        again.close()


def test_without_credit_no_snapshot_is_made_and_what_was_skipped_is_told(job, raw):
    assert ask(raw, FrameKind.TAP, tap=7, patterns=["0"]).kind is FrameKind.OK
    for step in range(WINDOW):  # one at a time: a newer value replaces one that is not sent yet
        job.step()
        assert expect(raw, {FrameKind.DATA}).meta.get("step", 0) == step
    job.step(18)
    raw.send(FrameKind.CREDIT, {"tap": 7})
    ask(raw, FrameKind.STATS)  # answered after the credit was read
    job.step()
    frame = expect(raw, {FrameKind.DATA})
    assert (frame.meta["step"], frame.meta["skipped"]) == (20, 18)


def test_a_session_that_takes_nothing_costs_a_bounded_amount_of_memory(runtime, monkeypatch):
    monkeypatch.setenv("TENSORTAP_LIVE_MB", "8")
    gc.collect()
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(20)])
    tt.expose(model)
    endpoint = tt.listen("bounded")
    link = connect(endpoint.job.socket)
    try:
        ask(link, FrameKind.TAP, tap=1, patterns=["*"])
        for _ in range(5):
            model(torch.zeros(1 << 18))  # a megabyte each, twenty times a step
        assert 0 < endpoint.control._budget.pending_bytes <= 8 << 20
        wait_until(lambda: endpoint.control._budget.pending_bytes <= 8 << 20)
    finally:
        link.close()
        wait_until(lambda: endpoint.control._budget.pending_bytes == 0)
        endpoint.close()


def test_where_bytes_do_not_suffice_the_names_take_turns(runtime, monkeypatch):
    monkeypatch.setenv("TENSORTAP_LIVE_MB", "2.5")
    gc.collect()
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(6)])
    tt.expose(model)
    endpoint = tt.listen("turns")
    try:
        with tt.attach("turns") as session:
            tapped = session.tap("*", timeout=0)
            seen: set[str] = set()
            deadline = time.monotonic() + 20
            while len(seen) < 6 and time.monotonic() < deadline:
                model(torch.zeros(1 << 18))
                with contextlib.suppress(TimeoutError):
                    seen.add(tapped.next(timeout=0.05).name)
                seen |= {record.name for record in tapped.history}
            assert seen == set("012345")
    finally:
        endpoint.close()


def test_equal_requests_share_one_snapshot(job, monkeypatch):
    made = []
    budget = job.endpoint.control._budget
    parcel = budget.snapshot
    monkeypatch.setattr(budget, "snapshot", lambda *given: made.append(1) or parcel(*given))
    with tt.attach("here") as one, tt.attach("here") as other:
        taps = [one.tap("0", timeout=0), other.tap("0", timeout=0)]
        job.step()
        values = [tapped.next(timeout=5).value for tapped in taps]
    assert torch.equal(*values)
    assert len(made) == 1


def test_each_session_has_its_own_taps_and_drops(job, raw):
    with tt.attach("here") as quick:
        ask(raw, FrameKind.TAP, tap=1, patterns=["0"])  # never grants a step
        tapped, other = quick.tap("0", timeout=0), quick.tap("2", timeout=0)
        seen, deadline = [], time.monotonic() + 20
        while len(seen) < 12 and time.monotonic() < deadline:
            job.step()
            with contextlib.suppress(TimeoutError):  # the leave for this step may have come too late
                seen.append(tapped.next(timeout=0.5).step)
                assert other.next(timeout=5).name == "2"
        assert len(seen) == 12
        (line,) = [line for line in job.endpoint._connections if len(line.subscriptions) == 1]
        assert line.subscriptions[1].skipped == seen[-1] + 1 - WINDOW


@pytest.mark.parametrize(
    "meta",
    [
        {"tap": "x", "patterns": ["0"]},
        {"tap": 1, "patterns": "0"},
        {"tap": 1, "patterns": [3]},
        {"tap": 1, "patterns": ["0"], "keep": "lambda"},
        {"tap": 1, "patterns": ["0"], "every": "often"},
        {"tap": 1, "condition": "exec('x')"},
        {"tap": 1, "condition": {"a": 1}},
        {"tap": 1},
    ],
    ids=str,
)
def test_a_request_that_is_not_understood_is_answered_with_an_error(job, raw, meta):
    assert ask(raw, FrameKind.TAP, **meta).kind is FrameKind.ERR
    assert ask(raw, FrameKind.TAP, tap=2, patterns=["0"]).kind is FrameKind.OK


def test_somebody_who_speaks_another_language_is_turned_away_and_others_are_served(job):
    for said in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(200), b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(job.endpoint.job.socket)
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while stranger.recv(4096):
                    pass
    with tt.attach("here") as session:
        tapped = session.tap("0", timeout=0)
        job.step()
        assert tapped.next(timeout=5).name == "0"


def test_a_frame_amid_a_session_that_is_none_ends_that_session_alone(job, raw):
    ask(raw, FrameKind.TAP, tap=1, patterns=["0"])
    with tt.attach("here") as session:
        raw._stream._socket.sendall(os.urandom(100))
        with pytest.raises(OSError):
            expect(raw, set())
        tapped = session.tap("0", timeout=0)
        job.step()
        assert tapped.next(timeout=5).name == "0"


def test_training_is_bitwise_the_same_with_sessions_and_without(runtime):
    def losses(is_tapped):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        endpoint = tt.listen("curve") if is_tapped else None
        session = None
        found = []
        for number in range(30):
            if endpoint is not None and number == 3:
                tt.expose(model)
                session = tt.attach("curve")
                session.tap("*", "*.grad", "0.weight", timeout=0)
                session.when("absmax(0) > 1e-3", then="send", timeout=0)
            if session is not None and number == 20:
                session.close()
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        if endpoint is not None:
            endpoint.close()
        return found

    assert losses(True) == losses(False)


def test_an_exposed_model_is_not_kept_alive(job):
    model = torch.nn.Linear(2, 2)
    tt.expose(model)
    with tt.attach("here") as session:
        session.tap("weight", timeout=0)
        model(torch.ones(1, 2))
    wait_until(lambda: "0 attached" in repr(job.endpoint))
    job.step(2)
    gone = weakref.ref(model)
    del model
    # A thread may be about to let go of what it handed over.
    wait_until(lambda: gc.collect() >= 0 and gone() is None)


def test_a_copy_or_a_pickle_of_an_exposed_model_has_nothing_of_ours(job):
    copied = copy.deepcopy(job.model)
    again = pickle.loads(pickle.dumps(job.model))
    forwards = next(iter(job.endpoint.control._exposed_models)).forwards
    copied(torch.ones(1, 8)), again(torch.ones(1, 8))
    assert next(iter(job.endpoint.control._exposed_models)).forwards == forwards


@pytest.mark.compile
def test_a_compiled_model_is_not_compiled_again_because_it_is_exposed(job):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(job.model, backend=backend, fullgraph=True)
    tt.expose(compiled)
    for _ in range(5):
        compiled(torch.ones(4, 8))
    with tt.attach("here") as session:
        assert len(graphs) == 1
        tapped = session.tap("0", timeout=0)
        compiled(torch.ones(4, 8))
        compiled(torch.ones(4, 8))
        assert tapped.next(timeout=5).value.shape == (4, 16)
    wait_until(lambda: "0 attached" in repr(job.endpoint))
    for _ in range(5):
        compiled(torch.ones(4, 8))
    assert len(graphs) == 1


@pytest.mark.process
def test_closing_is_quick_even_when_a_session_takes_nothing(job, raw):
    ask(raw, FrameKind.TAP, tap=1, patterns=["big"])
    tt.step()
    tt.tap(torch.zeros(8 << 20), "big")  # far more than a socket holds
    tt.step()
    start = time.monotonic()
    job.endpoint.close()
    assert time.monotonic() - start < 2


def test_nothing_waits_for_the_link_thread_when_nobody_is_attached(job):
    job.step(10)
    assert job.hooks == 0
    assert job.endpoint._select_timeout() is None


def test_switched_off_it_does_nothing(monkeypatch, runtime):
    monkeypatch.setenv("TENSORTAP", "0")
    model = torch.nn.Linear(1, 1)
    assert tt.listen() is None
    assert tt.expose(model) is model
    assert not model._forward_pre_hooks
    assert list(runtime.iterdir()) == []


def test_what_is_no_model_cannot_be_exposed():
    with pytest.raises(TypeError, match="a list is no model"):
        tt.expose([])


def test_forwards_in_several_threads_are_served(job, session):
    tapped = session.tap("*", "*.in", timeout=0)
    problems, is_enough = [], threading.Event()

    def work():
        try:
            while not is_enough.is_set():
                job.step()
        except Exception as error:  # noqa: BLE001 - told by the assertion below
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            tapped.next(timeout=20)
            if number == 5:
                tapped.stop()
                tapped = session.tap("*", "*.in", timeout=0)
    finally:
        is_enough.set()
        for thread in threads:
            thread.join()
    assert problems == []


@pytest.mark.process
@pytest.mark.parametrize(
    "call",
    [
        "tt.step()",
        "import torch; tt.expose(torch.nn.Linear(1, 1))",
        "tt.capture().start()",
        "tt.init('runs')",
    ],
)
def test_the_environment_opens_a_program_at_its_first_call_and_not_before(runtime, tmp_path, call):
    code = f"import tensortap as tt; print(len(tt.jobs())); {call}; print(len(tt.jobs()))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "TENSORTAP_LIVE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0", "1"]
    assert list((runtime / "tensortap").iterdir()) == []


def test_a_run_can_be_opened_to_sessions(tmp_path, runtime):
    run = tt.init(tmp_path / "exp1", live=True)
    try:
        with tt.attach("exp1") as session:
            watched = session.when("x > 1", then="dump", timeout=0)
            for _ in range(3):
                tt.step()
                tt.tap(torch.tensor(2.0), "x")
            wait_until(lambda: watched.fired)
            assert "the job's run" in watched.events[0]
        tt.flush()
        assert "x" in tt.Run(run).names
    finally:
        tt.listen().close()
