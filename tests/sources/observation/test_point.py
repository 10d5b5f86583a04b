"""What a variable may hold, and how little is done for the usual values."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import tensortap as tt


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        count, ratio, mode, is_last = 3, 0.5, "sum", True
        for layer in self.layers:
            x = layer(x)
        return x * count * ratio if mode and is_last else x


def test_a_wildcard_of_variables_does_not_mean_the_module_itself() -> None:
    model = Stack()
    with tt.capture(model, "layers.*.forward.*") as cap:
        model(torch.ones(2))
    assert sorted(cap.names) == ["layers.0.forward.input", "layers.1.forward.input"]
    assert not cap.missing


def test_a_module_that_a_variable_holds_is_neither_copied_nor_kept(monkeypatch: Any) -> None:
    copied: list[object] = []
    monkeypatch.setattr(nn.Linear, "__deepcopy__", lambda self, memo: copied.append(self), raising=False)
    assert copy.deepcopy(nn.Linear(1, 1)) is None, "the test would not notice a copy"
    copied.clear()
    model = Stack()
    with tt.capture(model, "forward.*", "forward.self") as cap:
        model(torch.ones(2))
    assert not copied
    reasons = {one.name: one.reason for one in cap.missing}
    assert reasons == {
        "forward.layer": "it was a Linear, not a tensor",
        "forward.self": "it was a Stack, not a tensor",
    }


def test_constants_are_kept_as_what_they_are() -> None:
    model = Stack()
    with tt.capture(model, "forward.{count,ratio,mode,is_last}") as cap:
        model(torch.ones(2))
        model(torch.ones(2))
    for name, value in {"count": 3, "ratio": 0.5, "mode": "sum", "is_last": True}.items():
        series = cap[f"forward.{name}"]
        assert [(type(one), one) for one in series.values] == [(type(value), value)] * 2
        assert list(series.steps) == [0, 1]
