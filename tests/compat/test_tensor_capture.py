"""TensorCapture as its README shows it, and what that leaves open."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import textwrap
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt
from tensortap.compat import tensor_capture
from tensortap.compat.tensor_capture import (
    disable_tensor_capture,
    enable_tensor_capture,
    get_available_modules,
    get_captured_tensors_dict,
    register_tensor,
)


@pytest.fixture(autouse=True)
def _nothing_stays_enabled():
    yield
    for latest in tensor_capture._alive_captures():
        disable_tensor_capture(latest.model)


class Model(nn.Module):
    """Registers what each layer gives, and overwrites it at once."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.activation = nn.ReLU(inplace=True)
        self.output_layer = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            register_tensor("after_layer", x)
            x = self.activation(x)
        return self.output_layer(x)


class Answering(Model):
    """Hands out what was captured, as a traced model must."""

    def forward(self, x):
        output = super().forward(x)
        tensor_dict = get_captured_tensors_dict()
        return (output, tensor_dict) if tensor_dict else output


@dataclass
class Answer:
    logits: torch.Tensor
    name: str
    hidden: tuple


class Structured(nn.Module):
    def forward(self, x, y=None, *, scale=None, cache=None):
        return Answer(x + 1, "not a tensor", (x + 2, {"k": x + 3}))


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments, **keywords):
        return self.inner(*arguments, **keywords)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    return torch.randn(5, 4)


def equal(captured, expected):
    return list(captured) == list(expected) and all(
        torch.equal(captured[name], value) for name, value in expected.items()
    )


def layer_values(model, x):
    """What the layers give, computed apart."""
    found = []
    for layer in model.layers:
        found.append(layer(x).detach())
        x = found[-1].relu()
    return found


# --- modules -----------------------------------------------------------------------------------------------


def test_the_documented_use_captures_listed_modules_and_registered_tensors(model, x):
    assert "layers.0" in get_available_modules(model)
    assert enable_tensor_capture(model, ["layers.0", "layers.1", "output_layer"], max_tensors=5) is model
    output = model(x)
    captured, values = get_captured_tensors_dict(), layer_values(model, x)
    assert isinstance(captured, OrderedDict)
    assert equal(
        captured,
        {
            "layers.0.outputs": values[0],
            "layers.1.outputs": values[1],
            "output_layer.outputs": output.detach(),
            "after_layer": values[0],
            "after_layer_1": values[1],
            "after_layer_2": values[2],
        },
    )
    assert disable_tensor_capture(model) is model
    assert get_captured_tensors_dict() == {}


def test_every_named_module_is_available_once_and_in_order():
    model = Model(11)
    model.tied = model.layers[0]
    names = get_available_modules(model)
    assert names == ["layers", *(f"layers.{i}" for i in range(11)), "activation", "output_layer"]


def test_modules_come_as_listed_with_inputs_before_outputs(model, x):
    enable_tensor_capture(model, ["output_layer", "layers.0"], capture_inputs=True)
    model(x)
    assert list(get_captured_tensors_dict())[:4] == [
        "output_layer.inputs.0",
        "output_layer.outputs",
        "layers.0.inputs.0",
        "layers.0.outputs",
    ]


def test_inputs_are_named_as_the_caller_passed_them(x):
    model = Holder(Structured())
    enable_tensor_capture(model, ["inner"], capture_inputs=True)
    model(x, (x, x), scale=x, cache={"past": [x]})
    inputs = [name for name in get_captured_tensors_dict() if ".inputs" in name]
    assert inputs == [
        "inner.inputs.0",
        "inner.inputs.1.0",
        "inner.inputs.1.1",
        "inner.inputs.kwargs.scale",
        "inner.inputs.kwargs.cache.past.0",
    ]


def test_the_fields_items_and_keys_of_an_output_are_captured_separately(x):
    model = enable_tensor_capture(Holder(Structured()), ["inner"])
    model(x)
    expected = {
        "inner.outputs.logits": x + 1,
        "inner.outputs.hidden.0": x + 2,
        "inner.outputs.hidden.1.k": x + 3,
    }
    assert equal(get_captured_tensors_dict(), expected)


def test_a_module_that_is_called_several_times_keeps_every_call(model, x):
    enable_tensor_capture(model, ["activation"])
    for _ in range(2):
        model(x)
    captured = get_captured_tensors_dict()
    assert list(captured)[:3] == ["activation.outputs", "activation.outputs_1", "activation.outputs_2"]
    assert torch.equal(captured["activation.outputs_2"], layer_values(model, x)[2].relu())


