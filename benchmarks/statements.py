"""Fifty statements on tensors, as a function that somebody wants to follow."""

import torch
from torch import Tensor


def work(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    spread = centred.pow(2).mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(spread + 1e-5)
    scaled = normed * weight
    shifted = scaled + bias
    gate = torch.sigmoid(shifted)
    mixed = gate * shifted
    wide = torch.cat([mixed, x], -1)
    left, right = wide.chunk(2, -1)
    joined = left + right
    clipped = joined.clamp(-3, 3)
    x = x + clipped
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    spread = centred.pow(2).mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(spread + 1e-5)
    scaled = normed * weight
    shifted = scaled + bias
    gate = torch.sigmoid(shifted)
    mixed = gate * shifted
    wide = torch.cat([mixed, x], -1)
    left, right = wide.chunk(2, -1)
    joined = left + right
    clipped = joined.clamp(-3, 3)
    x = x + clipped
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    spread = centred.pow(2).mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(spread + 1e-5)
    scaled = normed * weight
    shifted = scaled + bias
    gate = torch.sigmoid(shifted)
    mixed = gate * shifted
    wide = torch.cat([mixed, x], -1)
    left, right = wide.chunk(2, -1)
    joined = left + right
    clipped = joined.clamp(-3, 3)
    x = x + clipped
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    spread = centred.pow(2).mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(spread + 1e-5)
    scaled = normed * weight
    shifted = scaled + bias
    gate = torch.sigmoid(shifted)
    mixed = gate * shifted
    wide = torch.cat([mixed, x], -1)
    left, right = wide.chunk(2, -1)
    return x
