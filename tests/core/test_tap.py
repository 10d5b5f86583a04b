"""A tap: what flows in which order, and what a failure on the way means."""

import logging
import threading

import pytest

from tensortap.core.protocols import Stage
from tensortap.core.record import Record
from tensortap.core.tap import Tap


class Kept:
    """A sink in memory that notes what was asked of it."""

    def __init__(self, fails_on=()):
        self.values, self.calls, self.fails_on = [], [], fails_on

    def write(self, record):
        self._note("write")
        self.values.append(record.value)

    def flush(self):
        self._note("flush")

    def close(self):
        self._note("close")

    def _note(self, call):
        self.calls.append(call)
        if call in self.fails_on:
            raise OSError(f"{call} failed")


class Holding(Stage):
    """Holds everything, releases it on tick and on close with its letter appended."""

    def __init__(self, letter):
        self.letter, self.held, self.is_closed = letter, [], False

    def push(self, record):
        self.held.append(record)
        return ()

    def tick(self, step):
        held, self.held = self.held, []
        return [Record(r.name, r.value + self.letter) for r in held]

    def close(self):
        self.is_closed = True
        return self.tick(0)


class Appending(Stage):
    def __init__(self, letter):
        self.letter = letter

    def push(self, record):
        return (Record(record.name, record.value + self.letter),)


class Twice(Stage):
    def push(self, record):
        return (record, record)


class Failing(Stage):
    def push(self, record):
        raise RuntimeError("a stage failed")


