"""Capturing compiled models: as plain Python, or out of their graphs."""

import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import tensortap as tt

# What torch warns of while it traces: its own deprecated parts, and a look at gradients that are not there.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
PATTERNS = ("**", "**.in", "**.grad", "0.up.weight", "0.up.weight.grad")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)

    def forward(self, x, *, mask=None):
        return x + tt.tap(self.down(self.act(self.up(x))), "update")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def compiled_by(backend, model, *, in_place=False):
    counter = CompileCounterWithBackend(backend)
    if not in_place:
        return torch.compile(model, backend=counter, fullgraph=True), counter
    model.compile(backend=counter, fullgraph=True)
    return model, counter


def moments(cap):
    return {(record.name, record.step, record.call): record.value for record in cap}


def trained(model, *, steps=2, **arguments):
    with tt.capture(model, *PATTERNS, **arguments) as cap:
        for step in range(steps):
            model.zero_grad()
            model(torch.full((3, 4), 1.0 + step)).sum().backward()
    return cap


@pytest.mark.compile
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_runs_as_plain_python_and_keeps_its_graphs(model, x, in_place):
    wanted = moments(trained(model))
    compiled, counter = compiled_by("aot_eager", model, in_place=in_place)
    compiled(x)
    before = counter.frame_count
    found = trained(compiled)
    compiled(x)
    assert counter.frame_count == before
    assert moments(found).keys() == wanted.keys()
    assert all(torch.equal(value, wanted[key]) for key, value in moments(found).items())
    assert found.missing == []


@pytest.mark.compile
def test_a_model_inside_a_compiled_function_is_seen(model, x):
    counter = CompileCounterWithBackend("eager")
    step = torch.compile(lambda x: model(x) + 1, backend=counter)
    step(x)
    with tt.capture(model, "**") as cap:
        step(x)
    assert (counter.frame_count, len(cap.names)) == (1, 10)


@pytest.mark.process
def test_a_model_that_is_compiled_while_it_is_captured_is_seen():
    """In a process of its own: the compiler must not be loaded before."""
    program = """
import sys, torch, tensortap as tt
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
with tt.capture(model, "**") as cap:
    assert "torch._dynamo" not in sys.modules
    torch.compile(model, backend="eager", fullgraph=True)(torch.ones(1, 2))
assert cap.names == ["0", "1", "out"], cap.names
from torch._dynamo.eval_frame import _stance
assert _stance.stance == "default", _stance
assert not [one for one in sys.meta_path if type(one).__module__.startswith("tensortap")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.compile
@pytest.mark.parametrize("in_place", [False, True])
def test_values_and_gradients_come_out_of_the_graph_itself(model, x, in_place):
    wanted = moments(trained(model))
    compiled, counter = compiled_by("aot_eager", model, in_place=in_place)
    compiled(x)
    before = counter.frame_count
    found = trained(compiled, compiled="graph")
    assert counter.frame_count == before + 1  # one graph with taps, none more however often it runs
    assert moments(found).keys() == wanted.keys()
    assert all(torch.allclose(value, wanted[key]) for key, value in moments(found).items())
    assert found.missing == []
    held = len(found)
    compiled(x)
    assert len(found) == held


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, and g++ is not here")
def test_inductor_shows_the_same(model):
    wanted = moments(trained(model))
    compiled, counter = compiled_by("inductor", model)
    found = moments(trained(compiled, compiled="graph"))
    assert counter.frame_count == 1
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(value, wanted[key], atol=1e-6) for key, value in found.items())


@pytest.mark.compile
def test_the_programs_own_results_do_not_change(model, x):
    compiled, _ = compiled_by("aot_eager", model)
    wanted = compiled(x)
    with tt.capture(compiled, *PATTERNS, compiled="graph"):
        seen = compiled(x)
        seen.sum().backward()
    gradient = model[0].up.weight.grad.clone()
    model.zero_grad()
    compiled(x).sum().backward()
    assert torch.equal(seen, wanted)
    assert torch.equal(model[0].up.weight.grad, gradient)


@pytest.mark.compile
def test_later_writes_do_not_reach_a_value_from_a_graph(model, x):
    compiled, _ = compiled_by("aot_eager", model)
    with tt.capture(compiled, "0.up", compiled="graph") as cap:
        compiled(x)
    assert (cap["0.up"] < 0).any()


@pytest.mark.compile
def test_a_tap_costs_a_compiled_program_no_graph(model, x):
    compiled, counter = compiled_by("eager", model)
    compiled(x)
    with tt.capture(compiled, "0") as cap:
        compiled(x)
    compiled(x)
    assert counter.frame_count == 1
    assert cap["update"].calls == [0, 1]


@pytest.mark.compile
def test_a_compiled_model_can_be_refused(model):
    compiled, _ = compiled_by("eager", model)
    with pytest.raises(ValueError, match="the model is compiled; compiled='eager' runs it as plain Python"):
        tt.capture(compiled, "0", compiled="error").start()
    with tt.capture(model, "0", compiled="error"):
        pass


def test_stop_cannot_leave_a_graph(model):
    with pytest.raises(ValueError, match="stop=True cannot leave a compiled graph"):
        tt.capture(model, "0", stop=True, compiled="graph")


@pytest.mark.compile
def test_a_branch_inside_a_compiled_graph_is_missing_and_not_said_to_be_uncalled(x):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))

    compiled, _ = compiled_by("aot_eager", Branches())
    with tt.capture(compiled, "one", compiled="graph") as cap, torch.no_grad():
        compiled(x.abs())
    assert dict(cap.missing) == {
        "one": "not called, or inside a part of the compiled graph that shows nothing (torch.cond)"
    }


def test_a_scripted_part_is_named_as_such(x):
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), nn.ReLU())
    with tt.capture(model, "**") as cap:
        model(x)
    assert dict(cap.missing)["0.0"] == "it is scripted: no hook runs inside"


@pytest.mark.compile
def test_an_edit_reaches_a_compiled_model(model, x):
    compiled, counter = compiled_by("eager", model)
    wanted = compiled(x)
    with tt.edit(compiled, {"1": lambda value: value * 0}):
        assert not compiled(x).any()
    assert torch.equal(compiled(x), wanted)
    assert counter.frame_count == 1
