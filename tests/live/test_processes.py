"""Real jobs: looked into while they train, by sessions in other processes."""

import json
import time

import pytest
import torch

import tensortap as tt

pytestmark = pytest.mark.process

TRAINING = """
    import json
    if sys.argv[1] == "live":
        tt.listen("train")
        tt.expose(model)
    say("ready")
    sys.stdin.readline()
    losses = []
    while len(losses) < 400:
        losses.append(train_once().item())
        time.sleep(0.002)
    say(json.dumps(losses))
    sys.stdin.readline()
"""
ENDLESS = """
    tt.listen("train")
    tt.expose(model)
    say("ready")
    while True:
        train_once()
        time.sleep(0.002)
"""


def test_a_tap_in_a_running_job_sees_its_values_and_leaves_its_losses_as_they_were(start):
    watched, alone = start(TRAINING, "live"), start(TRAINING, "alone")
    for process in (watched, alone):
        process.stdin.write("go\n")
    with tt.attach("train") as session:
        weights = session.tap("0.weight", "loss", every=5)
        seen = [weights.next(timeout=10) for _ in range(12)]
        session.when("absmax(0) > 1e9")
        weights.stop()
        others = session.tap("*", "*.grad")
        assert others.next(timeout=10).value is not None
    assert json.loads(watched.stdout.readline()) == json.loads(alone.stdout.readline())
    assert {record.name for record in seen} == {"0.weight", "loss"}
    assert all(record.step % 5 == 0 for record in seen)


def test_a_session_is_told_at_once_that_its_job_has_ended(start):
    process = start(ENDLESS)
    with tt.attach("train") as session:
        tapped = session.tap("0")
        tapped.next(timeout=10)
        process.kill()
        begun = time.monotonic()
        assert all(record.name == "0" for record in tapped)  # what came before, and then no more
        with pytest.raises(tt.NotServingError, match="gone without a word"):
            tapped.next(timeout=30)
        assert time.monotonic() - begun < 5
        assert not session.is_open
        assert "gone without a word" in repr(session)
    process.wait(10)
    assert tt.jobs() == []


def test_two_programs_of_one_name_are_both_reachable(start):
    first, second = start(ENDLESS), start(ENDLESS)
    assert sorted(job.pid for job in tt.jobs()) == sorted([first.pid, second.pid])
    with tt.attach("train") as newest, tt.attach(first.pid) as other:
        assert [newest.peers[0].about["pid"], other.peers[0].about["pid"]] == [second.pid, first.pid]
        assert len(newest.peers) == 1
        values = [session.tap("0").next(timeout=10).value for session in (newest, other)]
    assert all(isinstance(value, torch.Tensor) for value in values)


RANKS = """
    import torch.distributed as dist
    rank, world = int(sys.argv[1]), 2
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=world)
    tt.listen("ranks")
    tt.expose(model)
    say("ready")
    number = 0
    while True:
        train_once()
        flag = torch.tensor([number])
        dist.all_reduce(flag)
        number += 1
        if number % 20 == 0:
            say(number, time.monotonic())
"""


@pytest.fixture
def two_ranks(start, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    processes = [start(RANKS, str(rank), str(tmp_path / "meeting"), waits=False) for rank in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=20)[1]
    return processes


def test_all_ranks_of_a_job_are_reached_and_can_be_chosen(two_ranks):
    with tt.attach("ranks") as session:
        assert [peer.rank for peer in session.peers] == [0, 1]
        both, second = session.tap("0"), session.tap("2", ranks=[1])
        assert {both.next(timeout=10).rank for _ in range(40)} == {0, 1}
        assert second.next(timeout=10).rank == 1
        with pytest.raises(tt.NotServingError, match=r"no rank \[5\] in this session; it has \[0, 1\]"):
            session.tap("0", ranks=[5])
    with tt.attach("ranks", ranks=[1]) as session:
        assert [peer.rank for peer in session.peers] == [1]
