"""A doorbell in place of a method: seen by nobody, rung by every object that is new."""

import gc
import inspect
import traceback

import pytest

from tensortap.launcher.import_hook import MethodAccessHook


class Bell:
    def __init__(self):
        self.depth = 1

    def __call__(self, count):
        return [len(inspect.stack()), count / self.depth]


class Louder(Bell):
    pass


@pytest.fixture
def rung():
    met = []

    def ring(one):
        met.append(one.depth)
        return (one,)

    doorbell = MethodAccessHook(Bell, "__call__", ring)
    yield met
    doorbell.remove()


def test_each_object_rings_once_also_when_its_number_is_given_again(rung):
    for _ in range(3):
        one = Louder()
        one(1), one(2)
        del one
        gc.collect()
    assert rung == [1, 1, 1]


def test_no_frame_is_added_while_the_method_runs(rung):
    depth = len(inspect.stack()) + 1
    assert Bell()(4) == [depth, 4.0]
    broken = Bell()
    broken.depth = 0
    with pytest.raises(ZeroDivisionError) as told:
        broken(1)
    assert [frame.name for frame in traceback.extract_tb(told.tb)][1:] == ["__call__"]


def test_the_class_shows_its_own_method_and_gets_it_back(rung):
    method = Bell.__call__
    assert method.__qualname__ == "Bell.__call__"
    assert isinstance(vars(Bell)["__call__"], MethodAccessHook)
    vars(Bell)["__call__"].remove()
    assert vars(Bell)["__call__"] is method
