"""Whether two tensors differ in what can be seen without reading them through."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from tensortap.frameworks.torch import PLAIN_TENSOR_TYPES, has_no_modes

_PREFIX_NBYTES = 256  # bytes


def differ_in_prefix(one: Any, other: Any) -> bool:
    """True when shape, number type or first numbers differ; False when only a full comparison can tell."""
    if type(one) not in PLAIN_TENSOR_TYPES or type(other) not in PLAIN_TENSOR_TYPES or not has_no_modes():
        return False
    if one.dtype is not other.dtype or one.shape != other.shape:
        return True
    if not (_is_plain_cpu_memory(one) and _is_plain_cpu_memory(other)):
        return False
    nbytes = _contiguous_prefix(one, other) * one.itemsize
    first, second = _read_prefix(one, nbytes), _read_prefix(other, nbytes)
    return first is not None and second is not None and first != second


def _is_plain_cpu_memory(tensor: Any) -> bool:
    """Whether the numbers are what the memory says."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return not tensor.is_neg() and not tensor.is_conj()


def _contiguous_prefix(one: Any, other: Any) -> int:
    """How many numbers from the first on lie side by side in both, in the same order."""
    steps: tuple[int, ...] = one.stride()
    count: int = one.numel()
    if steps != other.stride() or 1 not in steps:
        return min(1, count)
    return min(int(one.shape[steps.index(1)]), count)


def _read_prefix(tensor: Any, nbytes: int) -> bytes | None:
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    end = address - storage.data_ptr() + nbytes
    # Past the end of a freed storage there is stray memory.
    return (
        ctypes.string_at(address, min(nbytes, _PREFIX_NBYTES))
        if address and end <= storage.nbytes()
        else None
    )
