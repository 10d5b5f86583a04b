"""A job that takes steps in a thread as soon as it listens, with the parts that the page names."""

import atexit
import threading

import torch
from torch import nn

import tensortap as tt


class Attention(nn.Module):
    def forward(self, x):
        return x * 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()

    def forward(self, x):
        return self.self_attn(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.lm_head = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


model, loss = Model(), torch.tensor(0.5)


def train():
    while not tt.jobs() and not over.wait(0.05):
        pass
    while not over.wait(0.005):
        tt.tap(model(torch.randn(2, 4)).square().mean(), "loss")
        tt.step()


over, job = threading.Event(), threading.Thread(target=train, daemon=True)
job.start()
atexit.register(lambda: (over.set(), job.join()))
