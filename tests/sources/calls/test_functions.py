"""A decorated function is what it was, and tells what it and its callees do."""

import asyncio
import contextlib
import functools
import gc
import inspect
import multiprocessing
import pickle
import sys
import threading
from dataclasses import dataclass

import pytest
from tests.sources.calls.followed import following

from tensortap.core.errors import UnsupportedValueError

source, told = following()
followed = source.wrap


@pytest.fixture(autouse=True)
def fresh():
    told.records.clear()
    yield
    assert sys.gettrace() is None


def double(x):
    y = x * 2
    return y  # noqa: RET504


@followed
def plain(x, *rest, key=1, **more):
    """Says nothing."""
    y = double(x)
    return y + key


@followed
def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)


def fails(x):
    raise ValueError("no good")


def passes_on(x):
    return fails(x)


@followed
def caught(x):
    try:
        passes_on(x)
    except ValueError as error:
        y = str(error)
    return y


@followed
def leaves(x):
    return passes_on(x)


class Shop:
    count = 0

    def __init__(self, name):
        self.name = name

    @followed
    def method(self, x):
        self.last = x
        return x

    @followed
    @classmethod
    def of_class(cls, x):
        return cls, x

    @classmethod
    @followed
    def inside_class(cls, x):
        return cls, x

    @followed
    @staticmethod
    def alone(x):
        return x + 1

    @followed
    @property
    def title(self):
        """The name."""
        return self.name.title()

    @title.setter
    def title(self, value):
        self.name = value

    @followed
    @functools.cached_property
    def length(self):
        return len(self.name)


# What is told


def test_call_inputs_changes_and_return_are_told_with_their_depth():
    assert plain(3) == 7
    assert told.lines == [
        "call plain",
        "input plain.x 3",
        "input plain.rest",
        "input plain.key 1",
        "input plain.more {}",
        ".call double",
        ".input double.x 3",
        ".local double.y 6",
        ".return double 6",
        "local plain.y 6",
        "return plain 7",
    ]


def test_records_say_where_when_and_in_which_tree():
    plain(1)
    here = inspect.currentframe().f_lineno - 1
    call, inner = (record for record in told.records if record.kind == "call")
    code = plain.__wrapped__.__code__
    assert (call.site.file, call.site.function) == (__file__, "plain")
    assert call.site.line == code.co_firstlineno + 1  # not the decorator's
    name = "test_records_say_where_when_and_in_which_tree"
    assert call.site.callers[0] == f"{name}@test_functions.py:{here}"
    assert len(call.site.callers) == 3
    assert inner.site.callers == ()
    assert len({record.site.tree for record in told.records}) == 1
    orders = [record.order for record in told.records]
    assert orders == sorted(set(orders))
    change = next(record for record in told.records if record.name == "plain.y")
    assert change.site.line == code.co_firstlineno + 3
    assert next(record for record in told.records if record.kind == "input").site.line == 0


def test_calls_are_counted_and_trees_numbered():
    plain(1)
    plain(2)
    first, _, second, _ = (record for record in told.records if record.kind == "call")
    assert second.call == first.call + 1
    assert second.site.tree > first.site.tree


def test_recursion_is_one_tree():
    assert recursive(2) == 2
    assert told.of("call", "return") == [
        "call recursive", ".call recursive", "..call recursive",
        "..return recursive 1", ".return recursive 1", "return recursive 2",
    ]  # fmt: skip
    calls = [record for record in told.records if record.kind == "call"]
    assert len({record.site.tree for record in calls}) == 1
    assert len({record.call for record in calls}) == 3


def test_an_exception_is_told_for_each_frame_it_leaves():
    assert caught(1) == "no good"
    assert told.of("raise", "return") == [
        "..raise fails 'ValueError: no good'",
        ".raise passes_on 'ValueError: no good'",
        "return caught 'no good'",
    ]


