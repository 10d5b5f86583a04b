"""A tap that costs the job more than its share is taken in fewer steps, and says so."""

import time

import pytest
import torch

import tensortap as tt
from tensortap.live.job import tap
from tensortap.live.job.tap import Throttle


@pytest.fixture
def quick(monkeypatch):
    """Judge after a hundredth of a second."""
    monkeypatch.setattr(tap, "_WINDOW", 0.01)


def worked(found, steps, share, seconds=0.02):
    """As if that many steps had been taken, which cost that share of the time."""
    for step in range(steps):
        found.add_cost(step, share * seconds / steps)
    time.sleep(seconds)  # the time over which a share is a share


def test_what_is_cheap_is_taken_in_every_step(quick):
    found = Throttle()
    worked(found, steps=10, share=0.001)
    assert found.adjust(0.03) == ""
    assert all(found.allows(step, 1) for step in range(10))


def test_what_costs_too_much_is_taken_so_rarely_that_it_does_not(quick):
    found = Throttle()
    worked(found, steps=10, share=0.3)
    told = found.adjust(0.03)
    assert "% are allowed" in told
    assert f"one in {found.every} is taken now" in told
    assert 5 <= found.every <= 10
    assert sum(found.allows(step, 1) for step in range(10 * found.every)) == 10


def test_steps_are_counted_among_those_that_were_asked_for():
    found = Throttle()
    found.every = 3
    assert [step for step in range(0, 100, 10) if found.allows(step, 10)] == [0, 30, 60, 90]


def test_what_became_cheap_is_taken_in_every_step_again(quick):
    found = Throttle()
    found.every = 10
    worked(found, steps=10, share=0.001)
    assert "every step that was asked for is taken" in found.adjust(0.03)
    assert found.every == 1


def test_two_steps_are_not_enough_for_a_judgement(quick):
    found = Throttle()
    worked(found, steps=2, share=0.9)
    assert found.adjust(0.03) == ""


def steps_until(tapped, is_so, seconds=20):
    value, deadline = torch.zeros(1 << 18), time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, tapped.events
        tt.step()
        tt.tap(value, "big")
        time.sleep(0.0005)


@pytest.fixture
def counted_steps():
    yield
    from tensortap.core.steps import reset_steps

    reset_steps()


def test_a_session_is_told_when_its_tap_is_slowed_down(runtime, quick, counted_steps):
    endpoint = tt.listen("slow", share=1e-9)  # one step in a million
    try:
        with tt.attach("slow") as session:
            tapped = session.tap("big", timeout=0)
            steps_until(tapped, lambda: any("of step time" in told for told in tapped.events))
            count, limit = len(tapped.history), tt.step() + 50
            steps_until(tapped, lambda: tt.step() > limit)
            assert len(tapped.history) <= count + 2  # those that were on their way
            assert tapped.state == "armed"
    finally:
        endpoint.close()


def test_without_a_limit_no_tap_is_slowed_down(runtime, quick, counted_steps):
    endpoint = tt.listen("free", share=None)
    try:
        with tt.attach("free") as session:
            tapped = session.tap("big", timeout=0)
            steps_until(tapped, lambda: len(tapped.history) > 50)
            assert tapped.events == []
    finally:
        endpoint.close()


def test_a_share_that_means_nothing_is_refused(runtime):
    with pytest.raises(ValueError, match=r"share is 3; give a part of step time such as 0.03"):
        tt.listen("wrong", share=3)
