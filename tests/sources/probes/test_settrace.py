"""Where a function cannot be rewritten its lines are traced, and other tracers do not notice."""

import asyncio
import bdb
import logging
import sys
import threading
import trace as stdlib_trace
import types

import pytest

from tensortap.sources.probes.settrace import bindings_in_code, trace_code

SOURCE = """
def plain(x):
    y = (
        x +
        1
    )
    y = y if y else None
    if y:
        z = y
    return z

def loop(values):
    last = None
    for v in values:
        last = v
    else:
        done = True
    return last

def one_line(n):
    for i in range(n): v = i
    a = b = n; a += 1
    return [w for w in (a, b)]

def twice(x):
    x = x + 1; x = x * 10
    return x

def perhaps(x):
    y = 0
    for n in (0, 1):
        n and (y := x)
    return y

def caught(d):
    w = None
    try:
        w = 1 / d
    except ZeroDivisionError as error:
        w = str(error)
    finally:
        v = 6
    return v, w

def missed(d):
    w = 5
    try:
        w = 1 / d
    except ZeroDivisionError:
        pass
    return w

def fails(x):
    y = x
    return y / 0

def cell(x):
    y = x
    def inner():
        return y
    y = y + 1
    return inner()

def starred(first=1, *rest, key=2, **more):
    return key

def any_number(*those):
    return those

def generator(n):
    for i in range(n):
        got = yield i
        v = got or i
    return v

async def coroutine(n):
    v = n + 1
    v = await step(v * 2)
    return v

async def step(v):
    import asyncio
    await asyncio.sleep(0)
    return v

class Layer:
    def forward(self, x):
        __hidden = x
        return __hidden

def outer(x):
    y = plain(x)
    return loop([y])
"""
SCOPE: dict = {"__file__": "<no source>"}  # asked for by the tracer of the standard library
exec(compile(SOURCE, "<no source>", "exec"), SCOPE)
SCOPE = types.SimpleNamespace(**SCOPE)


class Listener:
    def __init__(self, function, *names, returns=False, only=None):
        self.told, self.asked, self._only = [], [], only
        self.bindings, self.remove = trace_code(function.__code__, names or None, self.enter, returns=returns)

    def enter(self, first):
        self.asked.append(first)
        return self.seen if self._only in (None, first) else None

    def seen(self, at, value):
        self.told.append((self.bindings[at].name, value))


class Recorder:
    """A tracer of somebody else: notes all that happens in the functions above."""

    def __init__(self):
        self.events, self.asks_for_instructions = [], False

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != "<no source>":
            return None
        frame.f_trace_opcodes = self.asks_for_instructions
        shown = argument[0].__name__ if event == "exception" else repr(argument)
        self.events.append((event, frame.f_code.co_name, frame.f_lineno, shown))
        return self


def told_by(function, names, *arguments, returns=False, drive=None):
    listener = Listener(function, *names, returns=returns)
    result = function(*arguments)
    if drive:
        drive(result)
    listener.remove()
    assert sys.gettrace() is threading.gettrace() is None
    return listener.told


