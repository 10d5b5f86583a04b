"""A transformer encoder in two sizes, small enough to be all overhead and large enough to be all work."""

import math

import torch
from torch import Tensor, nn

VOCABULARY = 1000


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.mix(self.q(x), self.k(x), self.v(x)))
        return out


class Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(x)))
        return out


class Block(nn.Module):
    attention: type[Attention] = Attention
    feed: type[Feed] = Feed

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = self.attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = self.feed(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Encoder(nn.Module):
    """Of `3 + 12 * layers` modules that are called: 27 when small, 147 when big."""

    block: type[Block] = Block

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(self.block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


# layers, width, heads; batch, length
SIZES = {"small": ((2, 64, 4), (1, 8)), "big": ((12, 256, 4), (4, 64))}


def build(size: str, encoder: type[Encoder] = Encoder) -> tuple[Encoder, Tensor]:
    """The model of that size, in eval mode, and a batch for it."""
    torch.manual_seed(0)
    shape, batch = SIZES[size]
    return encoder(*shape).eval(), torch.randint(VOCABULARY, batch)


def called(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that a forward calls: a list of modules is only a place to keep them."""
    return {name: module for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)}
