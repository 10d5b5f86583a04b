"""torch for modules that must not import it: used only if the program has."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any


def torch_if_loaded() -> Any:
    """torch, or None; None also while torch is being imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "is_grad_enabled") else None


def tensor_class() -> type:
    """torch.Tensor, or a class without instances if torch is not loaded."""
    torch = torch_if_loaded()
    return _NoTensor if torch is None else torch.Tensor


def plain_tensor_types() -> frozenset[type]:
    """torch.Tensor and Parameter, or nothing if torch is not loaded."""
    if torch_if_loaded() is None:
        return frozenset()
    from tensortap.frameworks.torch import PLAIN_TENSOR_TYPES

    return PLAIN_TENSOR_TYPES


@lru_cache(maxsize=1)
def loaded_torch_summary() -> Any:
    """The module `torch_summary`, for callers that hold a tensor."""
    from tensortap.frameworks import torch_summary

    return torch_summary


class _NoTensor:
    pass
