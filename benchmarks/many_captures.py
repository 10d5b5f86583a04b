"""A run of many captures, as a long training leaves it: `many_captures.py FOLDER [COUNT]`."""

import sys
import time
from pathlib import Path

import numpy as np

import tensortap as tt

COUNT = 100_000
LAYERS = 50
PARTS = ("norm", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.o", "mlp.gate", "mlp.up", "mlp.down", "")
SHAPES = ((4, 8), (2, 4, 8), (8, 8), (16,))


def write(folder: Path, count: int = COUNT, *, noise: float = 0.0, seed: int = 0) -> Path:
    """Names of a model over as many steps as it takes; now and then a value has a NaN or an Inf."""
    sink = tt.RunDirectory(folder)
    draw = np.random.default_rng(seed)
    pool = [draw.standard_normal(SHAPES[at % len(SHAPES)], np.float32) for at in range(64)]
    names = [f"layers.{layer}.{part}".rstrip(".") for layer in range(LAYERS) for part in PARTS]
    for number in range(count):
        step, order = divmod(number, len(names))
        value = pool[number % len(pool)]
        if noise and step >= 3 and order > len(names) // 2:
            value = value * np.float32(1 + noise)
        if number % 9973 == 9972:
            value = value.copy()
            value.flat[0] = np.nan if number % 2 else np.inf
        sink.write(tt.Record(names[order], value, "output", step, order=order, time=time.time()))
    sink.close()
    return Path(sink.path)


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else COUNT))
