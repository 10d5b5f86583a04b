"""Capture a small transformer twice, once with a planted bug, and name the module where the runs part."""

from pathlib import Path

import torch
from torch import nn

import tensortap as tt


class Attention(nn.Module):
    """`scale` is where the bug will be."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-2, -1)) * self.scale).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, layers: int = 6, width: int = 128, heads: int = 4, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def record(base: Path, *, planted: bool) -> tt.Capture:
    """One forward pass into a run of its own; the same seed gives the same weights and tokens."""
    torch.manual_seed(0)
    model, tokens = Model(), torch.randint(0, 1000, (4, 32))
    if planted:
        model.blocks[3].attention.scale = 1.0  # someone forgot to scale the attention scores
    with tt.capture(model, "**", "**.in", to=base) as cap, torch.no_grad():
        model(tokens)
    return cap


def main() -> None:
    good, bad = (record(Path("demo_runs"), planted=planted) for planted in (False, True))
    print(f"two runs of one model, the second with a bug planted in blocks.3:\n  {good.run}\n  {bad.run}\n")
    print(good)
    differs = {one.name: tt.difference(one.value, bad[one.name]) for one in good}
    print(f"\n{'module':<24}{'inputs':>16}{'output':>16}{'largest |a - b|':>18}")
    broken = []
    for one in good:
        if one.kind != "output" or one.name.count(".") > 2:
            continue
        stem = "in." if one.name == "out" else f"{one.name}.in."
        inputs = [found for name, found in differs.items() if name.startswith(stem)]
        are_equal, found = all(found.equal for found in inputs), differs[one.name]
        if are_equal and not found.equal:
            broken.append(one.name)
        if not found.equal:
            largest = found.leaves[0].numbers.absolute.size
            print(
                f"{one.name:<24}{'equal' if are_equal else 'different':>16}{'different':>16}{largest:>18.3g}"
            )
    print(
        f"\nthe runs part at {broken[0]}: its inputs are equal, its output is not, nor is anything after it"
    )
    print(differs[broken[0]])


if __name__ == "__main__":
    main()
