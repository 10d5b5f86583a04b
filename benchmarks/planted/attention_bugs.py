"""Bugs of attention: rotated positions, scores, masks, heads."""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from planted.planting import at, bug, replaced, while_it_runs


@bug("positions", "attention", "rotary")
def rope_theta_9500(attention: nn.Module) -> None:
    _rotating(attention, lambda cos, sin: _angles(cos, 9500.0))


@bug("positions", "attention", "rotary")
def rope_interleaved(attention: nn.Module) -> None:
    while_it_runs(attention, apply_rotary_pos_emb=functools.partial(_rotated, is_interleaved=True))


@bug("positions", "attention", "rotary")
def rope_of_queries_one_ahead(attention: nn.Module) -> None:
    _rotating(attention, _one_ahead)


@bug("positions", "attention", "rotary")
def rope_turns_the_other_way(attention: nn.Module) -> None:
    _rotating(attention, lambda cos, sin: (cos, -sin))


Angles = tuple[torch.Tensor, torch.Tensor]


def _rotating(attention: nn.Module, of_queries: Callable[[torch.Tensor, torch.Tensor], Angles]) -> None:
    while_it_runs(attention, apply_rotary_pos_emb=functools.partial(_rotated, of_queries=of_queries))


def _rotated(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *_: Any,
    of_queries: Callable[[torch.Tensor, torch.Tensor], Angles] = lambda cos, sin: (cos, sin),
    is_interleaved: bool = False,
) -> Angles:
    turn = _interleaved if is_interleaved else _by_halves
    return turn(query, *of_queries(cos, sin)), turn(key, cos, sin)


def _angles(cos: torch.Tensor, theta: float) -> Angles:
    length, width = cos.shape[-2:]
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    angles = (torch.arange(length)[:, None].float() * frequencies).repeat(1, 2)[None]
    return angles.cos().to(cos.dtype), angles.sin().to(cos.dtype)


def _one_ahead(cos: torch.Tensor, sin: torch.Tensor) -> Angles:
    c, s = cos[:, 1:2], sin[:, 1:2]
    return cos * c - sin * s, sin * c + cos * s


def _by_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    cos, sin, (turned, kept) = (
        cos[:, None],
        sin[:, None],
        x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1),
    )
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, kept), -1)


def _interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned, kept = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
    cos, sin = (one[:, None, :, : one.shape[-1] // 2] for one in (cos, sin))
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat((torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2), kept), -1)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    *,
    repeat: Callable[[torch.Tensor, int], torch.Tensor] = lambda x, times: x.repeat_interleave(times, 1),
    scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda q, k: q @ k.transpose(-1, -2),
    masked: Callable[[torch.Tensor], torch.Tensor] = lambda mask: mask,
    cap: Callable[[float | None], float | None] = lambda softcap: softcap,
    precision: torch.dtype = torch.float32,
    scale: float = 1.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as the models compute it eagerly, with places where it can go wrong."""
    times = query.shape[1] // key.shape[1]
    key, value = repeat(key, times), repeat(value, times)
    found = scores(query, key) * ((scaling or query.shape[-1] ** -0.5) * scale)
    limit = cap(softcap)
    found = found if limit is None else limit * torch.tanh(found / limit)
    found = found if position_bias is None else found + position_bias
    mask = masked(_mask(module, attention_mask, found))
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
    _instead(attention, functools.partial(attend, **changes))


def _instead(attention: nn.Module, wrong: Callable[..., Any]) -> None:
    while_it_runs(attention, ALL_ATTENTION_FUNCTIONS=SimpleNamespace(get_interface=lambda *_: wrong))


@bug("attention", "attention")
def attention_scale_of_width_plus_one(attention: nn.Module) -> None:
    _attending(attention, scale=math.sqrt(16 / 17))


@bug("rounding", "attention")
def softmax_in_bfloat16(attention: nn.Module) -> None:
    _attending(attention, precision=torch.bfloat16)


@bug("masks", "attention")
def mask_off_by_one(attention: nn.Module) -> None:
    def moved(mask: torch.Tensor) -> torch.Tensor:
        mask = mask.roll(1, -1)
        mask[..., :1] = mask[..., 1:2] if attention.is_causal else mask.min() - 1e4
        return mask

    _attending(attention, masked=moved)


@bug("masks", "attention", "causal")
def mask_is_ignored(attention: nn.Module) -> None:
    _attending(attention, masked=torch.zeros_like)


@bug("masks", "attention", "causal")
def mask_is_too_narrow(attention: nn.Module) -> None:
    """A window of eight where there is none."""

    def narrowed(mask: torch.Tensor) -> torch.Tensor:
        far = torch.ones(mask.shape[-2:], dtype=torch.bool).tril(-8)
        return mask.masked_fill(far, torch.finfo(mask.dtype).min)

    _attending(attention, masked=narrowed)


@bug("infinities", "attention")
def one_row_is_masked_wholly(attention: nn.Module) -> None:
    def hidden(mask: torch.Tensor) -> torch.Tensor:
        mask = mask.expand(-1, -1, mask.shape[-1], -1).clone() if mask.ndim == 4 else mask
        mask[..., 5, :] = -math.inf
        return mask

    _attending(attention, masked=hidden)


@bug("attention", "attention", "grouped")
def grouped_heads_mapped_wrongly(attention: nn.Module) -> None:
    _attending(attention, repeat=lambda x, times: x.repeat(1, times, 1, 1))


@bug("attention", "attention")
def queries_and_keys_swapped(attention: nn.Module) -> None:
    _attending(attention, scores=lambda q, k: k @ q.transpose(-1, -2))


@bug("attention", "attention", "capped")
def scores_are_not_capped(attention: nn.Module) -> None:
    _attending(attention, cap=lambda _: 5.0)


@bug("attention", "attention")
def one_key_is_stale(attention: nn.Module) -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k.clone()
        k[:, :, 5] = k[:, :, 4]
        return q @ k.transpose(-1, -2)

    _attending(attention, scores=scores)


@bug("masks", "cross")
def last_word_of_the_source_is_hidden(attention: nn.Module) -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        found = q @ k.transpose(-1, -2)
        found[..., -6:] = -1e4
        return found

    _attending(attention, scores=scores)


@bug("attention", "attention")
def heads_are_put_together_wrongly(attention: nn.Module) -> None:
    """Heads come before tokens in memory."""
    _attending_then(attention, lambda made: made.transpose(1, 2).contiguous().view(made.shape))


@bug("data on its way", "attention")
def one_token_from_the_other_sequence(attention: nn.Module) -> None:
    _attending_then(attention, lambda made: made.index_put((at(0), at(9)), made[1:2, 9]))


@bug("infinities", "attention")
def nan_in_one_row(attention: nn.Module) -> None:
    _attending_then(
        attention, lambda made: made.index_put((at(1), at(9)), torch.tensor(math.nan).to(made.dtype))
    )


def _attending_then(attention: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def wrong(*given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made, weights = attend(*given, **named)
        return change(made), weights

    _instead(attention, wrong)


@bug("positions", "relative")
def relative_positions_one_way_only(attention: Any) -> None:
    """Those of a decoder, in an encoder."""

    def run(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        attention.is_decoder = True
        try:
            return original(*given, **named)
        finally:
            attention.is_decoder = False

    replaced(attention, run)
