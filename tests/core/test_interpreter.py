"""Garbage collection is paused only as long as requested; a handler is called once per forked child."""

import gc
import os

import pytest

from tensortap.core.interpreter import call_in_forked_children, gc_paused, is_multiprocessing_child


def test_it_is_off_inside_and_on_again_afterwards():
    with gc_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_exception():
    with pytest.raises(KeyError), gc_paused():
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_where_the_program_has_turned_it_off():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_handler_registered_twice_is_called_once_in_a_forked_child():
    calls = []

    def handler():
        calls.append(os.getpid())

    call_in_forked_children(handler)
    call_in_forked_children(handler)
    child = os.fork()
    if not child:
        os._exit(len(calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert calls == []


def test_this_process_is_no_child_of_multiprocessing():
    assert not is_multiprocessing_child()
