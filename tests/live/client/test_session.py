"""What a session sees of a running job, and what it may ask."""

import gc
import time

import pytest
import torch

import tensortap as tt
from tensortap.kernels.statistics import Statistics


def test_a_tap_that_is_placed_in_a_running_job_brings_its_values_exactly(job, session):
    job.step(3)
    tapped = session.tap("0", timeout=0)
    expected = []
    handle = job.model[0].register_forward_hook(lambda *call: expected.append(call[2].detach().clone()))
    job.step()
    handle.remove()
    record = tapped.next(timeout=5)
    assert (record.name, record.step, record.kind) == ("0", 3, "output")
    assert torch.equal(record.value, expected[0])


@pytest.mark.parametrize("pattern", ["out", "0.in.input", "0.weight", "{0,2}", "<Linear>", "0.forward.input"])
def test_the_whole_grammar_is_understood(job, session, pattern):
    tapped = session.tap(pattern, timeout=0)
    job.step(2)
    assert torch.isfinite(tapped.next(timeout=5).value).all()


def test_gradients_come_too(job, session):
    tapped = session.tap("0.grad", timeout=0)
    job.step().sum().backward()
    assert tapped.next(timeout=5).name == "0.grad"


def test_a_tap_point_comes_with_the_step_of_the_model(job, session):
    job.step(4)
    tapped = session.tap("loss", timeout=0)
    job.step()
    tt.tap(torch.tensor(2.5), "loss")
    record = tapped.next(timeout=5)
    assert (record.value.item(), record.step, tapped.state) == (2.5, 4, "armed")


def test_declared_steps_are_the_steps(job, session):
    tapped = session.tap("0", every=10, timeout=0)
    seen = []
    for number in range(5, 21):
        tt.step(number)
        job.step()
        if number % 10 == 0:  # now: a newer value may take its place
            seen.append(tapped.next(timeout=5).step)
    assert seen == [10, 20]


def test_a_stopped_tap_leaves_no_hook(job, session):
    tapped = session.tap("*", "*.in", timeout=0)
    job.step()
    assert job.hooks > 0
    tapped.next(timeout=5)
    tapped.stop()
    session.catalog("nothing at all", timeout=0)  # answered after the end of the tap was read
    job.step(3)
    assert job.hooks == 0
    assert len(list(tapped)) < 10
    with pytest.raises(tt.NotServingError, match="ended"):
        tapped.next()


def test_a_session_that_was_closed_here_does_not_say_that_the_job_has_gone(job):
    session = tt.attach("here")
    session.close()
    assert repr(session) == "session with 'here': this session is closed"


def test_taps_end_with_their_session(job):
    with tt.attach("here") as session:
        session.tap("0", timeout=0)
        job.step()
        assert job.hooks > 0
    wait_until(lambda: job.step() is not None and job.hooks == 0)


def test_a_sticky_tap_outlives_its_session_until_another_ends_it(job):
    with tt.attach("here") as session:
        session.tap("0", sticky=True, timeout=0)
        job.step()
    wait_until(lambda: "0 attached" in repr(job.endpoint))
    job.step(3)
    assert job.hooks > 0
    with tt.attach("here") as session:
        session.untap("*")
        wait_until(lambda: job.step() is not None and job.hooks == 0)


def test_once_brings_one_value_and_ends(job, session, stepping):
    with stepping(job):
        weight = session.once("2.weight")
        several = session.once("{0,2}.bias")
    assert torch.equal(weight, job.model[2].weight)
    assert list(several) == ["0.bias", "2.bias"]
    assert session.taps == {}


@pytest.mark.parametrize(("keep", "shape"), [("[0, :3]", (3,)), ("[..., -1]", (4,)), ("[1:3]", (2, 16))])
def test_a_slice_is_cut_in_the_job(job, session, keep, shape):
    tapped = session.tap("0", keep=keep, timeout=0)
    job.step()
    assert tuple(tapped.next(timeout=5).value.shape) == shape