SAME = object()
CASES = {
    "several lines": ("plain", "y z", [1], [("y", 2), ("y", 2), ("z", 2)]),
    "the same object again": (
        "loop",
        "v last done",
        [[SAME, SAME]],
        [("last", None), *[("v", SAME), ("last", SAME)] * 2, ("done", True)],
    ),
    "an empty loop": ("loop", "v last done", [[]], [("last", None), ("done", True)]),
    "twice on a line": ("twice", "x", [1], [("x", 1), ("x", 20)]),
    "bound or not": ("perhaps", "y", [9], [("y", 0), ("y", 9)]),
    "no exception": ("caught", "w error v", [1], [("w", None), ("w", 1.0), ("v", 6)]),
    "not bound by a line that failed": ("missed", "w", [0], [("w", 5)]),
    "arguments": ("starred", "first rest key", [], [("first", 1), ("rest", ()), ("key", 2)]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_binding_is_told_once_it_was_made(case):
    function, names, arguments, expected = CASES[case]
    assert told_by(vars(SCOPE)[function], names.split(), *arguments) == expected


def test_bindings_that_share_a_line_are_told_as_they_follow():
    told = told_by(SCOPE.one_line, ["i", "v"], 2)
    assert [value for name, value in told if name == "i"] == [0, 1]
    assert [value for name, value in told if name == "v"] == [0, 1]
    assert told_by(SCOPE.one_line, ["a", "b", "w"], 2) == [("a", 3), ("b", 2)]


def test_an_exception_is_told_while_it_has_its_name():
    told = told_by(SCOPE.caught, ["w", "error", "v"], 0)
    assert [(name, str(value)) for name, value in told] == [
        ("w", "None"), ("error", "division by zero"), ("w", "division by zero"), ("v", "6"),
    ]  # fmt: skip


def test_a_variable_that_an_inner_function_shares_is_told():
    assert [value for name, value in told_by(SCOPE.cell, ["x", "y"], 1) if name == "y"] == [1, 2]


def test_what_is_returned_is_told_and_what_is_raised_is_not():
    assert told_by(SCOPE.plain, ["z"], 1, returns=True) == [("z", 2), ("return", 2)]
    listener = Listener(SCOPE.fails, "y", returns=True)
    with pytest.raises(ZeroDivisionError):
        SCOPE.fails(1)
    listener.remove()
    assert listener.told == [("y", 1)]


def test_a_generator_tells_each_value_and_returns_once():
    told = told_by(SCOPE.generator, ["n", "i", "got", "v"], 2, returns=True, drive=list)
    assert told == [
        ("n", 2), ("i", 0), ("got", None), ("v", 0), ("i", 1), ("got", None), ("v", 1), ("return", 1),
    ]  # fmt: skip


def test_a_generator_that_began_before_is_not_watched():
    waiting = SCOPE.generator(2)
    next(waiting)
    listener = Listener(SCOPE.generator)
    assert list(waiting) == [1]
    listener.remove()
    assert (listener.asked, listener.told) == ([], [])


def test_a_coroutine_is_told():
    told = told_by(SCOPE.coroutine, ["n", "v"], 3, returns=True, drive=asyncio.run)
    assert told == [("n", 3), ("v", 4), ("v", 8), ("return", 8)]


def test_the_first_argument_is_asked_about():
    listener = Listener(SCOPE.any_number)
    SCOPE.any_number(4, 5)
    SCOPE.any_number()
    listener.remove()
    assert listener.asked == [4, None]


def test_mangled_names_are_spoken_as_they_were_written():
    assert told_by(SCOPE.Layer.forward, ["__hidden"], None, 7) == [("__hidden", 7)]


def test_spots_come_from_the_instructions():
    first = SCOPE.plain.__code__.co_firstlineno
    assert [tuple(spot) for spot in bindings_in_code(SCOPE.plain.__code__)] == [
        ("x", first, 0, "argument"),
        ("y", first + 1, 0, "assign"),
        ("y", first + 5, 1, "assign"),
        ("z", first + 7, 0, "assign"),
    ]
    names = [(spot.name, spot.nth) for spot in bindings_in_code(SCOPE.caught.__code__)]
    assert names == [("d", 0), ("w", 0), ("w", 1), ("error", 0), ("w", 2), ("v", 0)]


# Several owners


def test_two_owners_of_one_function_are_each_told():
    one, other = Listener(SCOPE.plain, "y", only=1), Listener(SCOPE.plain, "z", "y")
    SCOPE.plain(1)
    SCOPE.plain(2)
    one.remove()
    SCOPE.plain(3)
    other.remove()
    assert one.told == [("y", 2), ("y", 2)]
    assert [value for name, value in other.told if name == "z"] == [2, 3, 4]
    assert sys.gettrace() is None


def test_only_watched_functions_are_traced_inside():
    frames = []
    listener = Listener(SCOPE.plain, "y")

    def free():
        frames.append(sys._getframe())
        return SCOPE.plain(1)

    free()
    listener.remove()
    assert frames[0].f_trace is None
    assert listener.told == [("y", 2), ("y", 2)]


# Other tracers


def run_everything():
    SCOPE.outer(1)
    list(SCOPE.generator(2))
    asyncio.run(SCOPE.coroutine(1))
    SCOPE.caught(0)
    SCOPE.one_line(2)
    with pytest.raises(ZeroDivisionError):
        SCOPE.fails(1)


@pytest.mark.parametrize("asks_for_instructions", [False, True])
def test_another_tracer_sees_the_same_events_with_and_without_us(asks_for_instructions):
    alone, along = Recorder(), Recorder()
    for recorder, is_watched in ((Recorder(), False), (alone, False), (along, True)):
        recorder.asks_for_instructions = asks_for_instructions
        sys.settrace(recorder)
        names = ("plain", "generator", "coroutine", "caught", "one_line", "fails")
        listeners = [Listener(vars(SCOPE)[name], returns=True) for name in names if is_watched]
        run_everything()
        for listener in listeners:
            listener.remove()
        assert sys.gettrace() is recorder
        sys.settrace(None)
    assert along.events == alone.events
    assert all(listener.told for listener in listeners)


class Debugger(bdb.Bdb):
    """Goes step by step, but leaves `loop` at once and `generator` for good."""

    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        name = frame.f_code.co_name
        if frame.f_code.co_filename == "<no source>":
            self.stops.append((name, frame.f_lineno))
        if name == "loop":
            self.set_return(frame)
        elif name == "generator":
            self.set_continue()
        else:
            self.set_step()


def test_a_debugger_stops_where_it_would():
    alone, along = Debugger(), Debugger()
    alone.runcall(run_everything)
    assert all(along.runcall(watched_run))
    assert along.stops == alone.stops != []


def test_lines_are_counted_as_they_would_be():
    counts = []
    for is_watched in (False, True):
        counter = stdlib_trace.Trace(trace=False)
        counter.runfunc(watched_run if is_watched else run_everything)
        found = counter.results().counts.items()
        counts.append({line: count for (file, line), count in found if file == "<no source>"})
    assert counts[0] == counts[1] != {}


def watched_run():
    listeners = [Listener(SCOPE.plain), Listener(SCOPE.generator), Listener(SCOPE.caught)]
    run_everything()
    for listener in listeners:
        listener.remove()
    return [listener.told for listener in listeners]


def test_a_tracer_that_gives_frames_another_function_keeps_it():
    lines = []

    def local(frame, event, argument):
        lines.append(frame.f_lineno)

    def theirs(frame, event, argument):
        if frame.f_code is SCOPE.plain.__code__:
            frame.f_trace = local

    sys.settrace(theirs)
    SCOPE.plain(1)
    alone = lines.copy()
    lines.clear()
    listener = Listener(SCOPE.plain, "y")
    SCOPE.plain(1)
    listener.remove()
    assert sys.gettrace() is theirs
    sys.settrace(None)
    assert lines == alone != []
    assert listener.told == [("y", 2), ("y", 2)]


def test_a_tracer_that_stops_itself_stays_away():
    """As a debugger does when it is told to go on."""

    def once(frame, event, argument):
        sys.settrace(None)

    sys.settrace(once)
    listener = Listener(SCOPE.plain, "y")
    SCOPE.plain(1)
    listener.remove()
    assert sys.gettrace() is None
    assert listener.told == [("y", 2), ("y", 2)]


def test_a_tracer_that_sets_itself_again_at_every_call_does_not_drive_us_away():
    """As those written in C do."""
    recorder = Recorder()

    def stubborn(frame, event, argument):
        sys.settrace(stubborn)
        return recorder(frame, event, argument)

    sys.settrace(stubborn)
    listener = Listener(SCOPE.plain, "y")
    SCOPE.outer(1)
    listener.remove()
    assert sys.gettrace() is stubborn
    sys.settrace(None)
    assert listener.told == [("y", 2), ("y", 2)]
    assert {name for _, name, _, _ in recorder.events} == {"outer", "plain", "loop"}


def test_a_tracer_that_was_set_later_is_left_alone(caplog):
    recorder = Recorder()
    listener = Listener(SCOPE.plain, "y")
    sys.settrace(recorder)
    SCOPE.plain(1)
    with caplog.at_level(logging.WARNING, "tensortap"):
        listener.remove()
    assert sys.gettrace() is recorder
    sys.settrace(None)
    assert [record.getMessage() for record in caplog.records] == [
        "the trace function was replaced meanwhile; it is left as it is"
    ]
    assert (listener.told, recorder.events[0][:2]) == ([], ("call", "plain"))


def test_a_tracer_that_calls_ours_and_puts_it_back_gets_rid_of_us_too():
    listener = Listener(SCOPE.plain, "y")
    ours = sys.gettrace()
    sys.settrace(Recorder())
    listener.remove()
    sys.settrace(ours)
    SCOPE.plain(1)
    assert sys.gettrace() is None
    assert listener.told == []


def test_an_exception_of_the_listener_goes_through_and_the_other_tracer_comes_back():
    def fail(*_):
        raise KeyError("mine")

    for enter in (fail, lambda first: fail):
        recorder = Recorder()
        sys.settrace(recorder)
        _, remove = trace_code(SCOPE.plain.__code__, ["y"], enter)
        with pytest.raises(KeyError, match="mine"):
            SCOPE.plain(1)
        remove()
        assert sys.gettrace() is recorder
        sys.settrace(None)


# Threads


def run_in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def test_new_threads_are_watched_and_their_own_tracer_goes_on():
    recorder = Recorder()
    threading.settrace(recorder)
    listener = Listener(SCOPE.plain, "y")
    run_in_thread(SCOPE.plain, 1)
    listener.remove()
    assert threading.gettrace() is recorder
    run_in_thread(SCOPE.plain, 1)
    threading.settrace(None)
    assert listener.told == [("y", 2), ("y", 2)]
    half = len(recorder.events) // 2
    assert recorder.events[:half] == recorder.events[half:] != []


def test_a_thread_that_goes_on_is_left_at_its_next_call():
    removed, found = threading.Event(), []

    def work():
        SCOPE.plain(1)
        listened.set()
        removed.wait()
        SCOPE.plain(2)
        found.append(sys.gettrace())

    listened = threading.Event()
    listener = Listener(SCOPE.plain, "x")
    thread = threading.Thread(target=work)
    thread.start()
    listened.wait()
    listener.remove()
    removed.set()
    thread.join()
    assert (listener.told, found) == ([("x", 1)], [None])


def test_a_probe_may_be_removed_by_another_thread():
    listener = Listener(SCOPE.plain, "x")
    run_in_thread(listener.remove)
    SCOPE.plain(1)
    assert listener.told == []
    assert sys.gettrace() is threading.gettrace() is None
