"""Bugs of norms, positions, weights, products, activations, residuals and routers."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from planted.planting import after, at, bug, replaced

# Norms


@bug("norm")
def norm_eps_a_little_larger(norm: nn.Module) -> None:
    _widen(norm, 1e-5)


@bug("norm")
def norm_eps_1e_3(norm: nn.Module) -> None:
    _widen(norm, 1e-3)


@bug("norm")
def norm_in_half_precision(norm: nn.Module) -> None:
    replaced(norm, lambda original, x: original(x.half().to(x.dtype)))


@bug("norm")
def norm_weight_plus_one(norm: nn.Module) -> None:
    with torch.no_grad():
        norm.weight += 1


def _widen(norm: nn.Module, more: float) -> None:
    name = "eps" if hasattr(norm, "eps") else "variance_epsilon"
    setattr(norm, name, getattr(norm, name) + more)


# Positions


@bug("position")
def position_off_by_one(position: nn.Module) -> None:
    replaced(position, lambda original, *given, **named: original(*_one_on(given), **_one_on(named)))


def _one_on(given: Any) -> Any:
    """Positions are the whole numbers among what is given."""
    if isinstance(given, dict):
        return {name: _one_on(value) for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(map(_one_on, given))
    return given + 1 if isinstance(given, torch.Tensor) and not given.is_floating_point() else given


# Weights and matrix products


@bug("out")
def output_weight_transposed(out: nn.Module) -> None:
    with torch.no_grad():
        out.weight.copy_(out.weight.T.clone())


@bug("out")
def bias_added_twice(out: nn.Module) -> None:
    if out.bias is None:  # a model without biases gets one from elsewhere
        out.bias = nn.Parameter(torch.full_like(out.weight[:, 0], 0.1))
        return
    with torch.no_grad():
        out.bias *= 2


@bug("out")
def half_of_the_sum_is_missing(out: nn.Module) -> None:
    """As where a tensor-parallel layer is not reduced."""
    with torch.no_grad():
        kept = out.weight.shape[0] // 2
        (out.weight.T if not isinstance(out, Conv1D) else out.weight)[kept:] = 0


@bug("out")
def dropout_left_on(out: nn.Module) -> None:
    after(out, lambda made: F.dropout(made, 0.01, training=True))


@bug("query")
def query_heads_in_another_order(query: nn.Module) -> None:
    with torch.no_grad():
        rows = query.weight.T if isinstance(query, Conv1D) else query.weight
        rows[:128] = rows[:128].roll(16, 0).clone()


@bug("down")
def product_in_bfloat16(down: nn.Module) -> None:
    replaced(down, functools.partial(_product, rounded=lambda x: x.bfloat16().to(x.dtype)))


@bug("down")
def product_in_tf32(down: nn.Module) -> None:
    replaced(down, functools.partial(_product, rounded=lambda x: x.half().to(x.dtype)))


def _product(
    original: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    *,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    return original(rounded(x))


@bug("down")
def one_row_of_weights_is_stale(down: nn.Module) -> None:
    with torch.no_grad():
        (down.weight.T if isinstance(down, Conv1D) else down.weight)[5] *= 1.01


@bug("head")
def head_is_not_tied(head: nn.Module) -> None:
    noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(3))
    head.weight = nn.Parameter((head.weight * (1 + 0.01 * noise)).to(head.weight.dtype))


@bug("embedding")
def one_embedding_from_the_other_sequence(embedding: nn.Module) -> None:
    after(embedding, lambda made: made.index_put((at(0), at(17)), made[1:2, 17]))


# Activations and residuals


@bug("activation")
def another_activation(activation: nn.Module) -> None:
    is_tanh = "NewGELU" in type(activation).__name__
    after_all = functools.partial(F.gelu, approximate="none" if is_tanh else "tanh")
    replaced(activation, lambda _, x: after_all(x))


@bug("layer")
def residual_dropped(layer: nn.Module) -> None:
    replaced(layer, lambda original, x, *given, **named: original(x, *given, **named) - x)


@bug("layer")
def residual_doubled(layer: nn.Module) -> None:
    replaced(layer, lambda original, x, *given, **named: original(x, *given, **named) + x)


@bug("layer", "pre-norm")
def residual_taken_after_the_norm(layer: nn.Module) -> None:
    def run(_: Any, hidden_states: torch.Tensor, **named: Any) -> torch.Tensor:
        normed = layer.input_layernorm(hidden_states)
        attended = normed + layer.self_attn(hidden_states=normed, **named)[0]
        return attended + layer.mlp(layer.post_attention_layernorm(attended))

    replaced(layer, run)


# Mixtures of experts


@bug("router")
def router_weights_not_normalised(router: nn.Module) -> None:
    def change(made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        logits, _, chosen = made
        return logits, logits.float().softmax(-1).gather(-1, chosen).to(made[1].dtype), chosen

    after(router, change)


@bug("router")
def router_in_bfloat16(router: nn.Module) -> None:
    replaced(router, lambda original, x: original(x.bfloat16().to(x.dtype)))


@bug("router")
def experts_numbered_from_one(router: nn.Module) -> None:
    after(router, lambda made: (*made[:2], (made[2] + 1) % router.num_experts))


@bug("experts")
def one_expert_is_stale(experts: nn.Module) -> None:
    with torch.no_grad():
        experts.down_proj[1] *= 1.01
