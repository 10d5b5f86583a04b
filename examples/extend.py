"""A sink and a stage of one's own: python examples/extend.py"""

import torch
from torch import nn

import tensortap as tt


class OnlyLarge(tt.Stage):
    """Passes records whose value is larger than a limit."""

    def __init__(self, limit):
        self.limit = limit

    def push(self, record):
        return (record,) if float(record.value.abs().max()) > self.limit else ()


class Means:
    """Keeps the mean of each record, and nothing else of it."""

    def __init__(self):
        self.found = []

    def write(self, record):
        self.found.append((record.name, record.step, float(record.value.mean())))

    def flush(self): ...

    def close(self): ...


def main() -> None:
    torch.manual_seed(0)
    model, means = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Means()
    with tt.Tap(stages=[OnlyLarge(1.0)], sinks=[means]) as tap, tt.capture(model, "*", to=tap):
        for scale in (1, 10):
            model(torch.randn(8, 4) * scale)
    for name, step, mean in means.found:
        print(f"{name} at step {step}: {mean:+.3f}")


if __name__ == "__main__":
    main()
