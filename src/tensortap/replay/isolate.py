"""Run a model in isolation: state, gradients, random states and step counter are restored afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tensortap.core.steps import save_steps


@contextlib.contextmanager
def preserved_state(model: Any) -> Iterator[None]:
    """Restore buffers, gradients, modes, random states and the step counter on exit."""
    with contextlib.ExitStack() as undo:
        for save_state in (_save_buffers, _save_gradients, _save_modes):
            undo.callback(save_state(model))
        undo.callback(_save_random_states())
        undo.callback(save_steps())
        yield


def call_model(model: Any, batch: Any) -> Any:
    """`model(**batch)`, `model(*batch)` or `model(batch)`, by the type of the batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _save_buffers(model: Any) -> Callable[[], None]:
    saved = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]

    def restore() -> None:
        for module, name, buffer, copy in saved:
            if buffer is not None and copy is not None and not _are_bitwise_equal(buffer, copy):
                with torch.no_grad():
                    buffer.copy_(copy)
            module._buffers[name] = buffer

    return restore


def _are_bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bits are equal, NaN included: a buffer that was not written keeps its version counter."""
    if a.shape != b.shape or a.layout != torch.strided or a.device.type == "meta":
        return a.device.type == "meta"
    a_bytes, b_bytes = (side.detach().reshape(-1).view(torch.uint8) for side in (a, b))
    return torch.equal(a_bytes, b_bytes)


def _save_gradients(model: Any) -> Callable[[], None]:
    """Set gradients aside: a backward pass accumulates into new ones."""
    saved = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, gradient in saved:
        if gradient is not None:
            parameter.grad = None

    def restore() -> None:
        for parameter, gradient in saved:
            parameter.grad = gradient

    return restore


def _save_modes(model: Any) -> Callable[[], None]:
    saved = [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, is_training in saved:
            module.training = is_training

    return restore


def _save_random_states() -> Callable[[], None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    cpu, cuda = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in devices]
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        torch.set_rng_state(cpu)
        for device, state in zip(devices, cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore
