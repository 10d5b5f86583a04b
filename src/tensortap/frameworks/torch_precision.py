"""Tensors from other arrays and in other precisions: converted, clamped to a range, or one ulp off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tensortap.frameworks.dtensor import is_distributed, wait_local, wrap_local
from tensortap.frameworks.pytree import map_leaves
from tensortap.frameworks.torch import PLAIN_TENSOR_TYPES

SEED = 7
PRECISIONS = {
    name: dtype
    for name in ("float64", "float32", "float16", "bfloat16")
    if isinstance(dtype := getattr(torch, name), torch.dtype)
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def convert_batch(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating tensors in that dtype; a function of the model is left alone."""
    if callable(batch):
        return batch

    def convert(leaf: Any) -> Any:
        is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_number else leaf

    return map_leaves(batch, convert)


def perturb_by_one_ulp(value: Any, *, seed: int = SEED) -> Any:
    """Move every floating number one ulp up or down at random; zeros, infinities and mask values stay."""
    if not isinstance(value, torch.Tensor) or not is_perturbable(value):
        return value
    detached = value.detach()
    bits = detached.contiguous().view(_INTEGERS[detached.element_size()])
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, bits.shape, generator=generator, dtype=torch.int8).to(bits.device) * 2 - 1
    limit = torch.finfo(detached.dtype)
    is_plain = detached.isfinite() & (detached.abs() < limit.max / 4) & (detached.abs() > limit.tiny)
    perturbed = torch.where(
        is_plain, (bits + signs.to(bits.dtype)).view(detached.dtype).view(detached.shape), detached
    )
    # The difference is one ulp, so the sum is exact, and the gradient flows through it.
    return value + (perturbed - detached) if value.requires_grad else perturbed


def is_perturbable(value: torch.Tensor) -> bool:
    return value.dtype in PRECISIONS.values() and value.layout == torch.strided


def to_tensor(value: Any) -> torch.Tensor:
    """Any library's array as a torch tensor; memory-mapped arrays are copied, as they must not be written."""
    return value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def concatenate(values: Sequence[Any], axis: int) -> torch.Tensor:
    return torch.cat([to_tensor(value) for value in values], axis)


def as_tensor_like(value: Any, like: torch.Tensor) -> torch.Tensor:
    """A new tensor with these numbers and the dtype and device of `like`; the model may write to it.

    For a DTensor the numbers are this rank's local shard."""
    local_tensor: torch.Tensor = wait_local(like)
    if local_tensor is not like:
        local_value: torch.Tensor = as_tensor_like(value, local_tensor)
        return wrap_local(like, local_value) if is_distributed(type(like)) else local_value
    if type(like) not in PLAIN_TENSOR_TYPES or like.layout != torch.strided:
        raise TypeError(f"what is a {type(like).__name__} ({like.layout}) cannot be replaced")
    tensor = to_tensor(value)
    if tensor.shape != like.shape:
        raise ValueError(f"shape {list(tensor.shape)} against {list(like.shape)}")
    if _number_class(tensor) != _number_class(like):
        raise ValueError(f"{tensor.dtype} against {like.dtype}".replace("torch.", ""))
    return torch.empty_like(like).copy_(_clamp_to_dtype(tensor, like.dtype))


def _number_class(value: torch.Tensor) -> tuple[bool, ...]:
    return value.is_floating_point(), value.is_complex(), value.dtype == torch.bool


def _clamp_to_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp finite values to the range of a narrower dtype.

    The lowest value of a wide dtype is a mask: as -inf it could make a softmax return NaN."""
    if not value.is_floating_point() or torch.finfo(value.dtype).max <= torch.finfo(dtype).max:
        return value
    largest = torch.finfo(dtype).max
    return torch.where(value.isfinite(), value.clamp(-largest, largest), value)
