"""Bugs of attention: rotated positions, scores, masks, heads."""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from planted.planting import at, bug, while_it_runs


@bug("attention", "rotary")
def rope_theta_9500(attention: nn.Module) -> None:
    while_it_runs(attention, apply_rotary_pos_emb=functools.partial(_rotated, theta=9500.0))


@bug("attention", "rotary")
def rope_interleaved(attention: nn.Module) -> None:
    while_it_runs(attention, apply_rotary_pos_emb=functools.partial(_rotated, is_interleaved=True))


@bug("attention", "rotary")
def rope_of_queries_one_ahead(attention: nn.Module) -> None:
    while_it_runs(attention, apply_rotary_pos_emb=functools.partial(_rotated, ahead=1))


def _rotated(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *_: Any,
    theta: float = 10_000.0,
    is_interleaved: bool = False,
    ahead: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    turn = _interleaved if is_interleaved else _by_halves
    return turn(query, *_angles(query, theta, ahead)), turn(key, *_angles(key, theta, 0))


def _angles(x: torch.Tensor, theta: float, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
    length, width = x.shape[-2:]
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    angles = (torch.arange(length) + ahead)[:, None].float() * frequencies
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _by_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    repeat: Callable[[torch.Tensor, int], torch.Tensor] = lambda x, times: x.repeat_interleave(times, 1),
    scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda q, k: q @ k.transpose(-1, -2),
    mask_shift: int = 0,
    precision: torch.dtype = torch.float32,
    scale: float = 1.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as the models compute it eagerly, with places where it can go wrong."""
    times = query.shape[1] // key.shape[1]
    key, value = repeat(key, times), repeat(value, times)
    found = scores(query, key) * ((scaling or query.shape[-1] ** -0.5) * scale)
    mask = _mask(module, attention_mask, found)
    if mask_shift:
        mask = mask.roll(mask_shift, -1)
        mask[..., :mask_shift] = (
            mask[..., mask_shift : mask_shift + 1] if module.is_causal else mask.min() - 1e4
        )
    weights = (found + mask).to(precision).softmax(-1).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _mask(module: nn.Module, given: torch.Tensor | None, scores: torch.Tensor) -> torch.Tensor:
    lowest = torch.finfo(scores.dtype).min
    if given is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) & bool(module.is_causal)
        return torch.zeros(hidden.shape, dtype=scores.dtype).masked_fill(hidden, lowest)
    if given.dtype == torch.bool:
        return torch.zeros(given.shape, dtype=scores.dtype).masked_fill(~given, lowest)
    return given.clone()


def _attending(attention: nn.Module, **changes: Any) -> None:
    wrong = functools.partial(attend, **changes)
    while_it_runs(attention, ALL_ATTENTION_FUNCTIONS=SimpleNamespace(get_interface=lambda *_: wrong))


@bug("attention")
def attention_scale_of_width_plus_one(attention: nn.Module) -> None:
    _attending(attention, scale=math.sqrt(16 / 17))


@bug("attention")
def mask_off_by_one(attention: nn.Module) -> None:
    _attending(attention, mask_shift=1)


@bug("attention", "grouped")
def grouped_heads_mapped_wrongly(attention: nn.Module) -> None:
    _attending(attention, repeat=lambda x, times: x.repeat(1, times, 1, 1))


@bug("attention")
def softmax_in_bfloat16(attention: nn.Module) -> None:
    _attending(attention, precision=torch.bfloat16)


@bug("attention")
def queries_and_keys_swapped(attention: nn.Module) -> None:
    _attending(attention, scores=lambda q, k: k @ q.transpose(-1, -2))


@bug("attention")
def one_key_is_stale(attention: nn.Module) -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k.clone()
        k[:, :, 5] = k[:, :, 4]
        return q @ k.transpose(-1, -2)

    _attending(attention, scores=scores)


@bug("attention")
def one_token_from_the_other_sequence(attention: nn.Module) -> None:
    _attending_then(attention, lambda made: made.index_put((at(0), at(17)), made[1:2, 17]))


@bug("attention")
def nan_in_one_row(attention: nn.Module) -> None:
    _attending_then(
        attention, lambda made: made.index_put((at(1), at(9)), torch.tensor(math.nan).to(made.dtype))
    )


def _attending_then(attention: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def wrong(*given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made, weights = attend(*given, **named)
        return change(made), weights

    while_it_runs(attention, ALL_ATTENTION_FUNCTIONS=SimpleNamespace(get_interface=lambda *_: wrong))
