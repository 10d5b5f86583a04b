"""Cheap statistics of tensors, computed on their device, and cheap tests for NaN, Inf and differences."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import Description
from tensortap.frameworks.dtensor import layout_of
from tensortap.frameworks.torch import (
    FRAMEWORK,
    PLAIN_TENSOR_TYPES,
    has_no_modes,
    local_tensor,
    outside_modes,
    require_values,
)
from tensortap.frameworks.torch_snapshots import tracing_paused, tracing_state
from tensortap.kernels import native
from tensortap.kernels.statistics import Statistics, statistics

_FLOAT8_NAMES = [name for name in dir(torch) if name.startswith("float8")]
_WIDER_DTYPES = {
    torch.complex32: torch.complex64,
    **{getattr(torch, name): torch.float32 for name in _FLOAT8_NAMES},
}


class Summary:
    """min, max, mean, std and norm of a tensor, and how many NaN and Inf it has."""

    __slots__ = ("_pending", "_statistics", "count", "description")

    def __init__(self, description: Description, count: int, pending: Statistics | torch.Tensor) -> None:
        self.description = description
        self.count = count
        self._pending = None if isinstance(pending, Statistics) else pending
        self._statistics = pending if isinstance(pending, Statistics) else None

    @property
    def statistics(self) -> Statistics:
        if self._statistics is None:
            fetch_summaries([self])
        assert self._statistics is not None
        return self._statistics

    @property
    def shape(self) -> tuple[int, ...]:
        return self.description.shape

    @property
    def dtype(self) -> str:
        return self.description.dtype

    @property
    def device(self) -> str:
        return self.description.device

    def __getattr__(self, name: str) -> Any:
        if name in ("min", "max", "mean", "std", "norm", "nan", "inf"):
            return getattr(self.statistics, name)
        raise AttributeError(f"a summary has no {name!r}; it has min, max, mean, std, norm, nan and inf")

    @property
    def is_finite(self) -> bool:
        return self.statistics.finite == self.count

    def __repr__(self) -> str:
        summary, shape = self.statistics, list(self.shape)
        nonfinite = "" if self.is_finite else f", {summary.nan} NaN, {summary.inf} Inf"
        if summary.min is None:
            return f"Summary({self.dtype}{shape}{nonfinite})"
        numbers = f"{summary.min:.3g} .. {summary.max:.3g}, s={summary.std:.3g}"
        return f"Summary({self.dtype}{shape} {numbers}{nonfinite})"

    @property
    def pending(self) -> torch.Tensor | None:
        """Statistics that are still on the device."""
        return self._pending

    def set_statistics(self, row: Sequence[float]) -> None:
        low, high, mean, norm, nan, inf = row
        if nan or inf:  # the other statistics are meaningless then
            summary = Statistics(self.count, None, None, None, None, math.nan, int(nan), int(inf))
        else:
            summary = Statistics(self.count, low, high, mean, _std_from_norm(self.count, mean, norm), norm)
        self._statistics, self._pending = summary, None


def summarise_tensor(tensor: torch.Tensor) -> Summary:
    """On the host the statistics are computed at once, elsewhere `fetch_summaries` fetches them."""
    if tracing_state() is not None:
        with tracing_paused():
            return summarise_tensor(tensor)
    description = FRAMEWORK.describe(tensor)
    if _is_plain_float32(tensor):  # nearly every value of a model: avoids the context managers
        summary = _float32_statistics(tensor.detach())
        if summary is not None:
            return Summary(description, summary.count, summary)
    with outside_modes(), torch.no_grad():
        stored = local_tensor(tensor)
        _require_summarisable(stored)
        if stored.is_cpu:
            return Summary(description, stored.numel(), _host_statistics(tensor, stored, description.dtype))
        count, nothing = stored.numel(), Statistics(0, None, None, None, None, 0.0)
        return Summary(description, count, pending_statistics(_to_real(stored)) if count else nothing)


def pending_statistics(numbers: torch.Tensor) -> torch.Tensor:
    """The arguments of `set_statistics`, stacked on the device."""
    nonfinite = [torch.isnan(numbers).sum(), torch.isinf(numbers).sum()]
    return stack_scalars(
        [*torch.aminmax(numbers), numbers.mean(), torch.linalg.vector_norm(numbers), *nonfinite]
    )


def _host_statistics(tensor: torch.Tensor, stored: torch.Tensor, dtype: str) -> Statistics:
    """The compiled kernels; without them torch for real numbers, and numpy where torch rounds or
    overflows."""
    is_served = stored.is_contiguous() and native.supports(dtype)
    if not is_served and stored.numel() and (stored.is_floating_point() or stored.is_complex()):
        summary = _torch_statistics(_to_real(stored))
        if summary is not None:
            return summary
    return statistics(FRAMEWORK.bits(tensor), dtype)


def _float32_statistics(numbers: torch.Tensor) -> Statistics | None:
    """Of contiguous float32: one native pass, or three of torch's."""
    return (
        statistics(numbers.numpy(), "float32") if native.supports("float32") else _torch_statistics(numbers)
    )


