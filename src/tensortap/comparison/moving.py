"""Numbers moved to their neighbours: the least that another right way of computing may do to them."""

from __future__ import annotations

from typing import Any

import torch

SEED = 7
PRECISIONS = {
    name: dtype
    for name in ("float64", "float32", "float16", "bfloat16")
    if isinstance(dtype := getattr(torch, name), torch.dtype)
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def perturb_by_one_ulp(value: Any, *, seed: int = SEED) -> Any:
    """Every floating number one up or one down in its type; what is zero, infinite or a mask stays."""
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
    # The difference is one place of the last digit, so the sum is exact, and the gradient goes on.
    return value + (perturbed - detached) if value.requires_grad else perturbed


def is_perturbable(value: torch.Tensor) -> bool:
    return value.dtype in PRECISIONS.values() and value.layout == torch.strided
