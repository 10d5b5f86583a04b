"""Run a small transformer twice, once with a planted bug, and find the module where the runs part."""

from pathlib import Path

import torch
from torch import nn

import tensortap as tt


class Block(nn.Module):
    """Pre-norm attention and a feed-forward layer; `scale` is where the bug will be."""

    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        self.name, self.heads = name, heads
        self.scale = (width // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        tt.dump(x, f"{self.name}.attention")
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        tt.dump(x, f"{self.name}.feed_forward")
        return x

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Model(nn.Module):
    def __init__(self, layers: int = 6, width: int = 128, heads: int = 4, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(f"blocks.{i}", width, heads) for i in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        tt.dump(x, "embed")
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        tt.dump(logits, "logits")
        return logits


def record(base: Path, *, planted: bool) -> tt.Run:
    """One forward pass into a run of its own; the same seed gives the same weights and tokens."""
    torch.manual_seed(0)
    model, tokens = Model(), torch.randint(0, 1000, (4, 32))
    if planted:
        model.blocks[3].scale = 1.0  # someone forgot to scale the attention scores
    run = tt.init(base)
    with torch.no_grad():
        model(tokens)
    tt.close()
    return tt.Run(run)


def main() -> None:
    base = Path("demo_runs")
    good, bad = record(base, planted=False), record(base, planted=True)
    print(f"two runs of one model, the second with a bug planted in blocks.3:\n  {good.path}\n  {bad.path}\n")
    print(f"{'name':<24}{'numbers':>10}{'beyond tolerance':>18}{'largest |a - b|':>18}")
    first = None
    for stored in good:
        found = tt.difference(stored.load(), bad.load(stored.name))
        if not found.equal and first is None:
            first = (stored, found)
        numbers = found.leaves[0].numbers
        share, largest = (
            numbers.mismatches / numbers.count,
            numbers.absolute.size if numbers.absolute else 0.0,
        )
        print(f"{stored.name:<24}{numbers.count:>10,}{share:>18.1%}{largest:>18.3g}{'  <-' if share else ''}")
    assert first is not None
    stored, found = first
    print(f"\nthe runs part at {stored.name}, dumped at {Path(stored.site.file).name}:{stored.site.line}")
    print(found)


if __name__ == "__main__":
    main()