def _torch_statistics(numbers: torch.Tensor) -> Statistics | None:
    lowest, highest = torch.aminmax(numbers)
    low, high = lowest.item(), highest.item()
    mean, norm = numbers.sum().item() / numbers.numel(), _norm(numbers)
    is_tiny = 0 < max(-low, high) < _TINY[numbers.dtype]
    if is_tiny or not all(map(math.isfinite, (low, high, mean, norm))):
        return None
    count, share = numbers.numel(), abs(mean) / norm if norm else 0.0
    if 1 - share * share * count > _MIN_SPREAD_SHARE:
        spread = _std_from_norm(count, mean, norm)
    else:
        spread = torch.linalg.vector_norm(numbers - mean).item() / math.sqrt(count)
    return Statistics(count, low, high, mean, spread, norm)


def _norm(numbers: torch.Tensor) -> float:
    if not numbers.is_contiguous():
        return float(torch.linalg.vector_norm(numbers).item())
    flat = numbers.view(-1)
    return math.sqrt(torch.dot(flat, flat).item())  # half the time of `vector_norm`


def _is_plain_float32(tensor: torch.Tensor) -> bool:
    """Contiguous, nonempty float32 on the CPU, with no modes active."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.float32 or not tensor.is_cpu:
        return False
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or not has_no_modes():
        return False
    return 0 < tensor.nbytes <= tensor.untyped_storage().nbytes()


# The squares of smaller numbers underflow, or nearly so.
_TINY = {torch.float32: 1e-15, torch.float64: 1e-150}
# Below this share of the squares the variance is mostly rounding.
_MIN_SPREAD_SHARE = 1e-2


def stack_scalars(scalars: Sequence[torch.Tensor]) -> torch.Tensor:
    wide = torch.float64 if scalars[0].dtype is torch.float64 else torch.float32
    return torch.stack([scalar.to(wide) for scalar in scalars])


def fetch_summaries(summaries: Iterable[Summary]) -> None:
    """Fetch pending statistics with one synchronisation per device."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Summary, torch.Tensor]]] = {}
    for summary in summaries:
        if summary.pending is not None:
            key = summary.pending.device, summary.pending.dtype
            groups.setdefault(key, []).append((summary, summary.pending))
    for group in groups.values():
        rows = torch.stack([waiting for _, waiting in group]).tolist()
        for (summary, _), row in zip(group, rows, strict=True):
            summary.set_statistics(row)


def is_finite(tensor: torch.Tensor) -> bool:
    with outside_modes(), torch.no_grad():
        value = local_tensor(tensor)
        require_values(value)
        if value.layout is not torch.strided or value.is_quantized:
            value = value.dequantize() if value.is_quantized else value.to_dense()
        if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0:
            return True
        _require_summarisable(value)
        if value.is_complex() or value.itemsize == 1:
            return bool(torch.isfinite(value.to(_WIDER_DTYPES.get(value.dtype, value.dtype))).all())
        return all(math.isfinite(bound.item()) for bound in torch.aminmax(value))


