"""Values to dump and to compare, and a run of two ranks with the names that the page reads."""

from pathlib import Path

import numpy as np
import torch

import tensortap as tt

value, a, b = torch.randn(3), torch.ones(3), np.ones(3)
Path("a").mkdir()
Path("b").mkdir()
torch.save(torch.ones(3), "a/output.pt")
np.save("b/output.npy", np.ones(3))

with tt.Tap(sinks=[tt.RunDirectory("experiments/20251028_143041")]) as tap:
    for rank in (0, 1):
        for name in ("hidden", "loss", "layers.0.out"):
            tap.emit(tt.Record(name, torch.randn(2), rank=rank))
