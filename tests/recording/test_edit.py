"""tt.edit: put other values in the place of a model's own."""

import pytest
import torch
from torch import nn

import tensortap as tt


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, x, *, scale):
        return {"a": self.first(x) * scale, "b": [x]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs, self.last = Pairs(), nn.Linear(3, 3)

    def forward(self, x):
        made = self.pairs(x, scale=torch.tensor(2.0))
        return self.last(made["a"] + made["b"][0])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


X = torch.arange(6.0).reshape(2, 3)


def test_an_output_is_replaced_for_everything_after_it(model):
    with tt.edit(model, {"pairs.first": lambda value: value * 0}), tt.capture(model, "last.in") as cap:
        model(X)
    assert torch.equal(cap["last.in.input"], X)


def test_a_tensor_can_stand_in(model):
    with tt.edit(model, {"pairs['b'][0]": torch.zeros(2, 3)}), tt.capture(model, "pairs") as cap:
        model(X)
    assert torch.equal(cap["pairs['b'][0]"], torch.zeros(2, 3))
    assert cap["pairs['a']"].any()


@pytest.mark.parametrize("site", ["pairs.in.x", "pairs.in.scale"])
def test_an_input_is_replaced_positional_or_by_keyword(model, site):
    with tt.edit(model, {site: lambda value: value * 0}), tt.capture(model, site) as cap:
        model(X)
    assert not cap[site].any()


def test_a_gradient_is_replaced(model):
    with tt.edit(model, {"pairs.first.grad": lambda gradient: gradient * 0}):
        model(X).sum().backward()
    assert not model.pairs.first.weight.grad.any()
    assert model.last.weight.grad.any()


def test_only_the_wanted_call_is_edited():
    layer = nn.Identity()
    model = nn.Sequential(layer, layer)
    with tt.edit(model, {"0@1": lambda value: value + 1}), tt.capture(model, "0") as cap:
        model(torch.zeros(1))
    assert [value.item() for value in cap["0"]] == [0.0, 1.0]


def test_afterwards_the_model_is_as_before(model):
    wanted = model(X)
    with tt.edit(model, {"**": lambda value: value, "**.in": lambda value: value}) as edit:
        assert torch.equal(model(X), wanted)
    assert torch.equal(model(X), wanted)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert edit.unused == []


def test_an_edit_that_was_never_made_is_named(model):
    with tt.edit(model, {"last": lambda value: value}) as edit:
        model.pairs(X, scale=1.0)
    assert edit.unused == ["last"]


def test_bad_edits_get_a_sentence(model):
    with pytest.raises(tt.UnknownModuleError, match="did you mean 'last'"):
        tt.edit(model, {"lst": lambda value: value})
    with pytest.raises(ValueError, match=r"'last\.weight' is part of the model: change it there"):
        tt.edit(model, {"last.weight": lambda value: value})
    with (
        tt.edit(model, {"last": lambda value: None}),
        pytest.raises(TypeError, match="the edit of 'last' returned None"),
    ):
        model(X)


def test_an_error_of_the_function_is_the_programs(model):
    with tt.edit(model, {"last": lambda value: 1 / 0}), pytest.raises(ZeroDivisionError):
        model(X)
