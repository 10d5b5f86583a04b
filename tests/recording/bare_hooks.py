"""What a capture is measured against: bare hooks on every module, which copy whatever comes by."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from transformers.utils.generic import ModelOutput

Key = tuple[str, int]  # the name of a record, and its call
Tensors = dict[Key, torch.Tensor]


class Bare:
    """What comes by every module, under each of its names, by the names that records should have."""

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
        """Without tensors that a module was given and returns: a reentrant checkpoint is given copies."""
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
