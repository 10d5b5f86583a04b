"""The code of a function is shared by all who watch it, and given back exactly."""

# The functions below bind names for the sake of binding them.
# ruff: noqa: RET504

import copy
import functools
import logging
import pickle
import threading
from types import FunctionType

import pytest
import torch

from tensortap.core.errors import UnsupportedValueError
from tensortap.sources.function_names import unwrap_function
from tensortap.sources.probes.install import find_bindings, install_probe


def scaled(x, by=2):
    y = x * by
    z = y + 1
    return z


def powers(n):
    v = n * n
    yield v
    return v


class Layer:
    def forward(self, x):
        y = x + 1
        return y


ORIGINAL = scaled.__code__


class Listener:
    """An owner: what it was told, by name."""

    def __init__(self, function, *names, returns=False, only=None):
        self.told, self.asked, self._only = [], [], only
        self.probe = install_probe(function, names or None, self.enter, returns=returns)

    def enter(self, first):
        self.asked.append(first)
        return self.seen if self._only in (None, first) else None

    def seen(self, at, value):
        self.told.append((self.probe.bindings[at].name, value))


def published():
    return [name for name in globals() if name.startswith("@tap")]


@pytest.fixture(autouse=True)
def the_function_is_as_before():
    yield
    assert scaled.__code__ is ORIGINAL
    assert published() == []


def test_the_last_one_out_restores_the_very_same_code_and_leaves_no_global():
    listener = Listener(scaled, "y")
    assert scaled.__code__ is not ORIGINAL
    assert len(published()) == 1
    scaled(3)
    listener.probe.remove()
    listener.probe.remove()
    scaled(4)
    assert listener.told == [("y", 6)]


def test_two_owners_are_each_told_what_they_asked_for():
    one, other = Listener(scaled, "y", "x"), Listener(scaled, "z", "y", returns=True)
    scaled(1)
    assert one.told == [("x", 1), ("y", 2)]
    assert other.told == [("y", 2), ("z", 3), ("return", 3)]
    one.probe.remove()
    scaled(2)
    assert one.told[2:] == []
    assert other.told[3:] == [("y", 4), ("z", 5), ("return", 5)]
    other.probe.remove()


@pytest.mark.parametrize("last", [0, 1, 2])
def test_owners_leave_in_any_order(last):
    owners = [Listener(scaled, "y"), Listener(scaled, "z"), Listener(scaled)]
    stays = owners.pop(last)
    for owner in owners:
        owner.probe.remove()
    scaled(1)
    assert dict(stays.told).items() <= {"x": 1, "by": 2, "y": 2, "z": 3}.items()
    assert {name for name, _ in stays.told} == {spot.name for spot in stays.probe.bindings}
    stays.probe.remove()


def test_equal_wishes_share_one_code():
    one = Listener(scaled, "y")
    code = scaled.__code__
    other = Listener(scaled, "y")
    assert scaled.__code__ is code
    scaled(1)
    assert one.told == other.told == [("y", 2)]
    one.probe.remove()
    other.probe.remove()


def test_an_owner_may_decline_a_call():
    one, other = Listener(scaled, "y", only=5), Listener(scaled, "y", only=6)
    for x in (5, 6, 7):
        scaled(x)
    assert (one.asked, other.asked) == ([5, 6, 7], [5, 6, 7])
    assert (one.told, other.told) == ([("y", 10)], [("y", 12)])
    one.probe.remove()
    other.probe.remove()


def test_the_first_argument_is_asked_about():
    def no_arguments():
        return 1

    def any_number(*those):
        return those

    def by_name(*, key):
        return key

    def kept_in_a_cell(first):
        return lambda: first

    def asked_about(function, *arguments, **keywords):
        listener = Listener(function)
        function(*arguments, **keywords)
        listener.probe.remove()
        return listener.asked

    assert asked_about(kept_in_a_cell, 8) == asked_about(any_number, 8, 9) == [8]
    assert asked_about(no_arguments) == asked_about(any_number) == asked_about(by_name, key=8) == [None]


