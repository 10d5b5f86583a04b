"""Steps of a program that does not say them: by forwards, then by its optimizers."""

from tensortap.core.steps import declared_step, step
from tensortap.launcher.models import StepCounter


class Optimizer:
    pass


def counted(events: str, optimizers: dict[str, Optimizer], learns: bool = True) -> list[int | None]:
    """Small letters are forwards of models, digits are steps of optimizers; the step of each forward."""
    counting = StepCounter(optimizers.values(), lambda: learns)
    steps = []
    for one in events:
        if one in optimizers:
            counting.end_optimizer_step(optimizers[one])
        else:
            counting.begin_forward(ord(one))
            steps.append(declared_step())
    return steps


def test_without_an_optimizer_each_forward_is_a_step():
    assert counted("aaa", {}) == [0, 1, 2]


def test_models_that_take_turns_share_a_step():
    assert counted("ababb", {}) == [0, 0, 1, 1, 2]


def test_gradients_that_are_accumulated_belong_to_one_step():
    assert counted("aa1aa1a", {"1": Optimizer()}) == [0, 0, 1, 1, 2]


def test_two_optimizers_that_take_turns_make_one_step_together():
    assert counted("a1b2a1b2a", {"1": Optimizer(), "2": Optimizer()}) == [0, 0, 1, 1, 2]


def test_an_optimizer_that_never_comes_is_not_waited_for():
    assert counted("a1a1a1a", {"1": Optimizer(), "2": Optimizer()}) == [0, 0, 2, 3]


def test_an_evaluation_with_an_optimizer_at_hand_counts_forwards():
    assert counted("aaa", {"1": Optimizer()}, learns=False) == [0, 1, 2]


def test_the_steps_of_an_optimizer_that_is_gone_stay_counted():
    counting, optimizer = StepCounter([], bool), Optimizer()
    for _ in range(4):
        counting.begin_forward(1)
        counting.end_optimizer_step(optimizer)
    del optimizer
    counting.begin_forward(1)  # an evaluation after the last step
    assert counting.count == 4


def test_what_the_program_says_is_stronger():
    counting = StepCounter([], bool)
    assert step() == 0
    step(7)
    counting.begin_forward(1)
    counting.begin_forward(1)
    assert declared_step() == 7
