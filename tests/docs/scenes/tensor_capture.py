"""A model with the parts that the page names, which hands out what was captured of it."""

import torch
from torch import nn

import tensortap as tt


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.body, self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.output_layer = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.up(self.body(x))
        tt.register_tensor("after_activation", x)
        output = self.output_layer(self.down(x))
        captured = tt.get_captured_tensors_dict()
        return (output, captured) if captured else output


model, x = Model(), torch.randn(3, 4)
batches, loss = [x, x], torch.tensor(0.5)
