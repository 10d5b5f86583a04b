"""Steps: what the program says they are."""

import numpy as np
import pytest
import torch

from tensortap.core.steps import declared_step, next_order, reset_steps, step


def test_nothing_is_declared_before_the_program_says_so():
    assert declared_step() is None


def test_steps_count_from_nought():
    assert [step(), step(), step()] == [0, 1, 2]
    assert declared_step() == 2


def test_a_program_may_name_its_step_and_counts_on_from_there():
    assert [step(10), step(), step(5), step()] == [10, 11, 5, 6]


@pytest.mark.parametrize("number", [np.int64(3), torch.tensor(3), np.uint8(3)])
def test_any_whole_number_becomes_a_plain_one(number):
    assert step(number) == 3
    assert type(declared_step()) is int


@pytest.mark.parametrize("wrong", [1.0, "1", True, [1], np.float32(1), torch.tensor(1.5)])
def test_what_is_no_whole_number_is_refused_and_changes_nothing(wrong):
    step(4)
    with pytest.raises(TypeError) as caught:
        step(wrong)
    assert str(caught.value) == f"a step is a whole number, not {wrong!r}"
    assert declared_step() == 4


def test_steps_can_be_forgotten():
    step(7)
    reset_steps()
    assert declared_step() is None
    assert step() == 0


def test_the_order_only_grows():
    orders = [next_order() for _ in range(3)]
    assert orders == sorted(set(orders))
