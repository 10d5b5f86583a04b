"""Variables inside of forward, over many steps, into one HDF5 file: python examples/trace.py [file]"""

import sys

import torch
from torch import nn

import tensortap as tt


class Attention(nn.Module):
    def forward(self, x):
        scores = x @ x.transpose(-1, -2)
        weights = scores.softmax(-1)
        return weights @ x


def main(file: str = "trace.h5") -> None:
    model = nn.Sequential(nn.Linear(8, 8), Attention())
    tracer = tt.ModelTracer(
        model,
        ["1.forward.scores", "1.forward.weights"],
        post_gather_callbacks=[tt.stack_padded_tensors, tt.H5PYSaverCallback(dataset_file=file)],
        gathering_interval=4,
    )
    with tracer:
        for _ in range(8):
            model(torch.randn(2, 5, 8))

    trace = tt.TraceFile(file)
    for name in trace.names:
        print(name, tuple(trace[name][0].shape), "and", len(trace[name]) - 1, "more")


if __name__ == "__main__":
    main(*sys.argv[1:])
