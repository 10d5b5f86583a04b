"""Torch tensors kept without copying: the snapshot and its original share memory until one is written to."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tensortap.frameworks import sharded
from tensortap.frameworks.torch import FRAMEWORK, PLAIN, is_quiet

_lazy_clone = torch._lazy_clone
_is_inference = torch.is_inference_mode_enabled
_STRIDED = torch.strided
_SPARE = 1 << 16  # bytes of a larger storage that a small view may keep alive


def share(value: torch.Tensor) -> Any:
    """A snapshot that costs no copy as long as nobody writes to the original; where that cannot be had, a
    copy. Only a write through a NumPy alias that was taken before goes unseen."""
    if type(value) not in PLAIN or not is_quiet():
        return _share_piece(value) if sharded.is_distributed(type(value)) else FRAMEWORK.snapshot(value)
    if not _can_share(value):
        return FRAMEWORK.snapshot(value)
    try:
        if _is_inference():
            with torch.inference_mode(False):  # else nobody could write to the snapshot later
                return _lazy_clone(value.detach())
        return _lazy_clone(value.detach())
    except RuntimeError:
        # Memory that torch did not allocate itself (numpy's, shared, mapped) cannot be shared this way.
        return FRAMEWORK.snapshot(value)


def _can_share(tensor: torch.Tensor) -> bool:
    if tensor.layout is not _STRIDED or tensor.is_quantized or tensor.is_nested:
        return False
    if not (tensor.is_cpu or shares_on(tensor.device)):
        return False
    return tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes + _SPARE


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