def test_only_the_latest_forward_is_there(model, x):
    enable_tensor_capture(model, ["layers.0"])
    model(x)
    model(2 * x)
    assert torch.equal(get_captured_tensors_dict()["layers.0.outputs"], layer_values(model, 2 * x)[0])
    assert len(get_captured_tensors_dict()) == 4


def test_a_module_called_by_itself_replaces_what_it_gave_before(model, x):
    enable_tensor_capture(model, ["output_layer"])
    for _ in range(3):
        expected = model.output_layer(x)
    assert equal(get_captured_tensors_dict(), {"output_layer.outputs": expected.detach()})


def test_values_are_those_of_the_moment_and_hold_no_graph(model, x):
    enable_tensor_capture(model, ["layers.0"])
    model(x).sum().backward()
    captured = get_captured_tensors_dict()["layers.0.outputs"]
    expected = layer_values(model, x)[0]
    with torch.no_grad():
        model.layers[0].weight.zero_()
    assert torch.equal(captured, expected)
    assert (captured < 0).any(), "the activation wrote over it"
    assert not captured.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_is_captured_like_training(model, x, mode):
    enable_tensor_capture(model, ["layers.1"])
    with mode():
        model(x)
        expected = layer_values(model, x)[1]
    assert torch.equal(get_captured_tensors_dict()["layers.1.outputs"], expected)


@pytest.mark.parametrize("nothing", [None, []])
def test_without_modules_only_registered_tensors_are_captured(model, x, nothing):
    enable_tensor_capture(model, nothing)
    model(x)
    assert list(get_captured_tensors_dict()) == ["after_layer", "after_layer_1", "after_layer_2"]


def test_the_model_itself_a_pattern_and_a_single_name_are_understood(model, x):
    enable_tensor_capture(model, ["", "layers.*"], max_tensors=0)
    output = model(x)
    captured = get_captured_tensors_dict()
    assert list(captured) == ["outputs", "layers.0.outputs", "layers.1.outputs", "layers.2.outputs"]
    assert torch.equal(captured["outputs"], output)
    enable_tensor_capture(model, "output_layer", max_tensors=0)
    model(x)
    assert list(get_captured_tensors_dict()) == ["output_layer.outputs"]


def test_a_wrapper_may_be_left_out_of_the_names_or_not(model, x):
    wrapped = nn.DataParallel(model)
    enable_tensor_capture(wrapped, ["layers.0", "module.layers.1"], max_tensors=0)
    wrapped(x)
    assert list(get_captured_tensors_dict(model=wrapped)) == ["layers.0.outputs", "module.layers.1.outputs"]
    assert "layers.0" in get_available_modules(wrapped)


# --- refusals ----------------------------------------------------------------------------------------------


def test_an_unknown_module_is_refused_with_the_nearest_name(model, x):
    enable_tensor_capture(model, ["layers.0"], max_tensors=0)
    with pytest.raises(ValueError) as refused:
        enable_tensor_capture(model, ["output_layer", "layer.1"])
    assert isinstance(refused.value, tt.UnknownModuleError)
    assert str(refused.value).startswith("no module 'layer.1' in the model; did you mean 'layers.1'")
    assert str(refused.value).endswith("? get_available_modules(model) lists all 6")
    model(x)
    assert list(get_captured_tensors_dict()) == ["layers.0.outputs"]


@pytest.mark.parametrize("unknown", ["nowhere.*", "layers.9"])
def test_a_pattern_or_a_name_that_means_nothing_is_unknown_too(model, unknown):
    with pytest.raises(tt.UnknownModuleError, match="lists all 6"):
        enable_tensor_capture(model, [unknown])


def test_what_is_no_model_no_name_and_no_number_is_refused(model):
    with pytest.raises(TypeError, match="a list is no model"):
        enable_tensor_capture([], [])
    with pytest.raises(TypeError, match="given by its name, not as 3"):
        enable_tensor_capture(model, [3])
    with pytest.raises(ValueError, match="max_tensors is -1; give a whole number"):
        enable_tensor_capture(model, [], max_tensors=-1)
    assert get_captured_tensors_dict() == {}


def test_a_name_that_is_no_text_is_refused(model, x):
    enable_tensor_capture(model, [])
    with pytest.raises(TypeError, match="takes the name first"):
        register_tensor(x, "name")


def test_a_list_of_modules_is_never_called_and_that_is_said(model, caplog):
    enable_tensor_capture(model, ["layers"])
    assert "'layers' only holds other modules" in caplog.text


