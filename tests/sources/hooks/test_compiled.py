"""Compiled graphs: values and gradients come out, while the program stays whole, fast and the same."""

import dataclasses
import logging
import shutil
from collections import OrderedDict, deque
from typing import NamedTuple

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutput

from tensortap.frameworks.pytree import leaves
from tensortap.sources.hooks.compiled import (
    fresh_graphs,
    input_hook,
    output_hook,
    register_callback,
    see,
    see_gradient,
    unregister_callback,
)

pytestmark = pytest.mark.compile

needs_a_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler, and there is none"
)
ignores_inductor = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
everywhere = pytest.mark.parametrize("backend", [None, "aot_eager"])


@pytest.fixture(autouse=True)
def no_graphs_left():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def seen():
    return Seen()


class Seen:
    """What a ticket was shown, copied at once."""

    def __init__(self):
        self.values, self.positions = [], []
        self.key = register_callback(self.take)

    def take(self, tensor, position):
        self.values.append(tensor.detach().clone())
        self.positions.append(position)


def compiled(function, backend, **options):
    return (
        function if backend is None else torch.compile(function, backend=backend, fullgraph=True, **options)
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Cell(nn.Module):
    """Returns what its function makes of the input; `root` calls it, so that its hooks are traced."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def root(self, *args, **kwargs):
        return self(*args, **kwargs)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_values_are_shown_in_the_order_of_the_program_also_where_nothing_uses_them(seen, backend):
    def program(x):
        see(x, seen.key, "given")
        y = x + 1
        see(y * 5, seen.key, "unused")
        y.mul_(2)
        see(y, seen.key, "doubled")
        y.add_(1)
        return y

    result = compiled(program, backend)(torch.zeros(2))
    assert seen.positions == ["given", "unused", "doubled"]
    assert [value.tolist() for value in seen.values] == [[0, 0], [5, 5], [2, 2]]
    assert result.tolist() == [3, 3]


@everywhere
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_is_seen_too(seen, backend, mode):
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    layer.register_forward_hook(output_hook(seen.key, seen.key))
    with mode():
        result = compiled(layer, backend)(x)
    assert torch.equal(seen.values[0], result)
    assert len(seen.values) == 1


def test_other_lengths_are_seen_from_one_graph(seen):
    graphs = CompileCounterWithBackend("aot_eager")

    def program(x):
        y = see_gradient(x.sin(), seen.key)
        see(y, seen.key)
        return y.sum()

    step = torch.compile(program, backend=graphs, fullgraph=True, dynamic=True)
    for length in (3, 5, 7):
        step(torch.randn(length, requires_grad=True)).backward()
    assert [len(value) for value in seen.values] == [3, 3, 5, 5, 7, 7]
    assert graphs.frame_count == 1


def test_a_forgotten_key_is_silent_and_the_graph_stays(seen):
    graphs = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=graphs, fullgraph=True)
    def program(x):
        see(x, seen.key)
        return x + 1

    program(torch.zeros(2))
    unregister_callback(seen.key)
    assert program(torch.zeros(2)).tolist() == [1, 1]
    assert (len(seen.values), graphs.frame_count) == (1, 1)


def test_a_key_is_never_given_twice(seen):
    unregister_callback(seen.key)
    assert register_callback(seen.take) != seen.key


@everywhere
def test_a_callback_that_fails_is_logged_once_and_the_graph_goes_on(monkeypatch, caplog, backend):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    key = register_callback(lambda tensor, position: 1 / 0)

    def program(x):
        see(x, key, "here")
        return x + 1

    step = compiled(program, backend)
    with caplog.at_level(logging.ERROR, "tensortap.graph"):
        results = [step(torch.zeros(1)).item() for _ in range(3)]
    assert results == [1, 1, 1]
    (record,) = caplog.records
    assert "'here'" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


def test_a_callback_that_fails_is_raised_where_failures_must_be(monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    key = register_callback(lambda tensor, position: 1 / 0)
    step = torch.compile(lambda x: see(x, key), backend="aot_eager", fullgraph=True)
    with pytest.raises(ZeroDivisionError):
        step(torch.zeros(1))


@everywhere
def test_the_gradient_is_that_of_the_whole_value_and_the_program_keeps_its_own(seen, backend):
    def program(x, weight, *, watched):
        y = x @ weight
        z = see_gradient(y, seen.key, "y") if watched else y
        return (z * 3).sum() + y.sin().sum()

    x, weights = torch.randn(3, 4), [torch.eye(4, requires_grad=True) for _ in range(2)]
    for weight, watched in zip(weights, (False, True), strict=True):
        compiled(program, backend)(x, weight, watched=watched).backward()
    assert torch.equal(weights[0].grad, weights[1].grad)
    assert seen.positions == ["y"]
    assert torch.allclose(seen.values[0], 3 + x.cos())


@everywhere
def test_the_gradient_before_an_operation_in_place_is_that_of_the_value_before(seen, backend):
    def program(x):
        y = see_gradient(x * 1, seen.key)
        return y.relu_().sum()

    compiled(program, backend)(torch.tensor([-1.0, 2.0], requires_grad=True)).backward()
    assert seen.values[0].tolist() == [0, 1]


@everywhere
def test_nothing_stays_on_a_leaf_of_autograd(seen, backend):
    x = torch.ones(2, requires_grad=True)
    step = compiled(lambda x: (see_gradient(x, seen.key) * 3).sum(), backend)
    for _ in range(3):
        step(x).backward()
    assert [value.tolist() for value in seen.values] == [[3, 3]] * 3
    assert x.grad.tolist() == [9, 9]
    assert not x._backward_hooks


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_checkpointed_region_gives_its_gradient_once(seen, backend):
    def region(x):
        return see_gradient(x.sin(), seen.key).cos()

    step = compiled(lambda x: checkpoint(region, x, use_reentrant=False).sum(), backend)
    step(torch.ones(2, requires_grad=True)).backward()
    assert len(seen.values) == 1


@everywhere
def test_inside_vmap_the_whole_batch_is_seen(seen, backend):
    def one(x):
        see(x * 2, seen.key)
        return x

    compiled(lambda batch: torch.vmap(one, in_dims=1)(batch), backend)(torch.ones(2, 3))
    assert seen.values[0].tolist() == [[2, 2]] * 3


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    extra: object = None


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


STRUCTURES = {
    "tensor": lambda x: x * 2,
    "nested": lambda x: (x + 1, [x + 2, None, {"k": x + 3, 4: x + 5}], "text"),
    "ordered": lambda x: OrderedDict(b=x + 1, a=x + 2),
    "deque": lambda x: deque([x + 1, x + 2]),
    "dataclass": lambda x: Answer(x + 1, (x + 2, 3)),
    "named tuple": lambda x: Pair(x + 1, {"it's": x + 2}),
    "model output": lambda x: BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x + 2, x + 3)),
    "torch's own": lambda x: x.max(dim=0),
}


@everywhere
@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_tensor_of_an_output_is_shown_under_the_path_it_has(seen, backend, structure):
    gradients, x = Seen(), torch.randn(3, requires_grad=True)
    cell = Cell(STRUCTURES[structure])
    expected = {path: leaf for path, leaf in leaves(cell(x)) if isinstance(leaf, torch.Tensor)}
    cell.register_forward_hook(output_hook(seen.key, gradients.key))
    output = compiled(cell.root, backend)(x)
    assert seen.positions == list(expected)
    assert all(map(torch.equal, seen.values, expected.values()))
    differentiable = {path: leaf for path, leaf in leaves(output) if getattr(leaf, "requires_grad", False)}
    sum(leaf.sum() for leaf in differentiable.values()).backward()
    assert sorted(gradients.positions) == sorted(differentiable)


@everywhere
def test_an_output_keeps_its_class_and_its_identity(seen, backend):
    cell = Cell(lambda x: kept)
    kept = [torch.ones(1)]
    cell.register_forward_hook(output_hook(seen.key, seen.key))
    assert compiled(cell.root, backend)(torch.ones(1)) is kept


@everywhere
def test_inputs_are_called_like_the_parameters_however_they_are_passed(seen, backend):
    cell = Cell(lambda x, *more, scale=None, state=(): x * scale)
    cell.register_forward_pre_hook(input_hook(seen.key, names=("x",)), with_kwargs=True)
    ones = torch.ones(1)
    result = compiled(cell.root, backend)(ones, ones * 2, scale=ones * 3, state=[{"h": ones * 4}])
    assert seen.positions == [".x", "[1]", ".scale", ".state[0]['h']"]
    assert [value.item() for value in seen.values] == [1, 2, 3, 4]
    assert result.item() == 3


@everywhere
def test_the_gradient_of_a_leaf_inside_a_list_is_seen(seen, backend):
    cell = Cell(lambda pair: (pair[0] * pair[1]).sum())
    cell.register_forward_pre_hook(input_hook(None, seen.key), with_kwargs=True)
    x = torch.full((1,), 5.0, requires_grad=True)
    compiled(cell.root, backend)([x, torch.full((1,), 7.0)]).backward()
    assert (seen.positions, seen.values[0].item(), x.grad.item()) == (["[0][0]"], 7, 7)


def test_the_root_is_seen_too_and_its_hooks_are_no_graphs_of_their_own(seen):
    graphs, x = CompileCounterWithBackend("aot_eager"), torch.randn(2, 4)
    net, inputs, gradients = Net(), Seen(), Seen()
    net.register_forward_hook(output_hook(seen.key, gradients.key))
    net.register_forward_pre_hook(input_hook(inputs.key), with_kwargs=True)
    result = torch.compile(net, backend=graphs, fullgraph=True)(x)
    result.sum().backward()
    assert torch.equal(seen.values[0], result)
    assert torch.equal(gradients.values[0], torch.ones(2, 4))
    assert (inputs.positions, torch.equal(inputs.values[0], x)) == (["[0]"], True)
    assert graphs.frame_count == 1


def test_a_list_that_contains_itself_ends(seen):
    cell = Cell(lambda x: ring)
    ring = [torch.ones(1)]
    ring.append(ring)
    cell.register_forward_hook(output_hook(seen.key))
    assert cell(torch.ones(1)) is ring
    assert seen.positions[:2] == ["[0]", "[1][0]"]


@pytest.mark.parametrize("in_place", [False, True])
def test_hooks_reach_a_model_that_was_compiled_before_and_are_gone_after(seen, in_place):
    graphs, x = CompileCounterWithBackend("aot_eager"), torch.randn(2, 4)
    nets = [Net(), Net()]
    runs = [_compile(net, graphs, in_place) for net in nets]
    with torch.no_grad():
        before = [run(x) for run in runs]
        built_before = graphs.frame_count
        with fresh_graphs():
            hook = nets[0].first.register_forward_hook(output_hook(seen.key))
            during = [runs[0](x) for _ in range(3)]
            built_inside = graphs.frame_count - built_before
            hook.remove()
        after = [run(x) for run in runs]
    assert built_inside == 1
    assert len(seen.values) == 3
    assert all(torch.equal(value, nets[0].first(x)) for value in seen.values)
    assert all(torch.equal(output, before[0]) for output in during)
    assert all(map(torch.equal, after, before))


def test_a_second_model_of_the_class_is_not_taken_for_the_first(seen):
    graphs, x = CompileCounterWithBackend("aot_eager"), torch.randn(2, 4)
    nets = [Net(), Net()]
    runs = [_compile(net, graphs, in_place=False) for net in nets]
    with fresh_graphs():
        hook = nets[0].first.register_forward_hook(output_hook(seen.key))
        for run in (runs[0], runs[1], runs[0], runs[1], runs[0]):
            run(x)
        hook.remove()
    assert len(seen.values) == 3
    assert all(torch.equal(value, nets[0].first(x)) for value in seen.values)
    assert graphs.frame_count == 2


@pytest.mark.parametrize(("place", "graph_count"), [("block", 1), ("inside", 12)])
def test_blocks_that_are_compiled_one_by_one_each_speak_for_themselves(place, graph_count):
    graphs, x = CompileCounterWithBackend("aot_eager"), torch.randn(1, 4)
    blocks = nn.Sequential(*[Net() for _ in range(12)])
    sites = [Seen() for _ in blocks]
    for block in blocks:
        block.compile(backend=graphs, fullgraph=True)
    with fresh_graphs(hooks=len(blocks)), torch.no_grad():
        for block, site in zip(blocks, sites, strict=True):
            module = block if place == "block" else block.second
            module.register_forward_hook(output_hook(site.key))
        result = blocks(x)
    assert [len(site.values) for site in sites] == [1] * 12
    assert len({tuple(site.values[0].flatten().tolist()) for site in sites}) == 12
    assert torch.equal(sites[-1].values[0], result)
    assert graphs.frame_count == graph_count


def test_the_settings_of_dynamo_are_put_back_after_a_failure():
    before = torch._dynamo.config.get_config_copy()
    with pytest.raises(KeyError), fresh_graphs(hooks=3):
        raise KeyError
    assert torch._dynamo.config.get_config_copy() == before


@needs_a_compiler
@ignores_inductor
def test_a_training_step_in_inductor_shows_the_values_and_gradients_of_eager(seen):
    gradients, x = Seen(), torch.randn(2, 4)
    net, plain = Net(), Net()
    plain.load_state_dict(net.state_dict())
    hidden = plain.first(x)
    hidden.retain_grad()
    plain.second(hidden.relu()).square().sum().backward()
    net.first.register_forward_hook(output_hook(seen.key, gradients.key))
    graphs = CompileCounterWithBackend("inductor")
    step = torch.compile(lambda x: net(x).square().sum(), backend=graphs, fullgraph=True)
    for _ in range(2):
        net.zero_grad()
        step(x).backward()
    assert [len(site.values) for site in (seen, gradients)] == [2, 2]
    assert torch.allclose(seen.values[1], hidden, atol=1e-6)
    assert torch.allclose(gradients.values[1], hidden.grad, atol=1e-6)
    assert torch.allclose(net.first.weight.grad, plain.first.weight.grad, atol=1e-6)
    assert graphs.frame_count == 1


@needs_a_compiler
@ignores_inductor
def test_inductor_keeps_order_positions_and_unused_values(seen):
    strange = "['it\\'s \"ü\"\n']"

    @torch.compile(backend="inductor", fullgraph=True)
    def program(x):
        see(x.t(), seen.key, strange)
        see(x > 0, seen.key, "unused")
        x.add_(1)
        see(x, seen.key)

    x = torch.tensor([[1.0, -2.0]])
    program(x)
    assert seen.positions == [strange, "unused", ""]
    assert [value.tolist() for value in seen.values] == [[[1], [-2]], [[True, False]], [[2, -1]]]


def _compile(net, graphs, in_place):
    if not in_place:
        return torch.compile(net, backend=graphs, fullgraph=True)
    net.compile(backend=graphs, fullgraph=True)
    return net