def _to_real(tensor: torch.Tensor) -> torch.Tensor:
    """Real numbers in a dtype that can be summed: magnitudes of complex ones, float32 for narrow floats."""
    if tensor.is_complex():
        tensor = tensor.to(_WIDER_DTYPES.get(tensor.dtype, tensor.dtype)).abs()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.detach()
    return tensor.detach().to(torch.float32 if tensor.is_floating_point() else torch.float64)


def _require_summarisable(tensor: torch.Tensor) -> None:
    require_values(tensor)
    layout, dtype = layout_of(tensor), str(tensor.dtype).removeprefix("torch.")
    if layout != "strided" or dtype not in DTYPE_TABLE:
        what = dtype if layout == "strided" else layout
        raise UnsupportedValueError(f"a {what} tensor has no summary; keep='clone' keeps it whole")


def _std_from_norm(count: int, mean: float, norm: float) -> float:
    """The std from norm and mean; mostly rounding where they nearly cancel."""
    return math.sqrt(max(0.0, norm * norm / count - mean * mean)) if math.isfinite(norm) else math.nan


_HALF_DTYPES = ("float16", "bfloat16")


def describe_untraced(tensor: torch.Tensor) -> Description:
    """Its description, hidden from an active `torch.jit.trace`."""
    if tracing_state() is None:
        return FRAMEWORK.describe(tensor)
    with tracing_paused():
        return FRAMEWORK.describe(tensor)


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether its elements can be read now, with no mode or tracing active."""
    if type(tensor) not in PLAIN_TENSOR_TYPES or not has_no_modes() or tracing_state() is not None:
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes() or _is_expanded(tensor)


def is_surely_finite(tensor: torch.Tensor, description: Description) -> bool:
    """True if a sum proves it; a nonfinite sum may also be an overflow."""
    if not is_readable(tensor) or description.dtype.startswith("float8"):
        return False
    quiet = tensor.detach() if tensor.requires_grad else tensor
    if description.dtype == "float32" and description.device == "cpu" and quiet.is_contiguous():
        flat = quiet.view(-1)
        total = torch.dot(
            flat, flat
        )  # single-threaded: waking other threads takes longer, especially on a busy machine
    else:
        total = quiet.sum(dtype=torch.float32) if description.dtype in _HALF_DTYPES else quiet.sum()
    return math.isfinite(abs(total.item()))


def tensor_statistics(tensor: torch.Tensor) -> Statistics | None:
    """Its statistics; None if it has no values, or none that can be read."""
    try:
        return summarise_tensor(tensor).statistics
    except UnsupportedValueError:
        return None


def _is_expanded(tensor: torch.Tensor) -> bool:
    return 0 in tensor.stride() and tensor.untyped_storage().nbytes() > 0


_PREFIX_NBYTES = 256


def differ_in_prefix(a: Any, b: Any) -> bool:
    """True if shape, dtype or first elements differ; False if only a full comparison can tell."""
    if type(a) not in PLAIN_TENSOR_TYPES or type(b) not in PLAIN_TENSOR_TYPES or not has_no_modes():
        return False
    if a.dtype is not b.dtype or a.shape != b.shape:
        return True
    if not (_is_plain_cpu_memory(a) and _is_plain_cpu_memory(b)):
        return False
    nbytes = _contiguous_prefix(a, b) * a.itemsize
    first, second = _read_prefix(a, nbytes), _read_prefix(b, nbytes)
    return first is not None and second is not None and first != second


def _is_plain_cpu_memory(tensor: Any) -> bool:
    """Whether the elements can be read directly from memory."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return not tensor.is_neg() and not tensor.is_conj()


def _contiguous_prefix(a: Any, b: Any) -> int:
    """The number of leading elements that are contiguous, in the same order, in both."""
    steps: tuple[int, ...] = a.stride()
    count: int = a.numel()
    if steps != b.stride() or 1 not in steps:
        return min(1, count)
    return min(int(a.shape[steps.index(1)]), count)


def _read_prefix(tensor: Any, nbytes: int) -> bytes | None:
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    end = address - storage.data_ptr() + nbytes
    # Past the end of a freed storage there is foreign memory.
    return (
        ctypes.string_at(address, min(nbytes, _PREFIX_NBYTES))
        if address and end <= storage.nbytes()
        else None
    )
