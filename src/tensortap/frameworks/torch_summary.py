"""The few numbers that tell whether a tensor is healthy, without waiting for the device that holds it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import Description
from tensortap.frameworks.torch import FRAMEWORK, aside, local_piece, refuse_without_values
from tensortap.kernels.statistics import Statistics, statistics


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
            read([self])
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
        found, shape = self.statistics, list(self.shape)
        odd = "" if self.is_finite else f", {found.nan} NaN, {found.inf} Inf"
        if found.min is None:
            return f"Summary({self.dtype}{shape}{odd})"
        return f"Summary({self.dtype}{shape} {found.min:.3g} .. {found.max:.3g}, s={found.std:.3g}{odd})"

    @property
    def waits(self) -> torch.Tensor | None:
        """What is still on its device."""
        return self._pending

    def settle(self, row: Sequence[float]) -> None:
        low, high, mean, norm, nan, inf = row
        self._statistics = _statistics(self.count, low, high, mean, norm, int(nan), int(inf))
        self._pending = None


def summarise(tensor: torch.Tensor) -> Summary:
    """Three passes; on the host the numbers are there at once, elsewhere `read` fetches them."""
    description = FRAMEWORK.describe(tensor)
    with aside(), torch.no_grad():
        stored = local_piece(tensor)
        numbers = _as_numbers(stored)
        count = numbers.numel()
        if count == 0:
            return Summary(description, 0, Statistics(0, None, None, None, None, 0.0))
        low, high = torch.aminmax(numbers)
        total, norm = numbers.sum(), torch.linalg.vector_norm(numbers)
        if not numbers.is_cpu:
            odd = [torch.isnan(numbers).sum(), torch.isinf(numbers).sum()]
            return Summary(description, count, stacked([low, high, total / count, norm, *odd]))
        bounds = low.item(), high.item()
    if not all(map(math.isfinite, bounds)):  # counted only where the bounds give it away
        return Summary(description, count, statistics(FRAMEWORK.bits(tensor), description.dtype))
    return Summary(description, count, _statistics(count, *bounds, total.item() / count, norm.item()))


def stacked(scalars: Sequence[torch.Tensor]) -> torch.Tensor:
    wide = torch.float64 if scalars[0].dtype is torch.float64 else torch.float32
    return torch.stack([scalar.to(wide) for scalar in scalars])


def read(summaries: Iterable[Summary]) -> None:
    """Fetch the numbers of all of them, with one synchronisation per device."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Summary, torch.Tensor]]] = {}
    for summary in summaries:
        if summary.waits is not None:
            key = summary.waits.device, summary.waits.dtype
            groups.setdefault(key, []).append((summary, summary.waits))
    for group in groups.values():
        rows = torch.stack([waiting for _, waiting in group]).tolist()
        for (summary, _), row in zip(group, rows, strict=True):
            summary.settle(row)


def is_finite(tensor: torch.Tensor) -> bool:
    with aside(), torch.no_grad():
        value = local_piece(tensor)
        refuse_without_values(value)
        if value.layout is not torch.strided or value.is_quantized:
            value = value.dequantize() if value.is_quantized else value.to_dense()
        if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0:
            return True
        if value.is_complex() or value.itemsize == 1:
            return bool(
                torch.isfinite(value.to(torch.complex64 if value.is_complex() else torch.float32)).all()
            )
        low, high = torch.aminmax(value)
        return math.isfinite(low.item()) and math.isfinite(high.item())


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Real numbers in a type that can be added up: the magnitude of complex ones, float32 for short ones."""
    refuse_without_values(tensor)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedValueError(
            f"a tensor of layout {tensor.layout} has no summary; keep='clone' keeps it whole"
        )
    if tensor.is_complex():
        tensor = tensor.to(torch.complex64).abs() if tensor.dtype is torch.complex32 else tensor.abs()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.detach()
    return tensor.detach().to(torch.float32 if tensor.is_floating_point() else torch.float64)


def _statistics(
    count: int, low: float, high: float, mean: float, norm: float, nan: int = 0, inf: int = 0
) -> Statistics:
    """The spread follows from norm and mean; where they nearly cancel it is no more than their rounding."""
    spread = math.sqrt(max(0.0, norm * norm / count - mean * mean)) if math.isfinite(norm) else math.nan
    return Statistics(count, low, high, mean, spread, norm, nan, inf)