def test_a_tensor_without_values_is_named_and_left_out(caplog):
    model = enable_tensor_capture(nn.Sequential(nn.Linear(2, 2, device="meta")), ["0"])
    model(torch.ones(1, 2, device="meta"))
    assert get_captured_tensors_dict() == {}
    assert "'0.outputs' is not captured" in caplog.text


# --- registering by hand -----------------------------------------------------------------------------------


def test_registering_does_nothing_while_no_model_is_enabled(x):
    register_tensor("x", x)
    assert get_captured_tensors_dict() == {}


def test_what_was_registered_in_a_forward_is_replaced_by_the_next_and_the_rest_stays(model, x):
    enable_tensor_capture(model, [])
    register_tensor("mine", x)
    model(x)
    model(2 * x)
    captured = get_captured_tensors_dict()
    assert list(captured) == ["mine", "after_layer", "after_layer_1", "after_layer_2"]
    assert torch.equal(captured["mine"], x)
    assert torch.equal(captured["after_layer"], layer_values(model, 2 * x)[0])


def test_a_name_registered_outside_again_after_a_forward_replaces_the_old_one(model, x):
    enable_tensor_capture(model, [], max_tensors=5)
    for step in range(4):
        model(x)
        register_tensor("loss", torch.tensor(float(step)))
        register_tensor("loss", torch.tensor(float(-step)))
    captured = get_captured_tensors_dict()
    assert list(captured)[3:] == ["loss", "loss_1"]
    assert [captured["loss"].item(), captured["loss_1"].item()] == [3, -3]


def test_a_registered_name_that_a_module_has_already_is_numbered(model, x):
    enable_tensor_capture(model, ["layers.0"], max_tensors=1)
    register_tensor("layers.0.outputs", x)
    model(x)
    assert list(get_captured_tensors_dict()) == ["layers.0.outputs", "layers.0.outputs_1"]


def test_parts_of_a_registered_structure_are_captured_separately(model, x):
    enable_tensor_capture(model, [])
    register_tensor("pair", (x, None, {"k": x}))
    assert list(get_captured_tensors_dict()) == ["pair.0", "pair.2.k"]


def test_at_most_so_many_registered_tensors_are_kept_and_the_rest_is_told_once(model, x, caplog):
    enable_tensor_capture(model, ["layers.0", "layers.1"], max_tensors=2)
    for _ in range(2):
        model(x)
    names = list(get_captured_tensors_dict())
    assert names == ["layers.0.outputs", "layers.1.outputs", "after_layer", "after_layer_1"]
    assert caplog.messages == ["'after_layer' is not captured: max_tensors=2 are registered already"]


def test_padding_gives_exactly_so_many_registered_tensors(model, x):
    enable_tensor_capture(model, ["layers.0"], max_tensors=5)
    model(x)
    padded = get_captured_tensors_dict(pad=True)
    assert list(padded)[-2:] == ["placeholder_3", "placeholder_4"]
    assert torch.equal(padded["placeholder_3"], torch.zeros(1))
    assert len(get_captured_tensors_dict()) == 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_that_was_broken_off_does_not_spoil_the_next(model, x, error):
    enable_tensor_capture(model, ["layers.0"])

    def fail(module, arguments):
        raise error

    breaking = model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        model(x)
    assert list(get_captured_tensors_dict()) == ["layers.0.outputs", "after_layer"]
    breaking.remove()
    register_tensor("outside", x)
    for _ in range(2):
        model(x)
    names = ["layers.0.outputs", "outside", "after_layer", "after_layer_1", "after_layer_2"]
    assert list(get_captured_tensors_dict()) == names


def test_a_model_that_calls_itself_is_in_one_forward(x):
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, depth=2):
            x = self.linear(x)
            register_tensor("x", x)
            return self(x, depth - 1) if depth else x

    model = enable_tensor_capture(Recursive(), ["linear"])
    for _ in range(2):
        model(x)
    names = ["linear.outputs", "linear.outputs_1", "linear.outputs_2", "x", "x_1", "x_2"]
    assert list(get_captured_tensors_dict()) == names


def test_what_a_checkpoint_computes_again_is_not_registered_again(x):
    class Checkpointed(Model):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model = enable_tensor_capture(Checkpointed(), ["layers.0"])
    model(x.requires_grad_()).sum().backward()
    names = ["layers.0.outputs", "after_layer", "after_layer_1", "after_layer_2"]
    assert list(get_captured_tensors_dict()) == names