def test_an_exception_that_leaves_the_tree_is_the_same_and_its_line_is_told():
    with pytest.raises(ValueError, match="no good"):
        leaves(1)
    assert told.of("raise")[-1] == "raise leaves 'ValueError: no good'"
    assert told.records[-1].site.line == leaves.__wrapped__.__code__.co_firstlineno + 2


class Odd(Exception):
    def __str__(self):
        raise AssertionError("nobody asked")


@followed
def raises(kind):
    try:
        raise kind("first")
    except BaseException:
        try:
            int("x")
        except ValueError:
            pass
        raise
    finally:
        done = True  # noqa: F841


@pytest.mark.parametrize("kind", [KeyError, Odd, KeyboardInterrupt, SystemExit, StopIteration])
def test_what_is_raised_again_is_told_without_asking_the_program(kind):
    with pytest.raises(kind):
        raises(kind)
    shown = "'first'" if kind is KeyError else "first"
    assert told.records[-1].value == f"{kind.__name__}: {shown}"
    assert told.of("local") == ["local raises.done True"]


def test_a_long_message_is_cut():
    @followed
    def raises_much():
        raise ValueError("x" * 1000)

    with pytest.raises(ValueError):
        raises_much()
    assert len(told.records[-1].value) == 200


# Methods


def test_methods_of_every_sort_are_told_and_work():
    shop = Shop("corner")
    assert shop.method(1) == 1
    assert Shop.method(shop, 2) == 2
    assert Shop.of_class(3) == (Shop, 3)
    assert shop.inside_class(4) == (Shop, 4)
    assert (Shop.alone(5), shop.alone(5)) == (6, 6)
    assert (shop.title, Shop.title.__doc__) == ("Corner", "The name.")
    shop.title = "mall"
    assert (shop.length, shop.__dict__["length"]) == (4, 4)
    names = ["method"] * 2 + ["of_class", "inside_class"] + ["alone"] * 2 + ["title", "length"]
    assert [record.name for record in told.records if record.kind == "call"] == [f"Shop.{n}" for n in names]


def test_a_decorated_class_has_all_its_own_methods_followed():
    class Base:
        def inherited(self):
            return 0

    @followed
    @dataclass
    class Counter(Base):
        start: int = 0

        def next(self, by=1):
            self.start += by
            return self._shown()

        def _shown(self):
            return str(self)

        @staticmethod
        def zero():
            return 0

        @classmethod
        def new(cls):
            return cls()

        @property
        def now(self):
            return self.start

        def __len__(self):
            return self.start

        def __repr__(self):
            return f"<{self.start}>"

    counter = Counter.new()
    assert isinstance(counter, Base)
    assert (counter.next(), counter.now, len(counter), Counter.zero(), counter.inherited()) == (
        "<1>",
        1,
        1,
        0,
        0,
    )
    names = [line.replace("test_a_decorated_class_has_all_its_own_methods_followed.<locals>.", "")
             for line in told.of("call")]  # fmt: skip
    assert names == [
        "call Counter.new", "call Counter.next", ".call Counter._shown", "call Counter.now",
        "call Counter.__len__", "call Counter.zero",
    ]  # fmt: skip


# Transparency


def test_what_a_library_has_put_into_a_decorated_class_is_not_followed():
    import dataclasses
    import enum

    mine, heard = following()

    @mine.wrap
    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int

        def grown(self):
            return dataclasses.replace(self, x=self.x + 1)

    @mine.wrap
    class Color(enum.Enum):
        RED = 1

        def shown(self):
            return self.name

    assert Point(1).grown().x == 2
    assert Color.RED.shown() == "RED"
    assert [record.name.split(".")[-1] for record in heard.records if record.kind == "call"] == [
        "grown",
        "shown",
    ]
    mine.stop()


def test_the_wrapper_looks_like_the_function():
    assert plain.__name__ == plain.__qualname__ == "plain"
    assert plain.__doc__ == "Says nothing."
    assert str(inspect.signature(plain)) == "(x, *rest, key=1, **more)"
    assert pickle.loads(pickle.dumps(plain)) is plain
    assert inspect.isfunction(plain)


