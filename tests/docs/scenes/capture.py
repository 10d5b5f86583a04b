"""A model with every part that the page names, a function of one's own, and some input."""

import sys
from pathlib import Path

import torch
from torch import nn

Path("mypkg").mkdir()
Path("mypkg/__init__.py").touch()
Path("mypkg/mod.py").write_text("def attention(q, k):\n    scores = q @ k.T\n    return scores.softmax(-1)\n")
sys.path.insert(0, ".")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.ModuleDict({"up": nn.Linear(8, 8)})

    def forward(self, x, mask=None):
        x = self.mlp["up"](x)
        return x if mask is None else x * mask


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])})
        self.layers = nn.ModuleList([Layer() for _ in range(6)])
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.encoder["layers"]:
            x = layer(x)
        mask = torch.ones(8)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


torch.manual_seed(0)
model, x, mask = Model(), torch.randn(4, 8), torch.zeros(8)
q, k = torch.randn(3, 4), torch.randn(5, 4)
