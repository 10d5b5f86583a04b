"""Bugs of what only some models have: routers, experts and scans."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planted.planting import after, bug, replaced, wrapped_while_it_runs

Made = tuple[torch.Tensor, ...]


@bug("experts", "router")
def router_weights_not_normalised(router: nn.Module) -> None:
    def change(made: Made) -> Made:
        logits, weights, chosen = made
        return logits, logits.float().softmax(-1).gather(-1, chosen).to(weights.dtype), chosen

    after(router, change)


@bug("experts", "router")
def router_in_bfloat16(router: nn.Module) -> None:
    replaced(router, lambda original, x: original(x.bfloat16().to(x.dtype)))


@bug("experts", "router")
def experts_numbered_from_one(router: nn.Module) -> None:
    after(router, lambda made: (*made[:2], (made[2] + 1) % router.num_experts))


@bug("experts", "router")
def second_expert_counts_for_nothing(router: nn.Module) -> None:
    def change(made: Made) -> Made:
        logits, weights, chosen = made
        return logits, torch.stack((weights[:, 0], torch.zeros_like(weights[:, 1])), -1), chosen

    after(router, change)


@bug("experts", "experts")
def experts_are_not_weighted(experts: nn.Module) -> None:
    replaced(experts, lambda original, x, chosen, weights: original(x, chosen, torch.ones_like(weights)))


@bug("experts", "experts")
def one_expert_does_nothing(experts: nn.Module) -> None:
    replaced(
        experts, lambda original, x, chosen, weights: original(x, chosen, weights.masked_fill(chosen == 1, 0))
    )


def _scanning(mixer: nn.Module, make: Callable[..., torch.Tensor]) -> None:
    name = "mamba2_chunk_scan" if "Mamba2" in type(mixer).__name__ else "mamba_selective_scan"
    wrapped_while_it_runs(mixer, name, make)


@bug("scans", "mixer")
def scan_without_skip(mixer: nn.Module) -> None:
    _scanning(mixer, lambda original, *given, D, **named: original(*given, D=torch.zeros_like(D), **named))


@bug("scans", "mixer")
def scan_steps_without_softplus(mixer: nn.Module) -> None:
    def scan(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
        x, steps, *others = given
        named |= {name: False for name in ("delta_softplus", "dt_softplus") if name in named}
        return original(x, steps.abs(), *others, **named)

    _scanning(mixer, scan)


@bug("scans", "mixer")
def scan_inputs_and_outputs_swapped(mixer: nn.Module) -> None:
    def scan(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
        x, steps, decay, inputs, outputs = given
        return original(x, steps, decay, outputs, inputs, **named)

    _scanning(mixer, scan)


@bug("scans", "mixer")
def scan_decays_a_percent_faster(mixer: nn.Module) -> None:
    def scan(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
        x, steps, decay, *others = given
        return original(x, steps, 1.01 * decay, *others, **named)

    _scanning(mixer, scan)


@bug("scans", "mixer")
def scan_in_bfloat16(mixer: nn.Module) -> None:
    def scan(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
        x, *others = given
        return original(x.bfloat16().to(x.dtype), *others, **named)

    _scanning(mixer, scan)


@bug("scans", "mixer", "gated")
def scan_forgets_in_the_middle(mixer: nn.Module) -> None:
    """As where pieces of a sequence do not hand their state on."""

    def scan(
        original: Callable[..., torch.Tensor], *given: Any, z: torch.Tensor, **named: Any
    ) -> torch.Tensor:
        x, steps, decay, inputs, outputs = given
        half = x.shape[-1] // 2
        parts = [(..., slice(0, half)), (..., slice(half, None))]
        made = [original(x[at], steps[at], decay, inputs[at], outputs[at], z=z[at], **named) for at in parts]
        return torch.cat(made, -1)

    _scanning(mixer, scan)


@bug("scans", "mixer", "gated")
def gate_by_a_sigmoid(mixer: nn.Module) -> None:
    def scan(
        original: Callable[..., torch.Tensor], *given: Any, z: torch.Tensor, **named: Any
    ) -> torch.Tensor:
        return original(*given, z=None, **named) * z.sigmoid()

    _scanning(mixer, scan)


@bug("scans", "mixer")
def convolution_looks_ahead(mixer: nn.Module) -> None:
    def convolve(
        original: Callable[..., torch.Tensor], x: torch.Tensor, *given: Any, **named: Any
    ) -> torch.Tensor:
        return original(x.roll(-1, -1), *given, **named)

    wrapped_while_it_runs(mixer, "causal_conv1d_fn", convolve)
