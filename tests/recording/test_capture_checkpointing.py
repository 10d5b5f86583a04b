"""Checkpoints compute again what they did not keep; every value and gradient is captured once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass, all of them the same module."""

    def __init__(self, block: nn.Module, times: int, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(3, 3), block
        self.times, self.use_reentrant = times, use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.block, x, use_reentrant=self.use_reentrant)
        return x


def gradients(model: nn.Module, *patterns: str, steps: int = 1) -> list[tuple[str, Any, int, list[float]]]:
    with tt.capture(model, *patterns) as capture:
        for _ in range(steps):
            model(torch.ones(3)).sum().backward()
    return [(one.name, one.step, one.call, one.value.tolist()) for one in capture if "grad" in one.kind]


def scaling(factor: float) -> nn.Linear:
    layer = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3) * factor)
    return layer


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_module_that_hands_on_its_input_is_not_watched_twice(use_reentrant: bool) -> None:
    model = Checkpointed(nn.Sequential(nn.Identity(), scaling(2)), 1, use_reentrant)
    assert gradients(model, "block.0.grad") == [("block.0.grad", 0, 0, [2, 2, 2])]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_of_a_shared_module_belong_to_the_call_that_was_computed_again(use_reentrant: bool) -> None:
    model = Checkpointed(nn.Sequential(scaling(2), nn.Identity()), 3, use_reentrant)
    by_call = {call: value for _, _, call, value in gradients(model, "block.0.grad")}
    assert by_call == {0: [4, 4, 4], 1: [2, 2, 2], 2: [1, 1, 1]}


def test_a_module_called_twice_within_one_checkpoint_keeps_its_order() -> None:
    shared = scaling(2)
    model = Checkpointed(nn.Sequential(shared, shared), 2, use_reentrant=True)
    by_call = {call: value for _, _, call, value in gradients(model, "block.1.grad")}
    assert by_call == {0: [8, 8, 8], 1: [4, 4, 4], 2: [2, 2, 2], 3: [1, 1, 1]}


def test_one_call_of_a_shared_module_can_be_chosen_though_it_is_computed_again() -> None:
    model = Checkpointed(scaling(2), 3, use_reentrant=True)
    assert gradients(model, "block.grad@0") == [("block.grad", 0, 0, [4, 4, 4])]


def test_what_ran_without_a_graph_in_an_earlier_step_is_not_taken_for_a_checkpoint() -> None:
    model = Checkpointed(nn.Sequential(nn.Identity(), scaling(2)), 1, use_reentrant=False)
    with tt.capture(model, "block.0.grad") as capture:
        with torch.no_grad():
            model(torch.ones(3))
        model(torch.ones(3)).sum().backward()
    assert [(one.step, one.call) for one in capture] == [(1, 0)]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_model_that_is_computed_again_as_a_whole_begins_no_new_step(use_reentrant: bool) -> None:
    model = nn.Sequential(scaling(2), scaling(3))
    with tt.capture(model, "*", "*.grad") as capture:
        for _ in range(2):
            given = torch.ones(3, requires_grad=True)
            checkpoint(model, given, use_reentrant=use_reentrant).sum().backward()
    kinds = ["output", "output", "grad_output", "grad_output"]
    assert [(one.kind, one.step) for one in capture] == [(kind, step) for step in (0, 1) for kind in kinds]


class Prompted(nn.Module):
    """Hands a parameter, as it is, to another module."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.inner = nn.Parameter(torch.ones(3)), scaling(2)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.inner(self.prompt)


def test_a_parameter_that_is_handed_on_is_watched_anew_in_every_step() -> None:
    model = Prompted()
    found = gradients(model, "inner.in.grad", steps=3)
    assert [(name, step) for name, step, *_ in found] == [("inner.in.input.grad", step) for step in range(3)]
    assert not model.prompt._backward_hooks
