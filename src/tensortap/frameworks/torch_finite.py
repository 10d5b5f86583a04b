"""Whether a tensor holds NaN or Inf, asked as cheaply as can be: one sum, where that already says no."""

from __future__ import annotations

import math

import torch

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import Description
from tensortap.frameworks.torch import FRAMEWORK, PLAIN_TENSOR_TYPES, has_no_modes
from tensortap.frameworks.torch_snapshots import tracing_paused, tracing_state
from tensortap.frameworks.torch_summary import summarise_tensor
from tensortap.kernels.statistics import Statistics

_HALF_DTYPES = ("float16", "bfloat16")


def describe_untraced(tensor: torch.Tensor) -> Description:
    """What it is; while `torch.jit.trace` writes down a program, without becoming part of it."""
    if tracing_state() is None:
        return FRAMEWORK.describe(tensor)
    with tracing_paused():
        return FRAMEWORK.describe(tensor)


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether its numbers can be read here and now, unseen by any mode or tracing of the program."""
    if type(tensor) not in PLAIN_TENSOR_TYPES or not has_no_modes() or tracing_state() is not None:
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes() or _is_expanded(tensor)


def is_surely_finite(tensor: torch.Tensor, told: Description) -> bool:
    """True when a sum says so; a sum that is not finite may also have overflown."""
    if not is_readable(tensor) or told.dtype.startswith("float8"):
        return False
    quiet = tensor.detach() if tensor.requires_grad else tensor
    if told.dtype == "float32" and told.device == "cpu" and quiet.is_contiguous():
        flat = quiet.view(-1)
        total = torch.dot(flat, flat)  # in this thread: waking others takes longer, on a busy machine by far
    else:
        total = quiet.sum(dtype=torch.float32) if told.dtype in _HALF_DTYPES else quiet.sum()
    return math.isfinite(abs(total.item()))


def tensor_statistics(tensor: torch.Tensor) -> Statistics | None:
    """All numbers about it; None where it has no values, or none that can be read."""
    try:
        return summarise_tensor(tensor).statistics
    except UnsupportedValueError:
        return None


def _is_expanded(tensor: torch.Tensor) -> bool:
    return 0 in tensor.stride() and tensor.untyped_storage().nbytes() > 0