def test_statistics_travel_instead_of_the_value(job, session):
    tapped = session.tap("0", keep="stats", timeout=0)
    job.step()
    found = tapped.next(timeout=5).value
    assert isinstance(found, Statistics)
    assert found.count == 64


def test_a_slice_that_does_not_fit_is_told_and_harms_nothing(job, session):
    tapped = session.tap("0", keep="[0, 99]", timeout=0)
    job.step(2)
    wait_until(lambda: tapped.events)
    assert "IndexError" in tapped.events[0]
    assert len(tapped.events) == 1
    assert job.step() is not None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"keep": "everything"}, "keep is 'everything'"),
        ({"keep": "[x]"}, "no slice"),
        ({"every": 0}, "every is 0"),
        ({"first": -1}, "first is -1"),
        ({"patterns": []}, "1 to 64 texts"),
    ],
    ids=lambda one: str(one),
)
def test_a_request_that_is_not_on_the_list_is_refused_at_once(job, session, wrong, told):
    patterns = wrong.pop("patterns", ["0"])
    with pytest.raises(ValueError, match=told):
        session.tap(*patterns, **wrong)
    assert session.taps == {}


def test_a_session_cannot_make_the_job_import_anything(job, session):
    with pytest.raises(tt.RefusedError, match="the job has not imported"):
        session.tap("antigravity:fly.x")
    with pytest.raises(tt.RefusedError, match="the job has not imported"):
        session.when("max(antigravity:fly.x) > 1")


def test_a_name_that_is_nowhere_is_answered_with_the_nearest(job, session, stepping):
    with stepping(job), pytest.raises(tt.UnknownNameError, match=r"no site '2.weigth'.*'2.weight'"):
        session.tap("2.weigth", timeout=5)
    wait_until(lambda: job.step() is not None and job.hooks == 0)


def test_the_catalog_knows_names_before_and_shapes_after_one_step(job, session, stepping):
    before = {place.name: place.shape for place in session.catalog("0", timeout=0)}
    assert before == {"0": None, "0.in.input": None, "0.weight": (16, 8), "0.bias": (16,)}
    with stepping(job):
        after = session.catalog(timeout=5)
    shapes = {place.name: place.shape for place in after}
    assert (shapes["0"], shapes["in.input"], shapes["2"]) == ((4, 16), (4, 8), (4, 1))
    assert after[0].dtype == "float32"
    wait_until(lambda: job.step() is not None and job.hooks == 0)


def test_the_catalog_of_an_entered_capture_needs_no_expose(runtime):
    gc.collect()
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    endpoint = tt.listen("captured")
    try:
        with tt.attach("captured") as session:
            assert session.catalog(timeout=0) == []
            with tt.capture(model, "0"):
                assert "0.weight" in session.catalog(timeout=0).names
                tapped = session.tap("0", timeout=0)
                model(torch.ones(1, 2))
                assert tapped.next(timeout=5).value.shape == (1, 3)
            assert session.catalog(timeout=0) == []
    finally:
        endpoint.close()


def test_without_anything_exposed_a_tap_says_what_to_do(runtime):
    gc.collect()
    endpoint = tt.listen("empty")
    try:
        with tt.attach("empty") as session:
            tapped = session.tap("x", timeout=0)
            for _ in range(3):
                tt.step()
            with pytest.raises(tt.UnknownNameError, match=r"tt.expose\(model\)"):
                tapped.next(timeout=5)
    finally:
        endpoint.close()


@pytest.mark.parametrize("then", ["tell", "send"])
def test_a_condition_is_watched_in_the_job(job, session, then):
    watched = session.when("absmax(0) > 1e3", then=then, timeout=0)
    job.step(2)
    with torch.no_grad():
        job.model[0].bias += 1e6
    job.step(1)
    wait_until(lambda: watched.fired)
    assert "absmax(0) > 1e3 holds in step 2 at '0'" in watched.events[0]
    if then == "send":
        assert watched.next(timeout=5).value.abs().max() > 1e3
    assert len(watched.history) == (then == "send")


