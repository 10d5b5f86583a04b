"""Changes that should not matter: the same model, computed in another way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tensortap as tt
from planted.models import BATCH, Batch, Kind, build
from planted.planting import replaced, wrapped_while_it_runs

Records = list[tt.Record]
# Layers whose sums a tensor-parallel run adds up over its ranks.
_SUMMED = ("o_proj", "out_proj", "down_proj", "dense", "dense_4h_to_h", "fc2", "wo", "o", "c_proj")


def captured(model: nn.Module, batch: Batch, *more: str) -> Records:
    """Every input and every output of every module."""
    return _captured(model, lambda model: model(**batch), *more)


def _captured(model: nn.Module, run: Callable[[nn.Module], Any], *more: str) -> Records:
    torch.manual_seed(0)
    with tt.capture(model, "**", "**.in", *more) as cap, torch.no_grad():
        run(model)
    return cap.records


def captured_with_weights(model: nn.Module, batch: Batch) -> Records:
    return captured(model, batch, *weights_of(model))


def weights_of(model: nn.Module) -> list[str]:
    """Patterns of all that a model has."""
    names = dict.fromkeys(name.rpartition(".")[2] for name, _ in model.named_parameters())
    return [f"**.{name}" for name in names]


def again(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return build(kind, seed, dtype)


def fused_attention(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return build(kind, seed, dtype, "sdpa")


def two_threads(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return in_two_threads(build(kind, seed, dtype))


def other_norms(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return with_other_norms(build(kind, seed, dtype))


def sums_in_two_parts(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return with_sums_in_two_parts(build(kind, seed, dtype))


def other_chunks(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    """A scan that is cut into longer pieces."""
    model = build(kind, seed, dtype)
    for module in model.modules():
        if hasattr(module, "chunk_size"):
            module.chunk_size = 12
    return model


def other_scan(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    """The sum over the state of a scan in another order."""
    model = build(kind, seed, dtype)
    for module in model.modules():
        if "Mixer" in type(module).__name__:
            wrapped_while_it_runs(module, "mamba_selective_scan", _scanned_backwards)
    return model


def everything(kind: Kind, seed: int, dtype: torch.dtype) -> nn.Module:
    return otherwise(build(kind, seed, dtype, "sdpa"))


def batch_split(model: nn.Module, batch: Batch, *more: str) -> Records:
    """Each sequence by itself, as a step of its own; the loss of a batch is not that of its parts."""
    return without_loss(_captured(model, one_by_one(batch), *more))


def one_by_one(batch: Batch) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        for row in range(BATCH):
            model(**{name: value[row : row + 1] for name, value in batch.items()})

    return run


def without_loss(records: Records) -> Records:
    return [one for one in records if one.name != "out.loss"]


def put_together(whole: Records, parts: Records) -> Records:
    """What was split as one, for those who do not put it together themselves."""
    held = [{_key(one): one for one in parts if one.step == step} for step in range(BATCH)]
    return [
        _joined(one, *(known[_key(one)] for known in held))
        for one in whole
        if all(_key(one) in known for known in held)
    ]


def _key(one: tt.Record) -> tuple[str, str, int]:
    return one.name, one.kind, one.call


def other_experts(model: nn.Module, batch: Batch) -> Records:
    """One product for all experts; what it does inside has no counterpart in one after the other."""
    model.config._experts_implementation = "batched_mm"
    return [one for one in captured(model, batch) if ".experts.act_fn" not in one.name]


Made = Callable[[Kind, int, torch.dtype], nn.Module]


def harmless(kind: Kind) -> dict[str, Made]:
    """Models that compute the same; each is compared with the plain one by a floor, and by replay."""
    found: list[Made] = [again, two_threads, other_norms, sums_in_two_parts, everything]
    if "fusable" in kind.traits:
        found.append(fused_attention)
    if "chunked" in kind.traits:
        found.append(other_chunks)
    elif kind.sort == "scan":
        found.append(other_scan)
    return {one.__name__: one for one in found}


def otherwise(model: nn.Module) -> nn.Module:
    """All of it at once: what another implementation of the same model looks like."""
    return in_two_threads(with_sums_in_two_parts(with_other_norms(model)))


def in_two_threads(model: nn.Module) -> nn.Module:
    def run(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with threads(2):
            return original(*given, **named)

    replaced(model, run)
    return model


def with_other_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            replaced(module, lambda _, x, norm=module: _layer_norm(norm, x))
        elif hasattr(module, "variance_epsilon") and "Gated" not in type(module).__name__:
            replaced(module, lambda _, x, norm=module: _root_mean_square(norm, x))
    return model


def with_sums_in_two_parts(model: nn.Module) -> nn.Module:
    """As a layer that is split over two devices and summed up afterwards."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in _SUMMED:
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


def _scanned_backwards(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
    x, steps, decay, inputs, outputs = given
    return original(x, steps, decay.flip(-1), inputs.flip(1), outputs.flip(1), **named)


def _joined(whole: tt.Record, first: tt.Record, second: tt.Record) -> tt.Record:
    if not isinstance(whole.value, torch.Tensor) or whole.value.shape == first.value.shape:
        return first
    return first.with_value(torch.cat((first.value, second.value)))
