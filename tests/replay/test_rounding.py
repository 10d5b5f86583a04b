"""The noise of each part alone: what its type rounds, and what inputs that are hardly others make of it."""

import copy
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensortap as tt

WIDTH = 64


class Pair(nn.Module):
    """Two parts; of the second one column is what is left of two sums that nearly cancel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.second.weight[5, WIDTH // 2 :] = -1.02 * self.second.weight[5, : WIDTH // 2]

    def forward(self, x):
        half = self.first(x)[..., : WIDTH // 2]
        return self.second(torch.cat([half, half], -1))


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def case(request):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Pair().to(request.param)
        return model, copy.deepcopy(model), (torch.randn(64, WIDTH).to(request.param),)


def in_two_parts(layer):
    def forward(self, input):
        halves = [F.linear(*both) for both in zip(input.chunk(2, -1), self.weight.chunk(2, -1), strict=True)]
        return halves[0] + halves[1]

    layer.forward = types.MethodType(forward, layer)


def scaled(layer, size):
    layer.register_forward_hook(lambda module, given, made: made * size)


def test_a_sum_that_nearly_cancels_is_not_accused_when_it_is_made_in_two_parts(case):
    reference, candidate, batch = case
    in_two_parts(candidate.second)
    found = tt.align(reference, candidate, batch)
    assert found.is_green
    assert found.floor.twins[1:] == ("each part one ulp off",)


@pytest.mark.parametrize("part", ["first", "second"])
def test_a_small_fault_beside_it_is_found(case, part):
    reference, candidate, batch = case
    in_two_parts(candidate.second)
    scaled(candidate.get_submodule(part), 1.03)
    assert [one.name for one in tt.align(reference, candidate, batch).origins] == [part]


def test_a_capture_is_measured_by_the_candidate_itself(case, captured):
    reference, candidate, batch = case
    in_two_parts(candidate.second)
    records = captured(reference, {"x": batch[0]})
    found = tt.align(records, candidate, batch)
    assert (found.is_green, found.floor.twins[1:]) == (True, ("each part one ulp off",))
    scaled(candidate.first, 1.03)
    assert [one.name for one in tt.align(records, candidate, batch).origins] == ["first"]


def test_two_inputs_that_are_subtracted_do_not_move_alike():
    class Less(nn.Module):
        def forward(self, a, b):
            return a - b

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.less = Less()

        def forward(self, a, b):
            return self.less(a, b)

    values = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    floor = tt.align(Model(), Model(), (values, values * 1.001)).floor
    assert floor.noise["less", 0, 0, 0].relative_l2 > 100 * torch.finfo(torch.float32).eps


def test_columns_of_few_rows_have_the_noise_of_all_steps(case):
    model, _, (x,) = case

    def two_rows_at_a_time(model):
        for at in range(0, 8, 2):
            model(x[at : at + 2].to(model.first.weight.dtype))

    noise = tt.align(model, model, two_rows_at_a_time).floor.noise
    steps = [one for (name, *_), one in noise.items() if name == "second"]
    assert (len(steps), len({one.column for one in steps})) == (4, 1)
    assert len({one.relative_l2 for one in steps}) == 4


class Scored(nn.Module):
    """A loss that is one number, made in the type of the model or in single precision."""

    def __init__(self, is_single):
        super().__init__()
        self.first, self.is_single, self.left_out = nn.Linear(WIDTH, 32), is_single, 0

    def forward(self, x):
        logits = self.first(x)[self.left_out :]
        logits = logits.float() if self.is_single else logits
        return F.cross_entropy(logits, torch.arange(len(logits)) % 32).float()


def in_half(*, is_single):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = Scored(is_single).to(torch.bfloat16)
        return model, copy.deepcopy(model), (torch.randn(64, WIDTH, dtype=torch.bfloat16),)


def test_a_loss_in_single_precision_has_the_noise_of_that():
    reference, candidate, batch = in_half(is_single=True)
    candidate.left_out = 1
    found = tt.align(reference, candidate, batch)
    assert [one.name for one in found.origins] == [""]
    assert found.floor.noise["out", 0, 0, 0].relative_l2 < 1e-4


def test_a_loss_that_was_made_in_half_precision_keeps_the_noise_of_that():
    reference, candidate, batch = in_half(is_single=False)
    candidate.is_single = True
    found = tt.align(reference, candidate, batch)
    assert found.is_green
    assert found.floor.noise["out", 0, 0, 0].relative_l2 > 1e-3
