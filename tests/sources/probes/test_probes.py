"""Variables inside a module's functions, by the same capture and the same grammar."""

import functools

import pytest
import torch
from torch import nn

import tensortap as tt


def scaled(module, values, factor):
    raised = values * factor
    raised = raised + module.shift
    return raised  # noqa: RET504 - a variable to be seen


class Attention(nn.Module):
    shift = 1.0

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, x, *, mask=None):
        scores = self.q(x)
        scores = scores / 2
        if mask is not None:
            masked = scores * mask
            scores = masked
        x = x + 1
        parts = {"k": [scores, x], "n": 3}
        return self.mix(scores, parts)

    def mix(self, scores, parts):
        _, *rest = parts["k"]
        return scaled(self, scores, 3.0) + sum(rest)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for index, layer in enumerate(self.layers):  # noqa: B007 - a variable to be seen
            x = layer(x)
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


X = torch.arange(8.0).reshape(2, 4)


def test_a_local_gives_every_binding_of_every_selected_module(model):
    with tt.capture(model, "layers.*.forward.scores") as cap:
        model(X)
    assert cap.names == ["layers.0.forward.scores", "layers.1.forward.scores"]
    first, second = cap["layers.0.forward.scores"]
    assert torch.equal(first, model.layers[0].q(X))
    assert torch.equal(second, first / 2)
    assert cap["layers.0.forward.scores"].calls == [0, 1]


def test_one_binding_can_be_chosen(model):
    with tt.capture(model, "layers.0.forward.scores#0", "layers.0.forward.scores#-2") as cap:
        model(X)
    assert torch.equal(cap["layers.0.forward.scores#0"], model.layers[0].q(X))
    assert torch.equal(cap["layers.0.forward.scores#-2"], model.layers[0].q(X) / 2)


def test_an_argument_is_its_value_on_entry_unless_later_bindings_are_asked_for(model):
    with tt.capture(model, "layers.0.forward.x", "layers.0.forward.x#1") as cap:
        model(X)
    assert torch.equal(cap["layers.0.forward.x"], X)
    assert torch.equal(cap["layers.0.forward.x#1"], X + 1)


def test_the_return_value_of_any_method_is_seen(model):
    with tt.capture(model, "forward", "layers.0.mix", "layers.1") as cap:
        out = model(X)
    assert torch.equal(cap["forward"], out)
    assert torch.equal(cap["layers.1"], out)
    assert [record.kind for record in cap.find("layers.0.mix")] == ["return"]


def test_a_helper_function_of_the_file_belongs_to_the_module_it_is_given(model):
    with tt.capture(model, "layers.1.scaled.raised", "layers.1.mix.rest") as cap:
        model(X)
    assert cap["layers.1.scaled.raised"].calls == [0, 1]
    assert cap["layers.1.mix.rest"].shape == X.shape  # a list of one


def test_nested_values_plain_numbers_and_all_variables_are_seen(model):
    with tt.capture(model, "layers.0.forward.parts", "forward.index", "layers.1.mix.*") as cap:
        model(X)
    assert list(cap["forward.index"]) == [0, 1]
    assert cap["layers.0.forward.parts['n']"] == 3
    assert "layers.1.mix.scores" in cap.names


def test_the_gradient_of_a_local_is_seen(model):
    with tt.capture(model, "layers.1.forward.scores#1.grad") as cap:
        model(X).sum().backward()
    assert cap["layers.1.forward.scores#1.grad"].unique().tolist() == [3.0]


def test_afterwards_the_code_is_the_very_same(model):
    before = Attention.forward.__code__, scaled.__code__, Model.forward.__code__
    wanted = model(X)
    with tt.capture(model, "**.forward.*", "layers.*.scaled.*"):
        assert torch.equal(model(X), wanted)
        assert Attention.forward.__code__ is not before[0]
    assert (Attention.forward.__code__, scaled.__code__, Model.forward.__code__) == before


def test_another_model_of_the_class_is_not_seen(model):
    other = Model()
    with tt.capture(model, "layers.*.forward.scores") as cap:
        other(X)
    assert len(cap) == 0
    assert dict(cap.missing)["layers.0.forward.scores"] == "forward() was not seen to run on it"


def test_a_decorated_method_is_found(model):
    def loud(function):
        @functools.wraps(function)
        def wrapper(*arguments, **keywords):
            return function(*arguments, **keywords)

        return wrapper

    class Loud(Attention):
        @loud
        def forward(self, x):
            doubled = x * 2
            return doubled  # noqa: RET504 - a variable to be seen

    with tt.capture(Loud(), "forward.doubled") as cap:
        cap._model(X)
    assert torch.equal(cap["forward.doubled"], X * 2)


def test_a_variable_that_was_not_bound_is_told_with_its_line(model):
    with tt.capture(model, "layers.0.forward.masked", "layers.0.forward.scores") as cap:
        model(X)
    (found,) = cap.missing
    line = Attention.forward.__code__.co_firstlineno + 4
    assert found == ("layers.0.forward.masked", f"not bound: test_probes.py:{line} did not run")


def test_an_unknown_variable_is_answered_with_those_of_the_function(model):
    with pytest.raises(tt.UnknownModuleError) as failure:
        tt.capture(model, "layers.*.forward.score")
    assert str(failure.value) == (
        "Attention.forward has no variable 'score'; did you mean 'scores'? It has 6"
    )


def test_every_second_step_and_statistics_work_on_locals_too(model):
    with tt.capture(model, "layers.0.forward.scores#0", keep="stats", when=tt.every(2)) as cap:
        for _ in range(3):
            model(X)
    assert cap["layers.0.forward.scores#0"].steps == [0, 2]


@pytest.mark.compile
def test_a_compiled_model_shows_its_locals(model):
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    with tt.capture(compiled, "layers.*.forward.scores#0") as cap:
        compiled(X)
    torch._dynamo.reset()
    assert len(cap) == 2


def test_a_function_that_was_put_on_one_module_is_seen_though_it_is_handed_no_module():
    model = nn.Sequential(nn.Identity(), nn.Identity())

    def doubled(x):
        y = x * 2
        return y  # noqa: RET504

    model[0].forward = doubled
    with tt.capture(model, "0.forward", "0.forward.y") as cap:
        model(X)
    assert torch.equal(cap["0.forward.y"], X * 2)
    assert torch.equal(cap["0.forward"], X * 2)


def test_a_wrapper_that_was_put_on_one_module_does_not_take_the_calls_of_others():
    class Added(nn.Module):
        def forward(self, x):
            y = x + 1
            return y  # noqa: RET504

    model = nn.Sequential(Added(), Added())
    inner = model[0].forward

    @functools.wraps(inner)
    def wrapped(*given):
        return inner(*given)

    model[0].forward = wrapped
    with tt.capture(model, "0.forward.y") as cap:
        model(X)
    assert torch.equal(cap["0.forward.y"], X + 1)