@pytest.fixture
def tolerant(monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")


def text(value=""):
    return Record("x", value)


def test_stages_work_in_the_order_they_are_given():
    kept = Kept()
    Tap(stages=[Appending("a"), Twice(), Appending("b")], sinks=[kept]).emit(text())
    assert kept.values == ["ab", "ab"]


def test_every_sink_gets_every_record():
    sinks = Kept(), Kept()
    Tap(sinks=sinks).emit(text("v"))
    assert [sink.values for sink in sinks] == [["v"], ["v"]]


def test_a_tick_releases_through_the_later_stages_only():
    kept = Kept()
    tap = Tap(stages=[Appending("a"), Holding("h"), Appending("b")], sinks=[kept])
    tap.emit(text())
    assert kept.values == []
    tap.tick(1)
    assert kept.values == ["ahb"]


def test_what_a_tick_releases_is_seen_by_the_next_holding_stage_before_its_own_tick():
    kept = Kept()
    tap = Tap(stages=[Holding("a"), Holding("b")], sinks=[kept])
    tap.emit(text())
    tap.tick(1)
    assert kept.values == ["ab"]


def test_closing_drains_every_stage_then_closes_the_sinks():
    kept = Kept()
    tap = Tap(stages=[Holding("a"), Holding("b")], sinks=[kept])
    tap.emit(text())
    tap.close()
    assert kept.values == ["ab"]
    assert kept.calls == ["write", "close"]


def test_closing_twice_closes_once_and_a_closed_tap_takes_nothing():
    kept = Kept()
    tap = Tap(sinks=[kept])
    tap.close()
    tap.close()
    tap.emit(text())
    tap.tick(1)
    assert kept.calls == ["close"]


def test_leaving_by_an_exception_closes_the_sinks_without_draining():
    kept, holding = Kept(), Holding("a")
    tap = Tap(stages=[holding], sinks=[kept])
    tap.emit(text())
    with pytest.raises(KeyError), tap:
        raise KeyError
    assert not holding.is_closed
    assert kept.calls == ["close"]


def test_leaving_normally_drains():
    kept = Kept()
    with Tap(stages=[Holding("a")], sinks=[kept]) as tap:
        tap.emit(text())
    assert kept.values == ["a"]


def test_a_failing_sink_is_taken_out_logged_once_and_the_others_go_on(tolerant, caplog):
    bad, good = Kept(fails_on=["write"]), Kept()
    tap = Tap(sinks=[bad, good], on_error="log")
    with caplog.at_level(logging.ERROR, "tensortap.tap"):
        for value in "abc":
            tap.emit(text(value))
    assert good.values == ["a", "b", "c"]
    assert bad.calls == ["write", "close"]
    assert [record.message for record in caplog.records] == [
        "Kept failed and is taken out; the program goes on"
    ]
    assert caplog.records[0].exc_info is not None


def test_a_failing_stage_is_taken_out_and_later_records_pass_by_it(tolerant, caplog):
    kept = Kept()
    tap = Tap(stages=[Failing(), Appending("a")], sinks=[kept], on_error="log")
    tap.emit(text("1"))
    tap.emit(text("2"))
    assert kept.values == ["2a"]
    assert len(caplog.records) == 1


def test_a_stage_that_fails_on_the_first_of_several_is_logged_once(tolerant, caplog):
    kept = Kept()
    tap = Tap(stages=[Twice(), Failing()], sinks=[kept], on_error="log")
    tap.emit(text("v"))
    assert kept.values == ["v"]
    assert len(caplog.records) == 1


def test_a_stage_that_fails_while_ticking_does_not_shift_the_others(tolerant):
    class FailingTick(Stage):
        def tick(self, step):
            raise RuntimeError

    kept = Kept()
    tap = Tap(stages=[FailingTick(), Holding("a"), Appending("b")], sinks=[kept], on_error="log")
    tap.emit(text())
    tap.tick(1)
    assert kept.values == ["ab"]


def test_a_stage_that_fails_lazily_is_a_failing_stage_too(tolerant, caplog):
    class Lazy(Stage):
        def push(self, record):
            yield record
            raise RuntimeError("later")

    kept = Kept()
    tap = Tap(stages=[Lazy()], sinks=[kept], on_error="log")
    tap.emit(text("1"))
    tap.emit(text("2"))
    assert "2" in kept.values
    assert len(caplog.records) == 1


def test_strict_mode_raises_what_would_be_logged(monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    with pytest.raises(OSError, match="write failed"):
        Tap(sinks=[Kept(fails_on=["write"])], on_error="log").emit(text())


def test_a_tap_of_the_users_own_raises(tolerant):
    with pytest.raises(OSError, match="write failed"):
        Tap(sinks=[Kept(fails_on=["write"])]).emit(text())


def test_every_sink_is_closed_even_when_one_fails():
    sinks = Kept(fails_on=["close"]), Kept(), Kept(fails_on=["close"])
    with pytest.raises(OSError, match="close failed"):
        Tap(sinks=sinks).close()
    assert [sink.calls for sink in sinks] == [["close"]] * 3


def test_sinks_are_closed_even_when_draining_fails():
    class FailingClose(Stage):
        def close(self):
            raise RuntimeError("cannot drain")

    kept = Kept()
    with pytest.raises(RuntimeError, match="cannot drain"):
        Tap(stages=[FailingClose()], sinks=[kept]).close()
    assert kept.calls == ["close"]


def test_flush_reaches_the_sinks():
    kept = Kept()
    Tap(sinks=[kept]).flush()
    assert kept.calls == ["flush"]


def test_a_sink_that_emits_into_its_own_tap_does_not_loop():
    class Echo(Kept):
        def write(self, record):
            super().write(record)
            tap.emit(text("echo"))
            tap.tick(1)

    echo = Echo()
    tap = Tap(sinks=[echo])
    tap.emit(text("once"))
    tap.emit(text("twice"))
    assert echo.values == ["once", "twice"]


def test_two_threads_lose_nothing():
    kept = Kept()
    tap = Tap(stages=[Appending("!")], sinks=[kept])
    threads = [
        threading.Thread(target=lambda name=name: [tap.emit(text(f"{name}{i}")) for i in range(500)])
        for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept.values) == sorted(f"{name}{i}!" for name in "ab" for i in range(500))


class Tapped:
    """A source that notes when it is started and stopped."""

    def __init__(self, fails=False):
        self.stops, self.fails = 0, fails

    def start(self, tap):
        tap.emit(text("started"))

    def stop(self):
        self.stops += 1
        if self.fails:
            raise RuntimeError("cannot stop")


def test_a_source_is_started_when_attached_and_stopped_before_the_sinks_close():
    kept, source = Kept(), Tapped()
    tap = Tap(sinks=[kept])
    assert tap.attach(source) is tap
    tap.close()
    assert kept.values == ["started"]
    assert source.stops == 1


def test_a_source_that_cannot_stop_keeps_nobody_from_ending():
    kept, first, second = Kept(), Tapped(fails=True), Tapped()
    tap = Tap(sinks=[kept]).attach(first).attach(second)
    with pytest.raises(RuntimeError, match="cannot stop"):
        tap.close()
    assert second.stops == 1
    assert kept.calls[-1] == "close"
