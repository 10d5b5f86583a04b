"""A small model with the parts that the page names, its copy, a batch, and a job that runs meanwhile."""

import atexit
import copy
import itertools
import threading
from pathlib import Path

import torch
from torch import nn

import tensortap as tt


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = self.mix = nn.Linear(8, 8)

    def forward(self, x, mask):
        return self.mix(x) * mask


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.attn = Attention()

    def forward(self, x):
        return self.attn(self.self_attn(x, mask=torch.ones(8)), mask=torch.ones(8))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([Layer() for _ in range(2)])})
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for layer in itertools.chain(self.encoder["layers"], self.layers):
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
model, x, loss = Model(), torch.randn(4, 8), torch.tensor(0.5)
other, batch = copy.deepcopy(model), {"x": x}

for name in ("a", "b"):
    Path(f"experiments/{name}").mkdir(parents=True)
torch.save(torch.ones(3), "experiments/a/loss.pt")
import numpy as np  # noqa: E402

np.save("experiments/b/loss.npy", np.ones(3) + 1e-3)


def train():
    """The job of the live part: it takes steps as soon as it listens."""
    while not tt.jobs() and not over.wait(0.05):
        pass
    while not over.wait(0.005):
        model(x)
        tt.step()


over, job = threading.Event(), threading.Thread(target=train, daemon=True)
job.start()
atexit.register(lambda: (over.set(), job.join()))

with tt.Tap(sinks=[tt.RunDirectory("experiments/20251028_143041")]) as tap:
    for name in ("hidden", "layers.0.out"):
        tap.emit(tt.Record(name, torch.randn(2)))