@pytest.mark.parametrize(
    "is_it", [inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction]
)
def test_the_wrapper_is_of_the_same_sort(is_it):
    def one():
        pass

    def two():
        yield

    async def three():
        pass

    async def four():
        yield

    for function in (one, two, three, four):
        assert is_it(followed(function)) == is_it(function)


def test_wrong_arguments_are_refused_as_ever():
    with pytest.raises(TypeError, match=r"double\(\) takes 1 positional argument but 2 were given"):
        followed(double)(1, 2)


@pytest.mark.parametrize("thing", [3, "text", None])
def test_what_cannot_be_called_is_refused(thing):
    with pytest.raises(TypeError, match=f"not {thing!r}; put the decorator right above a def"):
        followed(thing)


def test_what_has_no_python_code_is_refused():
    with pytest.raises(UnsupportedValueError, match="not a Python function"):
        followed(len)


def test_lambdas_partials_bound_methods_and_code_without_source_are_followed():
    scope = {}
    exec("def made(x):\n    y = [x]\n    y.append(2)\n    return y", scope)
    assert followed(lambda x: x + 1)(1) == 2
    assert followed(functools.partial(double, 4))() == 8
    assert followed(Shop("a").alone)(1) == 2
    assert followed(scope["made"])(1) == [1, 2]
    assert [name.rpartition(".")[2] for name in told.of("call")] == [
        "<lambda>",
        "call double",
        "alone",
        "call made",
    ]
    assert told.changes == ["y", "y", "y"]


def test_a_function_below_other_decorators_is_the_root():
    def noisy(function):
        @functools.wraps(function)
        def around(*args):
            double(0)
            return function(*args)

        return around

    assert followed(noisy(double))(2) == 4
    assert told.of("call") == ["call double"]


def test_a_decorated_function_inside_a_followed_one_is_part_of_its_tree():
    other, also_told = following()

    @followed
    def outer(x):
        return plain(x) + elsewhere(x)

    @other.wrap
    def elsewhere(x):
        return double(x)

    assert outer(1) == 5
    assert [line.split()[0] for line in told.of("call")] == ["call", ".call", "..call", ".call", "..call"]
    assert len({record.site.tree for record in told.records}) == 1
    assert len(also_told.of("call")) == 2
    assert also_told.records[0].site.depth == 0
    other.stop()


def test_two_sources_of_one_tap_make_one_tree():
    second, _ = following()
    second.stop()
    second.start(source.taps[0])
    inner = second.wrap(double)
    assert followed(lambda: inner(1))() == 2
    assert [line.split()[0] for line in told.of("call")] == ["call", ".call"]


def test_comprehensions_lambdas_and_library_code_have_no_level_of_their_own():
    @followed
    def outer(values):
        first = [double(value) for value in values]
        second = sorted(values, key=lambda value: double(value))
        third = functools.reduce(lambda a, b: a + double(b), values, 0)
        return first, second, third, list(map(double, values))

    outer([1])
    assert told.of("call")[1:] == [".call double"] * 4


def test_inner_functions_and_what_they_share_are_told():
    @followed
    def outer():
        total = 0

        def add(by):
            nonlocal total
            total += by

        add(2)
        add(0)
        return total

    assert outer() == 2
    names = [name.rpartition(".")[2] for name in told.of("local")]
    assert names == ["total 0", "add", "total 2", "total 2"]


def test_depth_is_bounded():
    shallow, heard = following(max_depth=1)
    recursion = shallow.wrap(lambda n: n and recursion(n - 1))
    recursion(5)
    assert [line.split()[0] for line in heard.of("call")] == ["call", ".call"]
    shallow.stop()


def test_only_targets_are_told_where_some_are_named():
    aimed, heard = following(targets=["y", "self.*"])

    @aimed.wrap
    def function(x):
        z = x
        y = z + double(z)
        return y  # noqa: RET504

    function(1)
    assert heard.of("input", "local") == [".local double.y 2", f"local {function.__qualname__}.y 3"]
    aimed.stop()


