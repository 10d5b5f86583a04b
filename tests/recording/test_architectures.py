"""A capture sees in models that were written elsewhere what bare hooks see, and changes nothing."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import ModelOutput

import tensortap as tt
from tests.recording.architectures import ARCHITECTURES, built

PATTERNS = ("**", "**.in", "**.grad")
Key = tuple[str, int]  # the name of a record, and its call

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@dataclass
class Seen:
    """What bare hooks saw, by the names that records should have."""

    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)
    inputs: dict[Key, torch.Tensor] = field(default_factory=dict)
    gradients: dict[Key, torch.Tensor] = field(default_factory=dict)
    fired: set[str] = field(default_factory=set)  # the sites behind those names
    selected: set[str] = field(default_factory=set)


@dataclass
class Pass:
    """What a forward and a backward leave behind."""

    output: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    random: tuple[bytes, bytes]


@dataclass
class Case:
    name: str
    model: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    plain: Pass
    seen: Seen
    captured: Pass
    capture: Any

    def records(self, kind: str) -> dict[Key, torch.Tensor]:
        return by_key(self.capture, kind)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request: pytest.FixtureRequest) -> Case:
    """One model, run plainly, under bare hooks and captured, each time from the same random state."""
    name = request.param
    model, inputs = built(name), ARCHITECTURES[name].inputs()
    plain = passed(model, inputs)
    with watched(model) as seen:
        passed(model, inputs)
    with tt.capture(model, *PATTERNS) as capture:
        captured = passed(model, inputs)
    return Case(name, model, inputs, plain, seen, captured, capture)


def test_every_output_of_every_module_is_captured_bit_for_bit(case: Case) -> None:
    assert_same(case.records("output"), case.seen.outputs)


def test_inputs_have_the_names_of_the_parameters_they_are_bound_to(case: Case) -> None:
    assert_same(case.records("input"), case.seen.inputs)


def test_gradients_of_outputs_are_those_that_autograd_retains(case: Case) -> None:
    assert case.seen.gradients
    assert_same(case.records("grad_output"), case.seen.gradients)


def test_a_captured_model_computes_the_same_and_draws_the_same_random_numbers(case: Case) -> None:
    assert_same(case.captured.output, case.plain.output)
    assert_same(case.captured.gradients, case.plain.gradients)
    assert case.captured.random == case.plain.random


def test_a_captured_model_computes_the_same_in_inference(case: Case) -> None:
    with evaluating(case.model), torch.inference_mode():
        plain = dict(tensors_of(case.model(**case.inputs)))
        with tt.capture(case.model, *PATTERNS[:2]) as capture:
            captured = dict(tensors_of(case.model(**case.inputs)))
        with watched(case.model) as seen:
            case.model(**case.inputs)
    assert_same(captured, plain)
    assert_same(by_key(capture, "output"), seen.outputs)
    assert_same(by_key(capture, "input"), seen.inputs)


def test_every_selected_site_has_fired_or_is_missing_for_a_reason(case: Case) -> None:
    missing = {one.name: one.reason for one in case.capture.missing}
    assert {site.name for site in tt.sites(case.model, *PATTERNS)} == case.seen.selected
    assert set(missing) == case.seen.selected - case.seen.fired
    assert len(missing) == len(case.capture.missing)
    assert all(missing.values())


def test_a_captured_model_is_copied_and_saved_as_ever_and_left_as_it_was(case: Case) -> None:
    before, weights = attributes(case.model), state_bytes(case.model)
    can_pickle = pickles(case.model)
    with tt.capture(case.model, *PATTERNS, "**.weight.grad"):
        inside = copy.deepcopy(case.model)
        assert pickles(case.model) == can_pickle
        assert state_bytes(case.model) == weights
        assert_same(passed(case.model, case.inputs).output, case.plain.output)
    assert attributes(case.model) == before
    assert not any(parameter._backward_hooks for parameter in case.model.parameters())
    assert pickles(case.model) == can_pickle
    for copied in (inside, copy.deepcopy(case.model)):
        assert state_bytes(copied) == weights
        assert_same(passed(copied, case.inputs).output, case.plain.output)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_model_gives_each_record_once_with_the_same_value(
    case: Case, use_reentrant: bool
) -> None:
    if not getattr(case.model, "supports_gradient_checkpointing", False):
        pytest.skip(f"{case.name} does not checkpoint")
    with checkpointing(case.model, use_reentrant):
        plain = passed(case.model, case.inputs)
        with tt.capture(case.model, *PATTERNS) as capture:
            captured = passed(case.model, case.inputs)
    assert_same(captured.gradients, plain.gradients)
    assert_same(by_key(capture, "output"), case.seen.outputs)
    assert_same(by_key(capture, "grad_output"), case.seen.gradients)


# -- the reference: bare hooks on every module under each of its names


@contextlib.contextmanager
def watched(model: torch.nn.Module) -> Iterator[Seen]:
    seen, calls, retained = Seen(), Counter[tuple[str, str]](), dict[Key, torch.Tensor]()
    handles = []
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).forward is torch.nn.Module.forward:
            continue
        seen.selected |= {path or "out", f"{path}.in".lstrip("."), f"{path or 'out'}.grad"}
        see_inputs = _input_hook(path, seen, calls)
        handles.append(module.register_forward_pre_hook(see_inputs, with_kwargs=True))
        handles.append(module.register_forward_hook(_output_hook(path, seen, calls, retained)))
    yield seen
    for handle in handles:
        handle.remove()
    for (name, call), tensor in retained.items():
        if tensor.grad is not None:
            seen.gradients[f"{name}.grad", call] = tensor.grad


def _output_hook(path: str, seen: Seen, calls: Counter[Any], retained: dict[Key, Any]) -> Callable[..., None]:
    def see(module: Any, arguments: Any, output: Any) -> None:
        call = calls[path, "output"]
        calls[path, "output"] += 1
        for leaf, tensor in tensors_of(output):
            name = f"{path}.out{leaf}" if path and leaf.startswith(".") else f"{path or 'out'}{leaf}"
            seen.outputs[name, call] = tensor.detach().clone()
            seen.fired.add(path or "out")
            if tensor.requires_grad:
                tensor.retain_grad()
                retained[name, call] = tensor

    return see


def _input_hook(path: str, seen: Seen, calls: Counter[Any]) -> Callable[..., None]:
    def see(module: Any, arguments: Any, keywords: Any) -> None:
        call = calls[path, "input"]
        calls[path, "input"] += 1
        for name, value in bound(module, arguments, keywords).items():
            for leaf, tensor in tensors_of(value):
                seen.inputs[f"{path}.in.{name}{leaf}".lstrip("."), call] = tensor.detach().clone()
                seen.fired.add(f"{path}.in".lstrip("."))

    return see


def bound(module: torch.nn.Module, arguments: Any, keywords: Any) -> dict[str, Any]:
    signature = inspect.signature(module.forward)
    found = dict(signature.bind(*arguments, **keywords).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, ModelOutput):
        for name, item in value.items():
            yield from tensors_of(item, f"{path}.{name}")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors_of(item, f"{path}[{name!r}]")
    elif isinstance(value, tuple | list):
        for position, item in enumerate(value):
            yield from tensors_of(item, f"{path}[{position}]")


# -- running and comparing


def passed(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Pass:
    torch.manual_seed(3)
    np.random.seed(3)
    model.zero_grad(set_to_none=True)
    output = dict(tensors_of(model(**inputs)))
    loss = sum((one.double() ** 2).sum() for one in output.values() if one.requires_grad)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    random = bits(torch.get_rng_state()), np.random.get_state()[1].tobytes()
    return Pass({name: one.detach().clone() for name, one in output.items()}, gradients, random)


def by_key(capture: Any, kind: str) -> dict[Key, torch.Tensor]:
    found = [record for record in capture.records if record.kind == kind]
    keyed = {(record.name, record.call): record.value for record in found}
    assert len(keyed) == len(found), "a record came twice"
    return keyed


def assert_same(found: dict[Any, torch.Tensor], expected: dict[Any, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    different = [key for key in expected if bits(found[key]) != bits(expected[key])]
    assert different == []


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


def state_bytes(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: bits(value) for name, value in model.state_dict().items()}


def pickles(model: torch.nn.Module) -> bool:
    """Whether it does: a few models hold functions or parametrizations that cannot be pickled."""
    try:
        again = pickle.loads(pickle.dumps(model))
    except (AttributeError, RuntimeError, pickle.PicklingError):
        return False
    return state_bytes(again) == state_bytes(model)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


@contextlib.contextmanager
def checkpointing(model: Any, use_reentrant: bool) -> Iterator[None]:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    yield
    model.gradient_checkpointing_disable()