def test_a_condition_of_all_is_decided_after_the_step(job, session):
    watched = session.when("all(norm({0,2}) > 0)", first=1, timeout=0)
    job.step()
    assert watched.fired == 0
    job.step()
    wait_until(lambda: watched.state == "done")
    assert watched.fired == 1


def test_a_condition_can_dump_in_the_job(job, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watched = session.when("absmax(0) > 0", then="dump", first=2, timeout=0)
    job.step(5)
    wait_until(lambda: watched.state == "done")
    job.endpoint.close()
    (run,) = (tmp_path / "runs").iterdir()
    assert str(run.name) in watched.events[0]
    assert [stored.step for stored in tt.Run(run)] == [0, 1]


def test_a_condition_that_is_none_is_refused(job, session):
    with pytest.raises(ValueError, match="'print' is no function"):
        session.when("print(0) > 1")
    with pytest.raises(ValueError, match="then is 'shout'"):
        session.when("absmax(0) > 1", then="shout")


def test_what_arrives_can_be_recorded_into_a_run(job, session, tmp_path):
    run = session.record(tmp_path / "runs")
    tapped = session.tap("0", "2", timeout=0)
    job.step()
    values = {record.name: record.value for record in (tapped.next(timeout=5), tapped.next(timeout=5))}
    session.close()
    stored = tt.Run(run)
    assert {name: torch.equal(stored.load(name), value) for name, value in values.items()} == {
        "0": True,
        "2": True,
    }


def test_iteration_follows_the_job_and_ends_with_it(job, session):
    tapped = session.tap("0", timeout=0)
    job.step()
    steps = []
    for record in tapped:
        steps.append(record.step)
        if len(steps) < 3:
            job.step()
        else:
            job.endpoint.close()
    assert steps == sorted(steps)
    with pytest.raises(tt.NotServingError, match="the job 'here' said goodbye"):
        tapped.next()
    with pytest.raises(tt.NotServingError, match=r"said goodbye; tt.attach\(\)"):
        session.tap("0")


def test_waiting_in_vain_says_what_is_awaited(job, session):
    tapped = session.tap("0", timeout=0)
    with pytest.raises(TimeoutError, match="the job has not begun a step since"):
        tapped.next(timeout=0.05)


def test_a_session_shows_the_job_its_taps_and_what_they_cost(job, session, stepping):
    tapped = session.tap("0", timeout=0)
    with stepping(job):
        tapped.next(timeout=5)
        wait_until(lambda: session.status["rate"] > 0 and session.status["overhead"])
    text = repr(session)
    assert "session with 'here': step" in text
    assert "overhead" in text
    assert "'0'" in text
    assert "armed" in repr(tapped)
    assert "<table>" in session._repr_html_()
    assert "<table>" in session.catalog(timeout=0)._repr_html_()


def test_history_is_bounded_in_bytes_but_for_the_last_and_the_pinned(job):
    with tt.attach("here", memory=4000) as session:
        tapped = session.tap("0", timeout=0)
        job.step()
        first = tapped.pin(tapped.next(timeout=5))
        wait_until(lambda: job.step() is not None and session.buffer.evicted > 5)
        assert session.buffer.nbytes <= 4000
        assert tapped.history[0] is first
        assert tapped.pin() is tapped.latest


def test_values_are_read_by_name(job, session):
    tapped = session.tap("*", timeout=0)
    job.step()
    for _ in range(3):
        tapped.next(timeout=5)
    assert tapped["1"].shape == (4, 16)
    assert len(tapped["{0,2}"]) == 2
    assert tapped.series("1").steps == [0]
    with pytest.raises(tt.UnknownNameError, match="nothing called 'x' has come; there is 0, 1, 2"):
        tapped["x"]


def test_who_asks_rarely_gets_recent_values(job, session):
    tapped = session.tap("0", timeout=0)
    wait_until(lambda: job.step() is not None and len(tapped.history) > 6)
    given = tapped.next(timeout=5)
    assert given.step > tapped.history[3].step
    assert tapped.missed > 3


def wait_until(is_so, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.002)
