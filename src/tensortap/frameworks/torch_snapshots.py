"""Torch tensors kept without copying: the snapshot and its original share memory until one is written to."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tensortap.frameworks import sharded
from tensortap.frameworks.torch import FRAMEWORK, PLAIN, aside, is_quiet, local_piece, refuse_without_values

_Tensor = torch.Tensor
_lazy_clone = torch._lazy_clone
_has_function_mode = torch._C._is_torch_function_mode_enabled
_count_dispatch_modes = torch._C._len_torch_dispatch_stack
_interpreter = torch._C._functorch.peek_interpreter_stack
_is_inference = torch.is_inference_mode_enabled
_QUANTIZED = frozenset((torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4))
_SPARE = 1 << 16  # bytes of a larger storage that a small view may keep alive


def share(value: torch.Tensor) -> Any:
    """A snapshot that costs no copy as long as nobody writes to the original; where that cannot be had, a
    copy. Only a write through a NumPy alias that was taken before goes unseen."""
    # This runs for every captured value: the questions are asked in C, the cheap ones first.
    if type(value) is not _Tensor or _has_function_mode() or _count_dispatch_modes() or _interpreter():
        return _share_piece(value) if sharded.is_distributed(type(value)) else copied(value)
    try:
        nbytes, held = value.nbytes, value.untyped_storage().nbytes()
        # A view must not keep a much larger storage alive; a freed storage is refused with a sentence.
        is_fit = nbytes <= held <= 2 * nbytes + _SPARE or (held < nbytes and _is_expanded(value, held))
        if is_fit and _is_shareable(value):
            if _is_inference():
                return _share_outside_inference(value)
            return _lazy_clone(value.detach() if value.requires_grad else value)
    except RuntimeError:
        # Memory that torch did not allocate itself (numpy's, shared, mapped) cannot be shared this way,
        # nor can layouts that have no storage.
        pass
    return copied(value)


def copied(value: torch.Tensor) -> torch.Tensor:
    """A copy of its own; what has no values is refused."""
    with aside():
        refuse_without_values(local_piece(value))
    return FRAMEWORK.snapshot(value)


def fetched(value: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory."""
    with aside():
        refuse_without_values(local_piece(value))
        return value.detach().cpu()


def _is_expanded(tensor: torch.Tensor, held: int) -> bool:
    """Whether it shows the same memory several times, and all of that is there."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return 0 in tensor.stride() and (tensor.storage_offset() + last + 1) * tensor.itemsize <= held


def _is_shareable(tensor: torch.Tensor) -> bool:
    return tensor.dtype not in _QUANTIZED and (tensor.is_cpu or shares_on(tensor.device))


def _share_outside_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A snapshot made in inference mode could not be written to after it."""
    with torch.inference_mode(False):
        return _lazy_clone(tensor.detach())


@lru_cache(maxsize=64)
def shares_on(device: torch.device) -> bool:
    """Whether a shared snapshot on this device really keeps its value; tried once."""
    if device.type == "meta":
        return False
    try:
        original = torch.zeros(2, device=device)
        snapshot = _lazy_clone(original)
        original.add_(1)
        return bool((snapshot == 0).all().item())
    except (RuntimeError, NotImplementedError):
        return False


def _share_piece(value: Any) -> Any:
    piece = sharded.local(value)
    if type(piece) not in PLAIN or not is_quiet():
        return FRAMEWORK.snapshot(value)
    return sharded.around(value.detach(), share(piece))
