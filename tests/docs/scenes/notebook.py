"""A run with some steps."""

import torch

import tensortap as tt

with tt.Tap(sinks=[tt.RunDirectory("runs/example")]) as tap:
    for step in range(3):
        tap.emit(tt.Record("layers.0", torch.randn(4, 4), step=step))
