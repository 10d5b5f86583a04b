"""Changes that should not matter: the same model, computed in another way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tensortap as tt
from planted.models import Batch, Kind, build
from planted.planting import replaced

Records = list[tt.Record]


def captured(model: nn.Module, batch: Batch) -> Records:
    """Every input and every output of every module."""
    torch.manual_seed(0)
    with tt.capture(model, "**", "**.in") as cap, torch.no_grad():
        model(**batch)
    return cap.records


def again(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    return captured(build(kind, seed, dtype), batch)


def fused_attention(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    return captured(build(kind, seed, dtype, "sdpa"), batch)


def two_threads(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    with threads(2):
        return captured(build(kind, seed, dtype), batch)


def other_norms(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    return captured(with_other_norms(build(kind, seed, dtype)), batch)


def sums_in_two_parts(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    return captured(with_sums_in_two_parts(build(kind, seed, dtype)), batch)


def batch_split(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    """Each sequence by itself, put together again."""
    model = build(kind, seed, dtype)
    whole = captured(model, batch)
    parts = [captured(model, {name: value[row : row + 1] for name, value in batch.items()}) for row in (0, 1)]
    return [_joined(*three) for three in zip(whole, *parts, strict=True)]


def other_experts(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    """One product for all experts; what it does inside has no counterpart in one after the other."""
    model = build(kind, seed, dtype)
    model.config._experts_implementation = "batched_mm"
    return [one for one in captured(model, batch) if ".experts.act_fn" not in one.name]


def everything(kind: Kind, seed: int, dtype: torch.dtype, batch: Batch) -> Records:
    return captured(otherwise(build(kind, seed, dtype, "sdpa")), batch)


Harmless = Callable[[Kind, int, torch.dtype, Batch], Records]


def harmless(kind: Kind) -> dict[str, Harmless]:
    common = (again, fused_attention, two_threads, other_norms, sums_in_two_parts, everything)
    own = batch_split if "dense" in kind.traits else other_experts
    return {one.__name__: one for one in (*common, own)}


def otherwise(model: nn.Module) -> nn.Module:
    """All of it at once: what another implementation of the same model looks like."""
    return with_sums_in_two_parts(with_other_norms(model))


def with_other_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            replaced(module, lambda _, x, norm=module: _layer_norm(norm, x))
        elif hasattr(module, "variance_epsilon"):
            replaced(module, lambda _, x, norm=module: _root_mean_square(norm, x))
    return model


def with_sums_in_two_parts(model: nn.Module) -> nn.Module:
    """As a layer that is split over two devices and summed up afterwards."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in ("o_proj", "down_proj", "dense"):
            replaced(module, lambda _, x, linear=module: _in_two_parts(linear, x))
    return model


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _layer_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    wide = _wide(x)
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return (normed * norm.weight.to(wide.dtype) + norm.bias.to(wide.dtype)).to(x.dtype)


def _root_mean_square(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """The weight is multiplied before rounding, where the model does it after."""
    wide = _wide(x)
    normed = wide / (wide.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return (normed * norm.weight.to(wide.dtype)).to(x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _in_two_parts(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    made = F.linear(x[..., :half], linear.weight[:, :half]) + F.linear(x[..., half:], linear.weight[:, half:])
    return made if linear.bias is None else made + linear.bias


def _joined(whole: tt.Record, first: tt.Record, second: tt.Record) -> tt.Record:
    if not isinstance(whole.value, torch.Tensor) or whole.value.shape == first.value.shape:
        return first
    return first.with_value(torch.cat((first.value, second.value)))
