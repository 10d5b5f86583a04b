"""Bugs of rounding, norms, positions, activations, residuals, losses and what is left to chance."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from planted.planting import after, at, bug, replaced

Rounded = Callable[[torch.Tensor], torch.Tensor]


@bug("rounding", "norm")
def norm_eps_a_little_larger(norm: nn.Module) -> None:
    _widen(norm, 1e-5)


@bug("rounding", "norm")
def norm_eps_1e_3(norm: nn.Module) -> None:
    _widen(norm, 1e-3)


@bug("rounding", "norm")
def norm_in_half_precision(norm: nn.Module) -> None:
    replaced(norm, lambda original, x: original(x.half().to(x.dtype)))


def _widen(norm: nn.Module, more: float) -> None:
    """In the code, not in its settings: nothing but the numbers tells."""
    name = "eps" if hasattr(norm, "eps") else "variance_epsilon"

    def run(original: Callable[..., Any], *given: Any) -> Any:
        kept = getattr(norm, name)
        setattr(norm, name, kept + more)
        try:
            return original(*given)
        finally:
            setattr(norm, name, kept)

    replaced(norm, run)


@bug("rounding", "down")
def product_in_bfloat16(down: nn.Module) -> None:
    _round_inputs(down, lambda x: x.bfloat16().to(x.dtype))


@bug("rounding", "down")
def product_in_tf32(down: nn.Module) -> None:
    _round_inputs(down, lambda x: x.half().to(x.dtype))


@bug("rounding", "down")
def product_adds_up_in_bfloat16(down: nn.Module) -> None:
    """Quarter by quarter, each sum rounded."""

    def run(original: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        nothing = original(torch.zeros_like(x))
        total = torch.zeros_like(nothing)
        for part in torch.arange(x.shape[-1]).chunk(4):
            only = torch.zeros_like(x)
            only[..., part] = x[..., part]
            total = (total + original(only) - nothing).bfloat16().to(x.dtype)
        return total + nothing

    replaced(down, run)


@bug("rounding", "embedding")
def embedding_in_eight_bits(embedding: nn.Module) -> None:
    def change(made: torch.Tensor) -> torch.Tensor:
        scale = made.abs().amax(-1, keepdim=True) / 127
        return (made / scale).round() * scale

    after(embedding, change)


def _round_inputs(module: nn.Module, rounded: Rounded) -> None:
    replaced(module, lambda original, x: original(rounded(x)))


@bug("positions", "position")
def position_off_by_one(position: nn.Module) -> None:
    if hasattr(position, "offset"):  # it counts itself
        replaced(position, functools.partial(_counted_on, position))
        return
    replaced(position, lambda original, *given, **named: original(*_one_on(given), **_one_on(named)))


def _counted_on(position: Any, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
    position.offset += 1
    try:
        return original(*given, **named)
    finally:
        position.offset -= 1


def _one_on(given: Any) -> Any:
    """Positions are the whole numbers among what is given."""
    if isinstance(given, dict):
        return {name: _one_on(value) for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(map(_one_on, given))
    return given + 1 if isinstance(given, torch.Tensor) and not given.is_floating_point() else given


@bug("positions", "patches")
def patch_positions_in_another_order(patches: Any) -> None:
    def run(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        kept = patches.position_embeddings
        patches.position_embeddings = nn.Parameter(kept.roll(1, 1))
        try:
            return original(*given, **named)
        finally:
            patches.position_embeddings = kept

    replaced(patches, run)


@bug("activations", "activation")
def another_activation(activation: nn.Module) -> None:
    is_tanh = "NewGELU" in type(activation).__name__ or "Tanh" in type(activation).__name__
    other = functools.partial(F.gelu, approximate="none" if is_tanh else "tanh")
    replaced(activation, lambda _, x: other(x))


@bug("activations", "activation")
def activation_leaks(activation: nn.Module) -> None:
    replaced(activation, lambda original, x: torch.where(x < 0, original(x) + 0.01 * x, original(x)))


@bug("residuals", "layer")
def residual_dropped(layer: nn.Module) -> None:
    replaced(layer, lambda original, x, *given, **named: original(x, *given, **named) - x)


@bug("residuals", "layer")
def residual_doubled(layer: nn.Module) -> None:
    replaced(layer, lambda original, x, *given, **named: original(x, *given, **named) + x)


@bug("residuals", "layer")
def residual_of_the_other_sequence(layer: nn.Module) -> None:
    replaced(layer, lambda original, x, *given, **named: original(x, *given, **named) + x.flip(0) - x)


@bug("residuals", "layer", "pre-norm", "single", "split")
def residual_taken_after_the_norm(layer: Any) -> None:
    def run(_: Any, hidden_states: torch.Tensor, **named: Any) -> torch.Tensor:
        normed = layer.input_layernorm(hidden_states)
        attended = normed + layer.self_attn(hidden_states=normed, **named)[0]
        return attended + layer.mlp(layer.post_attention_layernorm(attended))

    replaced(layer, run)


@bug("data on its way", "embedding")
def one_embedding_from_the_other_sequence(embedding: nn.Module) -> None:
    after(embedding, lambda made: made.index_put((at(0), at(9)), made[1:2, 9]))


@bug("data on its way", "embedding")
def tail_is_not_initialised(embedding: nn.Module) -> None:
    def change(made: torch.Tensor) -> torch.Tensor:
        made = made.clone()
        made[-1, -2:] = 3.0e4
        return made

    after(embedding, change)


@bug("data on its way", "down")
def warm_up_zeros(down: nn.Module) -> None:
    """What is there before anything was computed."""
    after(down, lambda made: made.index_put((at(0),), torch.zeros_like(made[:1])))


@bug("chance", "out")
def dropout_left_on(out: nn.Module) -> None:
    after(out, lambda made: F.dropout(made, 0.01, training=True))


@bug("chance", "down")
def noise_of_another_generator(down: nn.Module) -> None:
    def change(made: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(made.shape, generator=torch.Generator().manual_seed(5))
        return made * (1 + 1e-3 * noise).to(made.dtype)

    after(down, change)


@bug("infinities", "down")
def overflow_in_half_precision(down: nn.Module) -> None:
    replaced(down, lambda original, x: original((x * 2.0**15).half().to(x.dtype) / 2.0**15))


@bug("loss", "model", "loss", "causal")
def loss_of_the_same_token(model: Any) -> None:
    """Labels are not moved by one."""
    _losing(model, lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@bug("loss", "model", "loss", "causal")
def loss_is_summed(model: Any) -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")

    _losing(model, loss)


@bug("loss", "model", "loss", "causal")
def loss_counts_padding(model: Any) -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].clamp_min(0).flatten())

    _losing(model, loss)


def _losing(model: Any, loss: Callable[..., torch.Tensor]) -> None:
    """Models keep their loss as a function, by an attribute."""

    def run(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        kept = model.loss_function
        model.loss_function = lambda logits, labels, *_, **__: loss(logits.float(), labels)
        try:
            return original(*given, **named)
        finally:
            model.loss_function = kept

    replaced(model, run)