def test_a_gradient_can_be_registered_from_a_hook(model, x):
    enable_tensor_capture(model, [])
    x.requires_grad_().register_hook(lambda gradient: register_tensor("gradient", gradient))
    model(x).sum().backward()
    assert torch.equal(get_captured_tensors_dict()["gradient"], x.grad)


# --- enabling, disabling, several models -------------------------------------------------------------------


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_backward_hooks")
    return [len(getattr(module, kind)) for module in model.modules() for kind in kinds]


def test_disabling_takes_every_hook_off_but_the_users(model, x):
    calls = []
    model.layers[0].register_forward_hook(lambda *arguments: calls.append("layer"))
    model.register_forward_pre_hook(lambda *arguments: calls.append("model"))
    before = hooks_of(model)
    enable_tensor_capture(model, ["layers.0"], capture_inputs=True)
    model(x)
    disable_tensor_capture(model)
    assert hooks_of(model) == before
    model(x)
    assert calls == ["model", "layer"] * 2
    assert disable_tensor_capture(model) is model


def test_enabling_again_replaces_the_selection_and_forgets(model, x):
    enable_tensor_capture(model, ["layers.0"], max_tensors=1)
    model(x)
    enable_tensor_capture(model, ["layers.1"], max_tensors=0)
    assert get_captured_tensors_dict() == {}
    model(x)
    assert list(get_captured_tensors_dict()) == ["layers.1.outputs"]
    disable_tensor_capture(model)
    assert sum(hooks_of(model)) == 0


def test_a_second_model_does_not_disturb_the_first(model, x):
    other = Model(2)
    enable_tensor_capture(model, ["layers.0"])
    enable_tensor_capture(other, ["layers.1"])
    model(x)
    other(x)
    names = ["layers.0.outputs", "after_layer", "after_layer_1", "after_layer_2"]
    assert list(get_captured_tensors_dict(model=model)) == names
    assert list(get_captured_tensors_dict()) == ["layers.1.outputs", "after_layer", "after_layer_1"]
    disable_tensor_capture(other)
    assert list(get_captured_tensors_dict()) == names
    assert get_captured_tensors_dict(model=other) == {}


def test_within_a_forward_the_model_that_runs_is_meant(x):
    first, second = Answering(1), Answering(1)
    enable_tensor_capture(first, ["layers.0"])
    enable_tensor_capture(second, ["output_layer"])
    assert list(first(x)[1]) == ["layers.0.outputs", "after_layer"]
    assert list(second(x)[1]) == ["output_layer.outputs", "after_layer"]


def test_a_model_and_a_part_of_it_can_be_enabled_at_once(model, x):
    outer = Holder(model)
    enable_tensor_capture(outer, ["inner.layers.0"])
    enable_tensor_capture(model, ["layers.0"])
    outer(x)
    registered = ["after_layer", "after_layer_1", "after_layer_2"]
    assert list(get_captured_tensors_dict(model=outer)) == ["inner.layers.0.outputs", *registered]
    assert list(get_captured_tensors_dict(model=model)) == ["layers.0.outputs", *registered]


def test_copies_and_pickles_of_an_enabled_model_work_and_capture_nothing(model, x):
    enable_tensor_capture(model, ["layers.0"], capture_inputs=True, max_tensors=0)
    expected = model(x)
    captured = get_captured_tensors_dict()["layers.0.outputs"]
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), expected)
        copied(2 * x)
    assert get_captured_tensors_dict()["layers.0.outputs"] is captured


def test_an_enabled_model_that_nobody_holds_goes_with_its_capture(x):
    model = enable_tensor_capture(Model(), ["layers.0"])
    model(x)
    del model
    gc.collect()
    assert tensor_capture._enabled == ()
    assert get_captured_tensors_dict() == {}


