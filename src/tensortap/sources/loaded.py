"""Torch, where the program has imported it: sources that see plain functions must not do so themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any


def torch_if_loaded() -> Any:
    """None also while torch is being imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "is_grad_enabled") else None


def tensor_class() -> type:
    """The class of tensors; one that no value has, before there can be any."""
    torch = torch_if_loaded()
    return _NoTensor if torch is None else torch.Tensor


def plain_tensors() -> frozenset[type]:
    """The classes whose values are ordinary tensors."""
    torch = torch_if_loaded()
    return frozenset() if torch is None else _plain_tensors(torch)


def is_repeating() -> bool:
    """Whether this may be a checkpoint that computes again what it did not keep: within a backward pass, with
    gradients switched on. A function that belongs to the backward pass itself runs without them."""
    torch = torch_if_loaded()
    return torch is not None and torch._C._current_graph_task_id() != -1 and bool(torch.is_grad_enabled())


def recomputing() -> Callable[[], bool]:
    """What tells quickly whether a backward pass is under way in this thread."""
    if torch_if_loaded() is None:
        return never
    from tensortap.sources.recomputed import is_recomputing

    return is_recomputing


def never() -> bool:
    return False


class _NoTensor:
    pass


@lru_cache(maxsize=1)
def _plain_tensors(torch: Any) -> frozenset[type]:
    return frozenset((torch.Tensor, torch.nn.Parameter))
