"""Weights and data that are not what they should be: the gate has to name them before any value is judged."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from planted.models import HEAD
from planted.planting import bug, data_bug


@bug("weights", "norm")
def norm_weight_plus_one(norm: nn.Module) -> None:
    with torch.no_grad():
        norm.weight += 1


@bug("weights", "out")
def output_weight_transposed(out: nn.Module) -> None:
    square = min(out.weight.shape)
    with torch.no_grad():
        out.weight[:square, :square] = out.weight[:square, :square].T.clone()


@bug("weights", "out")
def half_of_the_weights_is_missing(out: nn.Module) -> None:
    with torch.no_grad():
        rows = out.weight if isinstance(out, Conv1D) else out.weight.T
        rows[rows.shape[0] // 2 :] = 0


@bug("weights", "query")
def query_heads_in_another_order(query: nn.Module) -> None:
    with torch.no_grad():
        rows = query.weight.T if isinstance(query, Conv1D) else query.weight
        rows[: 4 * HEAD] = rows[: 4 * HEAD].roll(HEAD, 0).clone()


@bug("weights", "down")
def one_row_of_weights_is_stale(down: nn.Module) -> None:
    with torch.no_grad():
        (down.weight.T if isinstance(down, Conv1D) else down.weight)[5] *= 1.01


@bug("weights", "down")
def one_weight_is_off(down: nn.Module) -> None:
    with torch.no_grad():
        down.weight[3, 7] += 0.01


@bug("weights", "head")
def head_is_not_tied(head: nn.Module) -> None:
    noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(3))
    head.weight = nn.Parameter((head.weight * (1 + 0.01 * noise)).to(head.weight.dtype))


@bug("weights", "experts")
def one_expert_is_stale(experts: nn.Module) -> None:
    with torch.no_grad():
        experts.down_proj[1] *= 1.01


@bug("weights", "mixer")
def scan_decay_is_stale(mixer: nn.Module) -> None:
    with torch.no_grad():
        mixer.A_log += 0.02


@data_bug("input_ids")
def one_token_is_swapped_between_sequences(ids: torch.Tensor) -> torch.Tensor:
    ids[0, 9], ids[1, 9] = ids[1, 9].item(), ids[0, 9].item()
    return ids


@data_bug("input_ids")
def words_are_one_on(ids: torch.Tensor) -> torch.Tensor:
    """As where a sequence begins with a mark that the other side does not set."""
    return ids.roll(1, -1)


@data_bug("attention_mask")
def padding_is_not_masked(mask: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(mask)


@data_bug("labels", "causal")
def labels_are_one_on(labels: torch.Tensor) -> torch.Tensor:
    return labels.roll(-1, -1)


@data_bug("pixel_values")
def colours_in_another_order(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.flip(1)


@data_bug("pixel_values")
def pixels_a_little_brighter(pixels: torch.Tensor) -> torch.Tensor:
    return pixels * 1.01
