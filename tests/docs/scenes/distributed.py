"""A run of two ranks: one value in shards, one whose pieces say nothing."""

import torch

import tensortap as tt
from tensortap.core.record import Placement

with tt.Tap(sinks=[tt.RunDirectory("runs/job")]) as tap:
    for rank in (0, 1):
        place = Placement((2,), (rank,), ("shard(0)",), (4, 3), (2 * rank, 0))
        tap.emit(tt.Record("layers.0.mlp.up", torch.ones(2, 3), rank=rank, placement=place))
        tap.emit(tt.Record("layers.0.mlp.down", torch.full((2, 3), rank), rank=rank))