@pytest.mark.process
def test_a_program_may_end_without_disabling():
    program = """
        import torch
        from tensortap.compat.tensor_capture import enable_tensor_capture, get_captured_tensors_dict
        model = enable_tensor_capture(torch.nn.Sequential(torch.nn.Linear(2, 2)), ["0"])
        model(torch.ones(1, 2))
        print(list(get_captured_tensors_dict()))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("['0.outputs']\n", "")


def test_nothing_is_captured_when_tensortap_is_off(model, x, monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    assert enable_tensor_capture(model, ["no such module"]) is model
    model(x)
    register_tensor("x", x, tap=tt.Tap(sinks=[memory := tt.Memory()]))
    assert get_captured_tensors_dict() == {}
    assert not memory.records
    assert sum(hooks_of(model)) == 0
    assert disable_tensor_capture(model) is model


# --- other taps --------------------------------------------------------------------------------------------


def test_what_is_captured_also_flows_into_a_tap_of_the_users(model, x):
    memory = tt.Memory()
    enable_tensor_capture(model, ["layers.0"], tap=tt.Tap(sinks=[memory]))
    for _ in range(2):
        model(x)
    assert list(memory.series) == ["layers.0.outputs", "after_layer"]
    assert memory.series["layers.0.outputs"].steps == [0, 1]


def test_one_registered_tensor_also_flows_into_a_tap_of_the_users(model, x):
    memory = tt.Memory()
    register_tensor("before", x, tap=tt.Tap(sinks=[memory]))
    enable_tensor_capture(model, [])
    register_tensor("x", x, tap=tt.Tap(sinks=[memory]))
    assert list(memory.series) == ["before", "x"]
    assert list(get_captured_tensors_dict()) == ["x"]
    assert memory.records[0].site.function.endswith(
        test_one_registered_tensor_also_flows_into_a_tap_of_the_users.__name__
    )


# --- traced, exported and compiled models ------------------------------------------------------------------


TRACED = ["layers.0.inputs.0", "layers.0.outputs", "activation.inputs.0", "activation.outputs"]


@pytest.fixture
def answering(x):
    """A model with one layer that hands out what was captured, and what it gives when it is just run."""
    torch.manual_seed(0)
    model = Answering(1)
    enable_tensor_capture(model, ["layers.0", "activation"], max_tensors=3, capture_inputs=True)
    output, captured = model(x)
    return model, output, captured


def check_traced(traced, answering, x):
    """For other inputs than it was traced with: the numbers are the graph's, no constants of the trace."""
    model, _, _ = answering
    output, captured = traced(x + 1)
    assert list(captured) == [*TRACED, "after_layer", "placeholder_1", "placeholder_2"]
    expected_output, expected = model(x + 1)
    assert torch.equal(output, expected_output)
    for name, value in expected.items():
        assert torch.equal(captured[name], value), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_returns_what_it_captures(answering, x):
    traced = torch.jit.trace(answering[0], (x,), strict=False)
    saved = io.BytesIO()
    torch.jit.save(traced, saved)
    saved.seek(0)
    check_traced(torch.jit.load(saved), answering, x)


def test_an_exported_model_returns_what_it_captures(answering, x):
    program = torch.export.export(answering[0], (x,), strict=False)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    check_traced(torch.export.load(saved).module(), answering, x)


def test_a_model_around_the_enabled_one_can_be_exported_too(model, x):
    class Around(Holder):
        def forward(self, x):
            register_tensor("before", x)
            output = self.inner(x)
            register_tensor("doubled", 2 * output)
            return output, get_captured_tensors_dict()

    enable_tensor_capture(model, ["output_layer"], max_tensors=6)
    for _ in range(2):
        program = torch.export.export(Around(model), (x,), strict=False)
    output, captured = program.module()(x)
    registered = ["before", "after_layer", "after_layer_1", "after_layer_2", "doubled", "placeholder_5"]
    assert list(captured) == ["output_layer.outputs", *registered]
    assert torch.equal(captured["doubled"], 2 * output)
    assert torch.equal(captured["before"], x)


def test_a_graph_has_nothing_from_before_and_leaves_nothing_behind(answering, x):
    model, _, _ = answering
    register_tensor("mine", x)
    program = torch.export.export(model, (x,), strict=False)
    assert "mine" not in program.module()(x)[1]
    assert list(get_captured_tensors_dict()) == ["mine"]


def test_a_tap_of_the_users_sees_no_tensor_of_a_graph_that_is_traced(x):
    memory = tt.Memory()
    model = enable_tensor_capture(Answering(1), ["layers.0"], tap=tt.Tap(sinks=[memory]))
    torch.export.export(model, (x,), strict=False)
    assert not memory.records
    assert not memory.refused


@pytest.mark.compile
def test_a_compiled_model_is_captured(model, x):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(x)
    enable_tensor_capture(compiled, ["layers.0"])
    compiled(x)
    assert torch.equal(get_captured_tensors_dict()["layers.0.outputs"], layer_values(model, x)[0])
    disable_tensor_capture(compiled)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.compile
def test_a_model_that_registers_compiles_in_one_graph_while_nothing_is_enabled(x):
    model = Answering(1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
