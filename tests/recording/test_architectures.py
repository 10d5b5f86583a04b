"""A capture sees in models that were written elsewhere what bare hooks see, and changes nothing."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.proof import sampled
from tests.recording.architectures import ARCHITECTURES, Inputs, built
from tests.recording.bare_hooks import Bare, Tensors, tensors_of

import tensortap as tt

PATTERNS = ("**", "**.in", "**.grad", "**.in.grad")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@dataclass
class Pass:
    """What a forward and a backward leave behind."""

    output: dict[str, torch.Tensor]
    differentiable: set[str]
    gradients: dict[str, torch.Tensor]
    random: tuple[bytes, bytes]


@dataclass
class Case:
    name: str
    model: Any
    inputs: Inputs
    plain: Pass
    seen: Bare
    captured: Pass
    capture: Any


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are quicker alone, and threads that wait for each other are slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=sampled(ARCHITECTURES, list(ARCHITECTURES)[::3]))
def case(request: pytest.FixtureRequest) -> Case:
    """One model, run plainly, under bare hooks and captured, each time from the same random state."""
    name = request.param
    model, inputs = built(name), ARCHITECTURES[name].inputs()
    plain = passed(model, inputs)
    with Bare(model) as seen:
        passed(model, inputs)
    with tt.capture(model, *PATTERNS) as capture:
        captured = passed(model, inputs)
    return Case(name, model, inputs, plain, seen, captured, capture)


def test_every_output_of_every_module_is_captured_bit_for_bit(case: Case) -> None:
    assert_same(records(case.capture, "output"), case.seen.outputs)


def test_inputs_have_the_names_of_the_parameters_they_are_bound_to(case: Case) -> None:
    assert_same(records(case.capture, "input"), case.seen.inputs)


def test_gradients_are_those_that_autograd_retains(case: Case) -> None:
    assert case.seen.gradients
    assert_same(records(case.capture, "grad_output", "grad_input"), case.seen.gradients)


def test_a_captured_model_computes_the_same_and_draws_the_same_random_numbers(case: Case) -> None:
    assert_same(case.captured.output, case.plain.output)
    assert_same(case.captured.gradients, case.plain.gradients)
    assert case.captured.random == case.plain.random


def test_a_captured_model_infers_the_same(case: Case) -> None:
    with evaluating(case.model), torch.inference_mode():
        plain = dict(tensors_of(case.model(**case.inputs)))
        with tt.capture(case.model, "**", "**.in") as capture:
            captured = dict(tensors_of(case.model(**case.inputs)))
        with Bare(case.model) as seen:
            case.model(**case.inputs)
    assert_same(captured, plain)
    assert_same(records(capture, "output"), seen.outputs)
    assert_same(records(capture, "input"), seen.inputs)


def test_a_model_with_a_tap_on_every_variable_of_every_forward_computes_the_same(case: Case) -> None:
    kinds = {type(module) for module in case.model.modules()}
    before = {kind: getattr(inspect.unwrap(kind.forward), "__code__", None) for kind in kinds}
    with tt.capture(case.model, "**.forward.*", "**.forward") as capture:
        found = passed(case.model, case.inputs)
    assert_same(found.output, case.plain.output)
    assert_same(found.gradients, case.plain.gradients)
    assert found.random == case.plain.random
    assert sum(record.kind == "local" for record in capture.records) > len(kinds)
    assert {kind: getattr(inspect.unwrap(kind.forward), "__code__", None) for kind in kinds} == before


def test_every_selected_site_has_fired_or_is_missing_for_a_reason(case: Case) -> None:
    missing = {one.name: one.reason for one in case.capture.missing}
    assert {site.name for site in tt.sites(case.model, *PATTERNS)} == case.seen.selected
    assert set(missing) == case.seen.selected - case.seen.fired
    assert len(missing) == len(case.capture.missing)
    assert all(missing.values())


def test_a_captured_model_is_copied_and_saved_as_ever_and_left_as_it_was(case: Case) -> None:
    passed(case.model, case.inputs)  # some models set attributes of their own when they are called
    before, can_pickle = attributes(case.model), pickles(case.model)
    with tt.capture(case.model, *PATTERNS, "**.weight.grad"):
        passed(case.model, case.inputs)
        assert pickles(case.model) == can_pickle
        inside = copy.deepcopy(case.model)
        assert state(inside) == state(case.model)
    assert attributes(case.model) == before
    assert not any(parameter._backward_hooks for parameter in case.model.parameters())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in case.model.parameters())
    assert pickles(case.model) == can_pickle
    for copied in (inside, copy.deepcopy(case.model)):
        assert state(copied) == state(case.model)
        assert_same(passed(copied, case.inputs).output, case.plain.output)


def test_a_checkpointed_model_gives_each_record_once(case: Case) -> None:
    with checkpointing(case, use_reentrant=False):
        with Bare(case.model) as seen:
            plain = passed(case.model, case.inputs)
        with tt.capture(case.model, *PATTERNS) as capture:
            captured = passed(case.model, case.inputs)
    assert_same(captured.gradients, plain.gradients)
    assert_same(records(capture, "output"), seen.outputs)
    assert_same(records(capture, "input"), seen.inputs)
    assert_same(records(capture, "grad_output", "grad_input"), seen.gradients)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_a_reentrant_checkpoint_gives_each_record_once_though_it_keeps_no_graph(case: Case) -> None:
    with checkpointing(case, use_reentrant=True):
        with Bare(case.model) as seen:
            plain = passed(case.model, case.inputs)
        with tt.capture(case.model, "**", "**.in", "**.grad") as capture:
            captured = passed(case.model, case.inputs)
    assert_same(captured.gradients, plain.gradients)
    assert_same(records(capture, "output"), seen.outputs)
    assert_same(records(capture, "input"), seen.inputs)
    if plain.differentiable != case.plain.differentiable or len(plain.gradients) != len(case.plain.gradients):
        pytest.skip(f"{case.name} loses gradients to this kind of checkpoint, captured or not")
    assert_close(records(capture, "grad_output"), case.seen.gradients_of_new_outputs())


@pytest.mark.compile
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_compiled_model_gives_the_records_of_the_plain_one(name: str) -> None:
    model, inputs = built(name), ARCHITECTURES[name].inputs()
    compiled = torch.compile(model, backend="eager")
    plain = passed(compiled, inputs)
    with Bare(model) as seen:
        passed(model, inputs)
    with tt.capture(compiled, *PATTERNS) as capture:
        captured = passed(compiled, inputs)
    assert_same(captured.output, plain.output)
    assert_same(records(capture, "output"), seen.outputs)
    assert_same(records(capture, "input"), seen.inputs)
    assert_same(records(capture, "grad_output", "grad_input"), seen.gradients)
    assert_same(passed(compiled, inputs).output, plain.output)
    torch._dynamo.reset()


def passed(model: Any, inputs: Inputs) -> Pass:
    torch.manual_seed(3)
    np.random.seed(3)
    model.zero_grad(set_to_none=True)
    output = dict(tensors_of(model(**inputs)))
    losses = {name: loss(one) for name, one in output.items() if one.requires_grad}
    torch.autograd.backward(list(losses.values()))
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    random = bits(torch.get_rng_state()), pickle.dumps(np.random.get_state())
    return Pass({name: one.detach().clone() for name, one in output.items()}, set(losses), gradients, random)


def loss(output: torch.Tensor) -> torch.Tensor:
    """Weighs numbers differently: behind a normalisation the gradient of an even loss is mere rounding."""
    return (output.flatten() * torch.arange(output.numel()).cos()).sum()


def records(capture: Any, *kinds: str) -> Tensors:
    found = [record for record in capture.records if record.kind in kinds]
    twice = [key for key, count in Counter((one.name, one.call) for one in found).items() if count > 1]
    assert twice == []
    return {(record.name, record.call): record.value for record in found}


def assert_same(found: dict[Any, torch.Tensor], expected: dict[Any, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if bits(found[key]) != bits(expected[key])] == []


def assert_close(found: Tensors, expected: Tensors) -> None:
    """The same up to rounding: checkpoints add gradients up in another order."""
    assert found.keys() >= expected.keys()
    for key, one in expected.items():
        torch.testing.assert_close(found[key], one, rtol=1e-3, atol=1e-5 * float(one.abs().max()) + 1e-9)


def bits(tensor: torch.Tensor) -> bytes:
    array = tensor.detach().numpy()
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def attributes(model: torch.nn.Module) -> dict[str, Any]:
    """What each module holds, one level into its dictionaries, where hooks are kept."""
    return {
        name: {key: list(value.items()) if isinstance(value, dict) else id(value) for key, value in held}
        for name, module in model.named_modules(remove_duplicate=False)
        for held in [vars(module).items()]
    }


def state(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: bits(value) for name, value in model.state_dict().items()}


def pickles(model: torch.nn.Module) -> bool:
    """Whether it does: a few models hold functions or parametrizations that cannot be pickled."""
    try:
        again = pickle.loads(pickle.dumps(model))
    except (AttributeError, RuntimeError, pickle.PicklingError):
        return False
    return state(again) == state(model)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


@contextlib.contextmanager
def checkpointing(case: Case, use_reentrant: bool) -> Iterator[None]:
    if not case.model.supports_gradient_checkpointing:
        pytest.skip(f"{case.name} does not checkpoint")
    case.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    yield
    case.model.gradient_checkpointing_disable()
