"""A run with some steps."""

import torch

import tensortap as tt

with tt.Tap(sinks=[tt.RunDirectory("runs/example")]) as tap:
    for step in range(3):
        tap.emit(tt.Record("layers.0", torch.randn(4, 4), step=step))

model = torch.nn.Module()
model.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
model.forward = lambda x: model.layers(x)
x = torch.ones(1, 2)


def train() -> None:
    for _ in range(20):
        model(x)
