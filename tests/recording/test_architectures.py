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
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

import tensortap as tt
from tests.recording.architectures import ARCHITECTURES, Inputs, built

PATTERNS = ("**", "**.in", "**.grad", "**.in.grad")
Key = tuple[str, int]  # the name of a record, and its call
Tensors = dict[Key, torch.Tensor]

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


@pytest.fixture(scope="module", params=ARCHITECTURES)
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


class Bare:
    """Bare hooks on every module under each of its names; what they saw, by the names that records should have."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.outputs: Tensors = {}
        self.inputs: Tensors = {}
        self.gradients: Tensors = {}
        self.selected: set[str] = set()  # sites
        self.fired: set[str] = set()
        self._calls: Counter[str] = Counter()
        self._passed_on: set[Key] = set()
        self._retained: list[tuple[str, Key, torch.Tensor]] = []
        self._handles: list[Any] = []
        for path, module in model.named_modules(remove_duplicate=False):
            if type(module).forward is not torch.nn.Module.forward:
                self._hook(path, module)

    def _hook(self, path: str, module: torch.nn.Module) -> None:
        into, out = f"{path}.in" if path else "in", path or "out"
        self.selected |= {into, out, f"{into}.grad", f"{out}.grad"}

        def see_inputs(module: Any, arguments: Any, keywords: Any) -> None:
            if is_backward():
                return
            for name, value in bound(module, arguments, keywords).items():
                for item, tensor in tensors_of(value):
                    self._see(self.inputs, into, f"{into}.{name}{item}", tensor)
            self._calls[into] += 1

        def see_output(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
            if is_backward():
                return
            for item, tensor in tensors_of(output):
                is_field = path and item.startswith(".")
                name = f"{path}.out{item}" if is_field else out + item
                self._see(self.outputs, out, name, tensor)
                if any(tensor is given for _, given in tensors_of([arguments, keywords])):
                    self._passed_on.add((f"{name}.grad", self._calls[out]))
            self._calls[out] += 1

        self._handles.append(module.register_forward_pre_hook(see_inputs, with_kwargs=True))
        self._handles.append(module.register_forward_hook(see_output, with_kwargs=True))

    def _see(self, into: Tensors, site: str, name: str, tensor: torch.Tensor) -> None:
        key = name, self._calls[site]
        assert key not in into
        into[key] = tensor.detach().clone()
        self.fired.add(site)
        if tensor.requires_grad:
            tensor.retain_grad()
            self._retained.append((f"{site}.grad", (f"{name}.grad", key[1]), tensor))

    def gradients_of_new_outputs(self) -> Tensors:
        """Without those of tensors that a module was given and returned: a reentrant checkpoint is given copies."""
        new = [key for key in self.gradients if key not in self._passed_on and ".in." not in key[0]]
        return {key: self.gradients[key] for key in new}

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        for site, key, tensor in self._retained:
            if tensor.grad is not None:
                self.gradients[key] = tensor.grad.clone()
                self.fired.add(site)


def is_backward() -> bool:
    """Whether a backward pass is under way, in which checkpoints compute again."""
    return torch._C._current_graph_task_id() != -1


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


def passed(model: Any, inputs: Inputs) -> Pass:
    torch.manual_seed(3)
    np.random.seed(3)
    model.zero_grad(set_to_none=True)
    output = dict(tensors_of(model(**inputs)))
    losses = {name: (one.double() ** 2).sum() for name, one in output.items() if one.requires_grad}
    torch.stack(list(losses.values())).sum().backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    random = bits(torch.get_rng_state()), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]
    return Pass({name: one.detach().clone() for name, one in output.items()}, set(losses), gradients, random)


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
