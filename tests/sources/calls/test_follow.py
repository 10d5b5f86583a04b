"""Following shares the trace function with everybody else, and leaves nothing behind."""

import bdb
import sys
import threading
import trace as stdlib_trace

import pytest
from tests.sources.calls.followed import Told, following

from tensortap.core.tap import Tap
from tensortap.sources.calls.functions import TracedFunctions
from tensortap.sources.probes.settrace import trace_code

source, told = following()
followed = source.wrap


@pytest.fixture(autouse=True)
def fresh():
    told.records.clear()
    yield
    assert (sys.gettrace(), threading.gettrace()) == (None, None)


def inner(x):
    y = x + 1
    return y  # noqa: RET504


def outer(x):
    z = inner(x)
    for i in range(2):
        z = z + i
    try:
        raise KeyError(z)
    except KeyError:
        w = [inner(n) for n in range(2)]
    return w


def generates(n):
    for i in range(n):
        yield inner(i)


followed_outer, followed_generates = followed(outer), followed(generates)
CODES = {function.__code__ for function in (inner, outer, generates)}


class Recorder:
    """A tracer of somebody else, which notes all that happens in the functions above."""

    def __init__(self):
        self.events = []

    def __call__(self, frame, event, argument):
        if frame.f_code in CODES:
            self.events.append((event, frame.f_code.co_name, frame.f_lineno))
        return self


def run(one, two):
    one(1)
    list(two(2))


def test_another_tracer_sees_the_same_with_and_without_us_and_is_put_back():
    alone, along = Recorder(), Recorder()
    sys.settrace(alone)
    run(outer, generates)
    sys.settrace(along)
    run(followed_outer, followed_generates)
    assert sys.gettrace() is along
    sys.settrace(None)
    assert along.events == alone.events != []
    assert len(told.of("call")) == 7


class Debugger(bdb.Bdb):
    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        if frame.f_code in CODES:
            self.stops.append((frame.f_code.co_name, frame.f_lineno))
        self.set_step()


def test_a_debugger_stops_where_it_would():
    alone, along = Debugger(), Debugger()
    alone.runcall(run, outer, generates)
    along.runcall(run, followed_outer, followed_generates)
    assert along.stops == alone.stops != []
    assert len(told.of("call")) == 7


def test_lines_are_counted_as_they_would_be():
    counts = []
    for functions in ((outer, generates), (followed_outer, followed_generates)):
        counter = stdlib_trace.Trace(trace=False)
        counter.runfunc(run, *functions)
        lines = range(inner.__code__.co_firstlineno, generates.__code__.co_firstlineno + 3)
        found = counter.results().counts.items()
        counts.append({line: n for (file, line), n in found if file == __file__ and line in lines})
    assert counts[0] == counts[1] != {}


def test_a_trace_function_that_the_program_sets_meanwhile_stays(caplog):
    mine = Recorder()

    @followed
    def sets():
        sys.settrace(mine)
        return inner(1)

    sets()
    assert sys.gettrace() is mine
    sys.settrace(None)
    assert "was replaced meanwhile" in caplog.text
    assert ("call", "inner", inner.__code__.co_firstlineno) in mine.events


def test_a_trace_function_that_the_program_sets_for_a_while_does_not_end_the_following():
    @followed
    def sets():
        before = sys.gettrace()
        sys.settrace(None)
        inner(1)
        sys.settrace(before)
        return inner(2)

    assert sets() == 3
    assert len(told.of("call")) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_nothing_is_left_after_an_exception(error):
    @followed
    def raises():
        raise error

    @followed
    def generates_once():
        yield 1
        raise error

    with pytest.raises(error):
        raises()
    assert sys.gettrace() is None
    running = generates_once()
    next(running)
    assert sys.gettrace() is None
    with pytest.raises(error):
        next(running)
    assert sys.gettrace() is None


class Interrupting:
    """As Ctrl-C while a line is being written."""

    def write(self, record):
        if record.kind == "local":
            raise KeyboardInterrupt

    def flush(self):
        pass

    close = flush