def test_every_reference_to_the_function_is_watched():
    layer = Layer()
    bound, plain = layer.forward, Layer.forward
    listener = Listener(bound, "y")
    for call in (bound, functools.partial(plain, layer), Layer().forward, copy.copy(layer).forward):
        call(1)
    assert pickle.loads(pickle.dumps(layer)).forward(1) == 2
    assert (listener.told, listener.asked[0]) == ([("y", 2)] * 5, layer)
    listener.probe.remove()


def test_functions_made_by_one_definition_are_watched_apart():
    def make(k):
        def inner(x):
            y = x + k
            return y

        return inner

    first, second = make(1), make(2)
    one, other = Listener(first, "y"), Listener(second, "y")
    assert (first(0), second(0), make(3)(0)) == (1, 2, 3)
    assert (one.told, other.told) == ([("y", 1)], [("y", 2)])
    one.probe.remove()
    assert (first(0), second(0)) == (1, 2)
    assert (one.told, other.told) == ([("y", 1)], [("y", 2)] * 2)
    other.probe.remove()


# Calls that outlive a swap


def test_a_generator_that_begins_after_the_probe_was_removed_is_not_watched():
    listener = Listener(powers, "v")
    waiting = powers(3)
    listener.probe.remove()
    assert list(waiting) == [9]
    assert listener.asked == []


def test_a_generator_that_begins_after_another_owner_came_is_watched():
    one = Listener(powers, "v", returns=True)
    waiting = powers(3)
    other = Listener(powers, "n")
    assert list(waiting) == [9]
    assert one.told == [("v", 9), ("return", 9)]
    assert other.told == []
    assert list(powers(2)) == [4]
    assert other.told == [("n", 2)]
    other.probe.remove()
    one.probe.remove()


def test_a_call_that_is_under_way_ends_as_it_began():
    def recursive(n):
        if n == 0:
            listener.probe.remove()
            return 0
        below = recursive(n - 1)
        return below + 1

    before = recursive.__code__
    listener = Listener(recursive, "below")
    assert recursive(3) == 3
    assert listener.told == [("below", 0), ("below", 1), ("below", 2)]
    assert recursive.__code__ is before


def test_threads_place_and_remove_while_others_call():
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            if scaled(3) != 7:
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(2)]
    owners = [threading.Thread(target=_come_and_go, args=(name, wrong)) for name in ("x", "y", "z")]
    for thread in (*callers, *owners):
        thread.start()
    for thread in owners:
        thread.join()
    stop.set()
    for thread in callers:
        thread.join()
    assert wrong == []


def _come_and_go(name, wrong):
    for _ in range(50):
        listener = Listener(scaled, name)
        scaled(3)
        listener.probe.remove()
        if {told for told, _ in listener.told} != {name}:
            wrong.append(name)


# Other people's code


def other_code():
    return scaled.__code__.replace(co_name="instrumented")


def test_code_that_another_tool_put_there_is_left_alone(caplog):
    one, other = Listener(scaled, "y"), Listener(scaled, "z")
    theirs = scaled.__code__ = other_code()
    with caplog.at_level(logging.WARNING, "tensortap"):
        one.probe.remove()
        other.probe.remove()
    assert scaled.__code__ is theirs
    assert [record.getMessage() for record in caplog.records] == [
        "the code of scaled was replaced meanwhile; it is left as it is"
    ]
    assert scaled(1) == 3
    scaled.__code__ = ORIGINAL


def test_a_tool_that_puts_our_code_back_later_does_no_harm():
    listener = Listener(scaled, "y")
    ours, scaled.__code__ = scaled.__code__, other_code()
    listener.probe.remove()
    scaled.__code__ = ours
    assert scaled(1) == 3
    again = Listener(scaled, "y")
    assert (again.probe.how, scaled(1), again.told) == ("rewritten", 3, [("y", 2)])
    again.probe.remove()
    assert listener.told == []