def test_libraries_are_followed_on_request():
    asked, heard = following(follow=["textwrap"])
    import textwrap

    asked.wrap(lambda: textwrap.dedent(" a"))()
    asked.stop()
    assert heard.of("call")[1:] == [".call dedent"]


# Off


def test_nothing_is_told_when_off(monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    assert plain(1) == 3
    monkeypatch.delenv("TENSORTAP")
    source.is_enabled = False
    assert plain(1) == 3
    source.is_enabled = True
    quiet, heard = following()
    inner = quiet.wrap(double)
    quiet.stop()
    quiet.stop()
    assert inner(1) == 2
    assert (told.records, heard.records) == ([], [])


# Failures of ours


class Broken:
    def write(self, record):
        raise OSError("disk full")

    def flush(self):
        pass

    close = flush


def test_a_sink_that_fails_does_not_break_the_function(monkeypatch, caplog):
    from tensortap.core.tap import Tap
    from tensortap.sources.calls.functions import TracedFunctions

    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    mine = TracedFunctions()
    Tap(sinks=[Broken()], on_error="log").attach(mine)
    assert mine.wrap(double)(2) == 4
    assert "Broken failed and is taken out" in caplog.text


def test_a_failure_of_ours_is_logged_once_and_ends_the_following(monkeypatch, caplog):
    from tensortap.core.tap import Tap
    from tensortap.sources.calls.functions import TracedFunctions

    monkeypatch.setenv("TENSORTAP_STRICT", "0")

    class Failing(TracedFunctions):
        def wants(self, path):
            if path == "y":
                raise RuntimeError("ours")
            return True

    mine = Failing()
    Tap(on_error="log").attach(mine)
    wrapped = mine.wrap(double)
    assert (wrapped(2), wrapped(3)) == (4, 6)
    assert caplog.text.count("Failing failed and is taken out") == 1


# Threads and processes


def test_two_threads_make_a_tree_each():
    both = threading.Barrier(2)

    @followed
    def meeting(n):
        both.wait()
        n = n + 1
        both.wait()
        return n

    threads = [threading.Thread(target=meeting, args=(n,)) for n in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trees = {record.site.tree for record in told.records}
    assert len(trees) == 2
    for tree in trees:
        kinds = [record.kind for record in told.records if record.site.tree == tree]
        assert kinds == ["call", "input", "local", "return"]
    assert threading.gettrace() is None


def test_threads_that_a_followed_function_starts_are_their_own():
    @followed
    def starts():
        thread = threading.Thread(target=double, args=(1,))
        thread.start()
        thread.join()

    starts()
    assert "double" not in " ".join(told.of("call"))


def in_child(queue):
    told.records.clear()
    plain(1)
    queue.put((told.lines[0], len(told.of("call")), sys.gettrace() is None))


def test_a_forked_child_of_a_followed_call_is_not_followed_but_follows():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    @followed
    def parent():
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        child.join()
        return child.exitcode

    assert parent() == 0
    assert queue.get() == ("call plain", 2, True)
    assert len(told.of("call")) == 1


# Generators


@followed
def numbers(n):
    for i in range(n):
        got = yield i
        v = got or i
    return v


def test_a_generator_tells_each_yield_and_its_return():
    assert list(numbers(2)) == [0, 1]
    assert told.of("call", "yield", "return") == ["call numbers", "yield numbers 0", "yield numbers 1",
                                                  "return numbers 1"]  # fmt: skip
    assert told.of("local") == ["local numbers.i 0", "local numbers.got None", "local numbers.v 0",
                                "local numbers.i 1", "local numbers.v 1"]  # fmt: skip


def test_a_generator_is_sent_to_and_thrown_at():
    running = numbers(3)
    assert (next(running), running.send("s")) == (0, 1)
    assert "local numbers.got 's'" in told.lines
    with pytest.raises(KeyError):
        running.throw(KeyError("k"))
    assert told.lines[-1] == "raise numbers \"KeyError: 'k'\""


@pytest.mark.parametrize("way", ["close", "forget", "collect"])
def test_a_generator_that_is_left_says_so(way):
    running = numbers(3)
    assert next(running) == 0
    if way == "close":
        running.close()
    elif way == "forget":
        del running
    else:
        loop = [running]
        loop.append(loop)
        del running, loop
        gc.collect()
    assert told.lines[-1] == "raise numbers 'GeneratorExit'"


def test_a_generator_that_never_ran_tells_nothing():
    numbers(3).close()
    assert told.lines == []


def test_what_runs_between_two_yields_is_not_followed():
    for _ in numbers(2):
        double(1)
    assert told.of("call") == ["call numbers"]


def test_a_generator_catches_what_is_thrown_at_it():
    @followed
    def stubborn():
        try:
            yield 1
        except KeyError:
            yield 2

    running = stubborn()
    assert (next(running), running.throw(KeyError("k"))) == (1, 2)
    assert [line.rpartition(" ")[2] for line in told.of("yield")] == ["1", "2"]
    running.close()


def test_inner_generators_are_told_one_level_deeper():
    def inner():
        yield 1
        return 2

    @followed
    def outer():
        return (yield from inner())

    assert list(outer()) == [1]
    assert [(r.kind, r.site.depth, r.value) for r in told.records if r.kind in ("yield", "return")] == [
        ("yield", 1, 1), ("yield", 0, 1), ("return", 1, 2), ("return", 0, 2),
    ]  # fmt: skip


def test_a_generator_that_outlives_its_tree_goes_on_unseen():
    def inner():
        yield 1
        yield 2

    @followed
    def outer():
        running = inner()
        next(running)
        return running

    running = outer()
    count = len(told.records)
    assert list(running) == [2]
    assert len(told.records) == count


def test_a_context_manager_may_be_followed():
    @contextlib.contextmanager
    @followed
    def managed():
        yield 5

    with managed() as value:
        double(value)
    assert [line.split()[0] for line in told.lines] == ["call", "yield", "return"]


# Coroutines


async def pause(x):
    await asyncio.sleep(0)
    return x


@followed
async def worker(name):
    first = await pause(f"{name}1")
    second = await pause(f"{name}2")
    return first + second


def test_two_coroutines_at_once_make_a_tree_each():
    async def main():
        return await asyncio.gather(worker("a"), worker("b"))

    assert asyncio.run(main()) == ["a1a2", "b1b2"]
    trees = {record.site.tree for record in told.records}
    assert len(trees) == 2
    for tree in trees:
        mine = [record for record in told.records if record.site.tree == tree]
        assert [(record.kind, record.site.depth) for record in mine] == [
            ("call", 0), ("input", 0),
            ("call", 1), ("input", 1), ("return", 1), ("local", 0),
            ("call", 1), ("input", 1), ("return", 1), ("local", 0),
            ("return", 0),
        ]  # fmt: skip
    assert told.of("yield") == []


def test_a_cancelled_coroutine_says_so():
    @followed
    async def waits():
        await asyncio.sleep(100)

    async def main():
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert told.of("raise")[-1].endswith("'CancelledError'")


def test_an_asynchronous_generator_tells_each_yield():
    @followed
    async def ticks(n):
        sent = None
        try:
            for i in range(n):
                got = await pause(i)
                sent = yield got
        finally:
            done = sent  # noqa: F841

    async def main():
        every = [value async for value in ticks(2)]
        running = ticks(3)
        every.append(await anext(running))
        every.append(await running.asend("s"))
        await running.aclose()
        thrown = ticks(3)
        await anext(thrown)
        with pytest.raises(KeyError):
            await thrown.athrow(KeyError("k"))
        return every

    assert asyncio.run(main()) == [0, 1, 0, 1]
    assert [record.value for record in told.records if record.kind == "yield"] == [0, 1, 0, 1, 0]
    assert [record.value for record in told.records if record.kind == "raise"] == [
        "GeneratorExit",
        "KeyError: 'k'",
    ]
