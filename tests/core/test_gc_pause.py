"""The collector of cycles is off only as long as it was asked to be."""

import gc

import pytest

from tensortap.core.gc_pause import gc_paused


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
