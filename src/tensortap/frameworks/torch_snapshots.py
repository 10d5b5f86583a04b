"""Copy-on-write snapshots of torch tensors: memory is shared until either side is written to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from tensortap.frameworks import dtensor
from tensortap.frameworks.torch import (
    FRAMEWORK,
    PLAIN_TENSOR_TYPES,
    has_no_modes,
    local_tensor,
    outside_modes,
    require_values,
)

_Tensor = torch.Tensor
tracing_state: Any = torch._C._get_tracing_state
_set_tracing_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
_lazy_clone = torch._lazy_clone
_has_function_mode = torch._C._is_torch_function_mode_enabled
_count_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_interpreter = torch._C._functorch.peek_interpreter_stack
_is_inference = torch.is_inference_mode_enabled
_QUANTIZED = frozenset((torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4))
_MAX_EXCESS_NBYTES = 1 << 16  # bytes of a larger storage that a small view may keep alive


def share_copy_on_write(value: torch.Tensor) -> Any:
    """A snapshot without a copy until the original is written to; a plain copy where that is not
    supported. Only writes through a raw pointer taken before go unnoticed."""
    # This runs for every captured value: checks in C, the cheap ones first.
    if (
        type(value) is not _Tensor
        or _has_function_mode()
        or _count_dispatch_modes()
        or _functorch_interpreter()
    ):
        return _share_local_tensor(value) if dtensor.is_distributed(type(value)) else copy_tensor(value)
    try:
        storage = value.untyped_storage()
        nbytes, storage_nbytes = value.nbytes, storage.nbytes()
        # A view must not keep a much larger storage alive; a freed storage is refused.
        is_fit = nbytes <= storage_nbytes <= 2 * nbytes + _MAX_EXCESS_NBYTES or (
            storage_nbytes < nbytes and _is_backed_expand(value, storage_nbytes)
        )
        # A non-resizable storage is shared with a NumPy array: a write would separate the two.
        if is_fit and storage.resizable() and _is_shareable(value):
            if _is_inference():
                return _share_outside_inference(value)
            return _lazy_clone(value.detach() if value.requires_grad else value)
    except RuntimeError:
        # Memory that torch did not allocate itself (numpy's, shared, mapped) cannot be shared this way,
        # nor can layouts that have no storage.
        pass
    return copy_tensor(value)


def copy_tensor(value: torch.Tensor) -> torch.Tensor:
    """An independent copy; tensors without values are refused."""
    if tracing_state() is not None:
        with tracing_paused():
            return copy_tensor(value)
    with outside_modes():
        require_values(local_tensor(value))
    return FRAMEWORK.snapshot(value)


def copy_tensor_to_host(value: torch.Tensor) -> torch.Tensor:
    """A copy in host memory."""
    with tracing_paused(), outside_modes():
        require_values(local_tensor(value))
        return value.detach().cpu()


@contextlib.contextmanager
def tracing_paused() -> Iterator[None]:
    """Operations inside are not recorded by `torch.jit.trace`."""
    state = tracing_state()
    if state is None:
        yield
        return
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


def _is_backed_expand(tensor: torch.Tensor, storage_nbytes: int) -> bool:
    """Whether it is an expanded view whose storage is complete."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return 0 in tensor.stride() and (tensor.storage_offset() + last + 1) * tensor.itemsize <= storage_nbytes


def _is_shareable(tensor: torch.Tensor) -> bool:
    return tensor.dtype not in _QUANTIZED and (tensor.is_cpu or supports_copy_on_write(tensor.device))


def _share_outside_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A snapshot made in inference mode could not be written to later."""
    with torch.inference_mode(False):
        return _lazy_clone(tensor.detach())


@lru_cache(maxsize=64)
def supports_copy_on_write(device: torch.device) -> bool:
    """Whether copy on write preserves the value on this device; tested once.

    Host memory only: the first write to a shared tensor moves it, and on an accelerator captured graphs and
    collectives would keep using the old address.
    """
    if device.type != "cpu":
        return False
    try:
        original = torch.zeros(2, device=device)
        snapshot = _lazy_clone(original)
        original.add_(1)
        return bool((snapshot == 0).all().item())
    except (RuntimeError, NotImplementedError):
        return False


def _share_local_tensor(value: Any) -> Any:
    local = dtensor.wait_local(value)
    if type(local) not in PLAIN_TENSOR_TYPES or not has_no_modes():
        return FRAMEWORK.snapshot(value)
    return dtensor.wrap_local(value.detach(), share_copy_on_write(local))