def test_code_that_another_tool_changed_is_traced():
    listener = Listener(scaled, "y")
    theirs = scaled.__code__ = ORIGINAL.replace(co_consts=(None, 10))
    late = Listener(scaled, "z")
    assert late.probe.how == "traced"
    assert (scaled(1), late.told, listener.told) == (12, [("z", 12)], [])
    late.probe.remove()
    listener.probe.remove()
    assert scaled.__code__ is theirs
    scaled.__code__ = ORIGINAL


def test_an_exception_of_the_listener_goes_through_the_function_unchanged():
    class Odd(BaseException):
        pass

    odd = Odd()

    def fail(*_):
        raise odd

    for enter in (fail, lambda first: fail):
        probe = install_probe(scaled, ["y"], enter)
        with pytest.raises(Odd) as raised:
            scaled(1)
        assert raised.value is odd
        probe.remove()


# Which function it is


def test_a_decorator_without_wraps_is_seen_through():
    def logged(function):
        def wrapper(*arguments, **keywords):
            return function(*arguments, **keywords)

        return wrapper

    @logged
    def inner(x):
        y = x + 1
        return y

    listener = Listener(inner, "y")
    assert (inner(1), listener.told) == (2, [("y", 2)])
    listener.probe.remove()


def test_a_function_that_calls_another_is_itself():
    def make(activation):
        def beside():
            return 0

        def forward(x):
            y = activation(x) + beside()
            return y

        def any_number(*those):
            return activation(*those) + beside()

        return forward, any_number

    forward, any_number = make(scaled)
    assert unwrap_function(forward) is forward
    assert unwrap_function(any_number) is any_number


@pytest.mark.parametrize(
    "wrapped",
    [
        functools.partial(scaled, by=3),
        functools.lru_cache(scaled),
        functools.partialmethod(scaled, 1),
        staticmethod(scaled),
        torch.no_grad()(scaled),
        property(scaled),
        functools.cached_property(scaled),
    ],
    ids=["partial", "cache", "partial method", "static method", "no_grad", "property", "cached property"],
)
def test_wrappers_of_every_kind_lead_to_the_function(wrapped):
    assert unwrap_function(wrapped) is scaled


def test_what_wraps_a_builtin_is_itself():
    @functools.wraps(len)
    def length(x):
        return len(x)

    assert unwrap_function(length) is length


@pytest.mark.parametrize(
    "nothing", [len, 3, torch.relu, functools.partial(len)], ids=["len", "3", "relu", "partial"]
)
def test_what_is_no_python_function_is_refused(nothing):
    with pytest.raises(UnsupportedValueError, match="is not a Python function, so it has no local variables"):
        install_probe(nothing, None, lambda first: None)


# Cost and company


def test_a_second_placing_reads_no_source(tmp_path):
    path = tmp_path / "gone.py"
    path.write_text("def f(x):\n    y = x + 1\n    return y\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    first = Listener(scope["f"], "y")
    first.probe.remove()
    path.write_text("")
    again = Listener(scope["f"], "y")
    assert (again.probe.how, scope["f"](1), again.told) == ("rewritten", 2, [("y", 2)])
    again.probe.remove()
    assert "@" not in "".join(scope)


def test_listing_what_a_function_binds_does_not_touch_it():
    listener = Listener(scaled, "y")
    during = scaled.__code__
    assert [spot.name for spot in find_bindings(scaled)] == ["x", "by", "y", "z"]
    assert scaled.__code__ is during
    listener.probe.remove()
    find_bindings(scaled)


def test_a_copy_of_the_function_goes_on_without_us():
    listener = Listener(scaled, "y")
    twin = FunctionType(scaled.__code__, globals(), "twin", scaled.__defaults__)
    listener.probe.remove()
    assert twin(1) == 3
    assert listener.told == []


@pytest.mark.compile
def test_rewritten_code_can_be_compiled_without_a_break():
    kept = []

    def forward(x):
        y = x * 2
        return y + 1

    probe = install_probe(forward, ["y"], lambda first: lambda at, value: kept.append(at))
    assert not any(callable(constant) for constant in forward.__code__.co_consts)
    compiled = torch.compile(forward, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert kept == [0]
    probe.remove()
    torch._dynamo.reset()
