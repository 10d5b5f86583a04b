"""thing: every call of its README, and what DECISIONS adds, between a job and a session in one process."""

import io
import os
import pty
import signal
import socket
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.compat import thing
from tensortap.core.tap import Tap
from tensortap.readers.spinner import show_spinner
from tensortap.sinks.memory import parse_memory_limit
from tensortap.sources.manual import ManualSource

Point = namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Counts and taps of its own for every test."""
    monkeypatch.setattr(thing, "_remote_sessions", {})
    monkeypatch.setattr(thing, "_source", ManualSource())
    thing._calls.clear()
    yield
    for session in thing._remote_sessions.values():
        session.tap.close()
    tt.stop_serving()


@pytest.fixture
def serving(monkeypatch, capsys):
    """A session that listens at the port which THING_PORT names."""
    tt.serve(port=0)
    monkeypatch.setenv("THING_PORT", str(thing._session.listener.port))
    capsys.readouterr()
    return thing._session


@pytest.fixture
def unserved(monkeypatch):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("THING_PORT", str(held.getsockname()[1]))
        yield


def test_the_readmes_loop_sends_every_tenth_call_of_each_name(serving):
    model = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(2, 3)})
    for i in range(100):
        loss = torch.tensor(float(i))
        tt.catch(loss, name="loss", every=10)
        last = tt.catch(model.lm_head.weight, name="lm_head_weight", every=10)
    assert last.wait(5)
    assert [int(one) for one in tt.get_all("loss")] == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    assert torch.equal(tt.get("lm_head_weight"), model.lm_head.weight.detach())
    assert len(tt.get_all("lm_head_weight")) == 10


def test_first_sends_the_first_of_those_whose_turn_it_is(serving):
    ways = [tt.catch(number, "n", every=3, first=2) for number in range(1, 20)]
    assert [number for number, way in enumerate(ways, 1) if way.wait(5)] == [3, 6]
    assert tt.get_all("n") == [3, 6]


def test_a_count_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="every is 0; give a whole number from 1 on"):
        tt.catch(1, "x", every=0)


@pytest.mark.parametrize(
    "value",
    [
        3,
        2**80,
        -0.5,
        True,
        None,
        "text",
        b"bytes",
        1 + 2j,
        [1, [2.5, None]],
        (1, "two"),
        {"a": {"b": [1]}, 3: (), (1, 2): "key"},
        {1, 2},
        list(range(100)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_python_values_arrive_as_what_they_are(serving, value):
    assert tt.catch(value, "x").wait(5)
    got = tt.get("x")
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "int64", "bool", "complex64"])
def test_tensors_arrive_exactly(serving, dtype):
    tensor = (torch.randn(6, 4) * 10).to(getattr(torch, dtype)).t()[::2]
    assert tt.catch(tensor, "x").wait(5)
    got = tt.get("x")
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    assert np.array_equal(got.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_of_a_dtensor_the_piece_of_this_rank_arrives_with_its_placement(serving, tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        whole = torch.arange(12.0).reshape(4, 3)
        piece = distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)])
        assert tt.catch(piece, "piece").wait(10)
    finally:
        dist.destroy_process_group()
    found = tt.get("piece")
    assert type(found) is torch.Tensor
    assert torch.equal(found, whole)
    assert "shard(0) of [4, 3]" in str(tt.describe("piece"))


def test_structures_keep_their_tensors(serving):
    assert tt.catch({"hidden": [torch.ones(2), np.arange(3)], "at": Point(torch.zeros(()), 1)}, "x").wait(5)
    got = tt.get("x")
    assert torch.equal(got["hidden"][0], torch.ones(2))
    assert got["hidden"][1].tolist() == [0, 1, 2]
    assert got["at"][1] == 1


def test_without_a_name_the_callers_source_gives_it(serving):
    class Model:
        weight = torch.ones(2)

    model, loss = Model(), 0.5
    tt.catch(model.weight)
    tt.catch(loss).wait(5)
    assert serving.history.names == ["model.weight", "loss"]


def test_a_value_changed_after_the_call_arrives_as_it_was(serving):
    value = torch.zeros(1 << 20)
    ways = [tt.catch(value.fill_(number), "x") for number in range(5)]
    assert all(way.wait(5) for way in ways)
    assert [(one.min().item(), one.max().item()) for one in tt.get_all("x")] == [(n, n) for n in range(5)]


def test_the_index_counts_back_and_an_id_names_one_value(serving):
    for number in range(4):
        tt.catch(number * 10, "x").wait(5)
    assert [tt.get("x", index) for index in range(4)] == [30, 20, 10, 0]
    assert tt.get("x", -1) == 0
    assert tt.get(2) == 10
    with pytest.raises(IndexError, match="there are 4 values of 'x'; the index 4 is not among them"):
        tt.get("x", 4)
    with pytest.raises(KeyError, match="no value with the id 9"):
        tt.get(9)


def test_what_is_got_is_ones_own(serving):
    tt.catch({"a": torch.zeros(2)}, "x").wait(5)
    tt.get("x")["a"].add_(1)
    tt.get_all("x")[0]["a"].add_(1)
    assert tt.get("x")["a"].tolist() == [0, 0]


def test_an_unknown_name_is_refused_with_the_nearest(serving):
    with pytest.raises(KeyError, match="no value of the name 'loss'; nothing has arrived yet"):
        tt.get("loss")
    tt.catch(1, "train_loss").wait(5)
    with pytest.raises(tt.UnknownNameError, match="there are 'train_loss'"):
        tt.get_all("train_los")


def test_without_serve_questions_are_answered_with_a_sentence(capsys):
    for ask in (lambda: tt.get("x"), lambda: tt.get_all("x"), tt.ingest_all, lambda: tt.pin("x")):
        with pytest.raises(tt.NotServingError, match="call serve\\(\\) first"):
            ask()
    assert tt.summary() is None
    tt.status()
    assert capsys.readouterr().out.count("this session does not listen") == 2
    tt.help()
    assert "catch(value, name=None" in capsys.readouterr().out


def test_serving_twice_says_so_and_another_port_is_refused(serving, capsys):
    tt.serve()
    assert f"listens at {serving.listener.address} already" in capsys.readouterr().out
    with pytest.raises(tt.NotServingError, match="already; stop_serving"):
        tt.serve(port=serving.listener.port + 1)


def test_a_taken_port_is_refused_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = socket.create_server(("127.0.0.1", 0))
    with other, pytest.raises(tt.NotServingError, match="is taken, perhaps by another session"):
        tt.serve(port=other.getsockname()[1], to="runs")
    assert not list(tmp_path.iterdir())
    with pytest.raises(tt.NotServingError):
        tt.get("x")


def test_where_nobody_serves_catch_says_so_once_and_goes_on(unserved, caplog):
    assert [tt.catch(torch.ones(2), "x").wait(5) for _ in range(20)] == [False] * 20
    assert caplog.text.count("nobody takes values at") == 1


def test_the_server_is_named_by_argument_or_setting(serving, monkeypatch):
    address = serving.listener.address
    assert tt.catch(1, "argument", server=address).wait(5)
    assert tt.catch(2, "scheme", server=f"tcp://{address}").wait(5)
    monkeypatch.setenv("THING_SERVER", address)
    monkeypatch.setenv("THING_PORT", "1")
    assert tt.catch(3, "setting").wait(5)
    with pytest.raises(ValueError, match="neither 'host:port'"):
        tt.catch(1, "x", server="host:port")


def test_a_token_lets_in_and_its_absence_does_not(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("THING_TOKEN", "secret")
    tt.serve(port=0)
    address = thing._session.listener.address
    assert tt.catch(1, "x", server=address).wait(5)
    monkeypatch.delenv("THING_TOKEN")
    assert not tt.catch(1, "x", server=f"tcp://{address}").wait(5)
    assert "asks for a token" in caplog.text


def test_a_token_may_lie_in_a_private_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".config" / "tensortap" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("secret\n")
    file.chmod(0o644)
    with pytest.raises(tt.RefusedError, match="can be read by others"):
        tt.serve(port=0)
    file.chmod(0o600)
    tt.serve(port=0)
    assert tt.catch(1, "x", server=thing._session.listener.address).wait(5)


def test_a_summary_is_a_table_for_terminals_and_notebooks(serving):
    tt.catch(torch.ones(4, 64), "<weight>")
    tt.catch(0.5, "loss").wait(5)
    report = tt.summary()
    head, columns, weight, loss = str(report).splitlines()
    assert "2 values of 2 names" in head
    assert "1 job connected" in head
    assert columns.split() == ["name", "latest", "id", "values", "size", "arrived", "rank"]
    assert "float32[4,64] (torch)" in weight
    assert loss.split()[:3] == ["loss", "0.5", "2"]
    html = report._repr_html_()
    assert "&lt;weight&gt;" in html
    assert "<weight>" not in html


def test_a_name_cannot_play_with_the_terminal(serving):
    tt.catch(1, "\x1b[2Jevil\n").wait(5)
    assert "\x1b" not in str(tt.summary()) + str(tt.describe(1))


def test_a_description_tells_all_that_is_known(serving):
    tt.step(7)
    tt.catch(torch.tensor([1.0, float("nan"), 3.0]), "x").wait(5)
    text = str(tt.describe("x"))
    assert "1 NaN, 0 Inf" in text
    assert "1.00, 3.00" in text
    assert "test_thing.py" in text
    assert "7, 0, 0" in text
    assert str(tt.describe()).splitlines()[1:] == str(tt.summary()).splitlines()[1:]


def test_ingest_all_makes_variables_and_leaves_the_users_own_alone(serving, capsys):
    tt.catch(1, "model.head")
    tt.catch(3, "class")
    tt.catch(2, "mine").wait(5)
    space = {"mine": "untouched"}
    assert tt.ingest_all(space) == ["_class", "model_head"]
    assert space == {"mine": "untouched", "model_head": 1, "_class": 3}
    assert "left alone, because they are variables of yours: mine" in capsys.readouterr().out
    tt.catch(5, "model.head").wait(5)
    assert tt.ingest_all(space, overwrite=True) == ["_class", "mine", "model_head"]
    assert space["model_head"] == 5
    assert space["mine"] == 2


def test_status_in_a_pipe_is_told_once(serving, capsys):
    tt.catch(0.25, "loss").wait(5)
    tt.status()
    news, state = capsys.readouterr().out.splitlines()
    assert "loss  0.25" in news
    assert "values/s, lag" in state
    assert "% of its time" in state


def test_status_turns_in_a_terminal_and_an_interrupt_ends_it_while_the_server_stays(serving):
    tt.catch(0.25, "loss").wait(5)
    leader, follower = pty.openpty()
    shown = io.BytesIO()

    def interrupt_when_shown():
        while b"loss  0.25" not in shown.getvalue():
            shown.write(os.read(leader, 4096))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with os.fdopen(follower, "w") as terminal:
        watcher = threading.Thread(target=interrupt_when_shown)
        watcher.start()
        show_spinner(serving.state, serving.news(), out=terminal)
        watcher.join()
    os.close(leader)
    assert tt.catch(0.5, "loss").wait(5)
    assert tt.get("loss") == 0.5


def test_beyond_the_memory_the_oldest_go_but_the_last_of_each_name_and_what_is_pinned(monkeypatch, caplog):
    tt.serve(port=0, memory="1MB")
    address = thing._session.listener.address
    tt.catch(np.zeros(25_000), "rare", server=address)
    for number in range(10):
        tt.catch(np.full(25_000, number), "often", server=address).wait(5)
        if number == 1:
            tt.pin("often")
    assert tt.get("rare").shape == (25_000,)
    assert [int(one[0]) for one in tt.get_all("often")] == [1, 7, 8, 9]
    assert thing._session.history.nbytes <= 1 << 20
    assert caplog.text.count("the oldest values go") == 1
    assert "4, 6 gone, 1 pinned" in str(tt.summary())
    tt.unpin("often", 3)
    tt.catch(np.full(25_000, 10), "often", server=address).wait(5)
    assert [int(one[0]) for one in tt.get_all("often")] == [7, 8, 9, 10]


def test_names_without_end_do_not_fill_the_memory():
    tt.serve(port=0, memory=1 << 20)
    for number in range(20):
        tt.catch(np.zeros(25_000), f"x{number}", server=thing._session.listener.address).wait(5)
    assert thing._session.history.nbytes <= 1 << 20
    assert "x19" in thing._session.history.names


@pytest.mark.parametrize(("said", "found"), [("4GB", 4 << 30), ("1.5 MB", 3 << 19), (7, 7), (None, None)])
def test_memory_is_a_size_or_a_share(said, found):
    assert parse_memory_limit(said) == found


@pytest.mark.parametrize("said", ["lots", "-1", 0, "", "..%"])
def test_a_memory_that_means_nothing_is_refused(said):
    with pytest.raises(ValueError, match="give a share such as '50%'"):
        parse_memory_limit(said)


def test_half_of_the_machine_is_a_share_of_it():
    assert 0 < parse_memory_limit("50%") < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_arrives_can_be_recorded_and_tapped(tmp_path):
    memory = tt.Memory()
    with Tap(sinks=[memory]) as tap:
        tt.serve(port=0, to=str(tmp_path / "runs"), tap=tap)
        tt.catch(torch.arange(3), "x", server=thing._session.listener.address).wait(5)
        tt.stop_serving()
        assert [record.name for record in memory.records] == ["x"]
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    assert tt.Run(run).load("x").tolist() == [0, 1, 2]


def test_a_catch_also_flows_into_the_users_tap(unserved):
    memory = tt.Memory()
    with Tap(sinks=[memory]) as tap:
        tt.catch(1, "x", tap=tap).wait(5)
        tt.catch(2, "x", tap=tap)
    assert [record.value for record in memory.records] == [1, 2]


def test_a_capture_can_go_to_a_session(serving):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with tt.capture(model, "**", to=f"tcp://{serving.listener.address}"):
        output = model(torch.ones(1, 2))
    assert torch.equal(tt.get("1"), output.detach())


def test_switched_off_nothing_is_sent(monkeypatch, serving):
    monkeypatch.setattr(thing, "_is_on", False)
    assert tt.catch(object(), "x").wait() is False
    assert not thing._remote_sessions
