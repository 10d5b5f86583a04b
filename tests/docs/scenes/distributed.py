"""A model, as each rank has it; a run of two ranks: one value in shards, one whose pieces say nothing."""

from collections import OrderedDict

import torch
from torch import nn

import tensortap as tt
from tensortap.core.record import Placement

x = hidden = torch.ones(2, 3)
layer = nn.Sequential(OrderedDict(mlp=nn.Linear(3, 3)))
model = nn.Sequential(OrderedDict(layers=nn.Sequential(layer)))

with tt.Tap(sinks=[tt.RunDirectory("runs/job")]) as tap:
    for rank in (0, 1):
        place = Placement((2,), (rank,), ("shard(0)",), (4, 3), (2 * rank, 0))
        tap.emit(tt.Record("layers.0.mlp.up", torch.ones(2, 3), rank=rank, placement=place))
        tap.emit(tt.Record("layers.0.mlp.down", torch.full((2, 3), rank), rank=rank))