def test_an_interrupt_while_we_write_reaches_the_program_and_leaves_no_trace_function():
    mine = TracedFunctions()
    Tap(sinks=[Interrupting()], on_error="log").attach(mine)
    before = Recorder()
    for previous in (None, before):
        sys.settrace(previous)
        with pytest.raises(KeyboardInterrupt):
            mine.wrap(inner)(1)
        assert sys.gettrace() is previous
        sys.settrace(None)
    mine.stop()


class InterruptingOnce(Told):
    """As Ctrl-C while the first change is being written."""

    def write(self, record):
        if record.kind == "local" and not self.of("local"):
            self.records.append(record)
            raise KeyboardInterrupt
        super().write(record)


def interrupted(function):
    sink, mine = InterruptingOnce(), TracedFunctions()
    Tap(sinks=[sink], on_error="log").attach(mine)
    return mine.wrap(function), sink


def test_a_call_that_was_left_by_an_interrupt_of_ours_is_told_to_its_end():
    def calls(x):
        return inner(x) + 1

    run, sink = interrupted(calls)
    with pytest.raises(KeyboardInterrupt):
        run(1)
    last = sink.records[-1]
    assert (last.kind, last.value, last.site.depth) == ("raise", "KeyboardInterrupt", 0)
    assert last.site.line == calls.__code__.co_firstlineno + 1


def test_a_call_that_catches_an_interrupt_of_ours_tells_what_it_returned():
    def catches(x):
        try:
            return inner(x)
        except KeyboardInterrupt:
            return "caught"

    run, sink = interrupted(catches)
    try:
        raise LookupError
    except LookupError:  # which has nothing to do with the call
        assert run(1) == "caught"
    assert sink.lines[-1].startswith("return ")
    assert sink.records[-1].value == "caught"


def test_a_generator_that_catches_an_interrupt_of_ours_tells_what_it_returned():
    def generates_after(x):
        try:
            inner(x)
        except KeyboardInterrupt:
            return "end"
        yield x

    run, sink = interrupted(generates_after)
    assert list(run(1)) == []
    assert (sink.records[-1].kind, sink.records[-1].value) == ("return", "end")


def test_a_probe_and_a_follower_share_a_function():
    told_by_probe = []
    _, remove = trace_code(inner.__code__, None, lambda first: lambda at, value: told_by_probe.append(value))
    followed_outer(1)
    assert sys.gettrace() is not None
    remove()
    assert told_by_probe == [1, 2, 0, 1, 1, 2]
    assert len(told.of("call")) == 4


def test_a_probe_that_is_removed_within_a_followed_call_leaves_it_followed():
    @followed
    def probes():
        _, remove = trace_code(inner.__code__, None, lambda first: None)
        inner(1)
        remove()
        return inner(2)

    probes()
    assert len(told.of("call")) == 3


def test_a_probe_placed_before_stays_after_a_followed_call():
    told_by_probe = []
    _, remove = trace_code(inner.__code__, {"y"}, lambda first: lambda at, value: told_by_probe.append(value))
    followed_outer(1)
    inner(9)
    remove()
    assert told_by_probe[-1] == 10


def test_a_followed_generator_frame_is_left_to_later_tracers():
    def makes():
        yield inner(1)
        yield inner(2)

    @followed
    def returns_it():
        running = makes()
        next(running)
        return running

    running = returns_it()
    count = len(told.records)
    recorder = Recorder()
    sys.settrace(recorder)
    assert next(running) == 3
    sys.settrace(None)
    assert len(told.records) == count
    assert [event for event, *_ in recorder.events] == ["call", "line", "line", "return"]


def test_the_environment_of_the_call_is_untouched():
    @followed
    def looks():
        x = 1
        x += 1
        return locals(), sys._getframe().f_back.f_code.co_name

    assert looks()[0] == {"x": 2}


def test_deep_recursion_ends_as_it_would():
    @followed
    def endless(n):
        return endless_inner(n)

    def endless_inner(n):
        return endless_inner(n + 1)

    with pytest.raises(RecursionError):
        endless(0)
    assert sys.gettrace() is None
