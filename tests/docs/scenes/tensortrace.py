"""A model with a variable of each sort, and a training loop."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model = Model()


def train():
    for _ in range(8):
        model(torch.randn(3, 4))
