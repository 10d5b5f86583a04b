"""A training job that catches values, and a session that looks at them: run `session`, beside it `job`."""

import sys
import time

import torch

import tensortap as tt


def job(steps: int = 200) -> None:
    """Fit a line; every tenth loss and weight goes to the session, if there is one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        x = torch.randn(32, 3)
        loss = (model(x) - x @ torch.tensor([[1.0], [-2.0], [0.5]])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tt.catch(loss, "loss", every=10)
        tt.catch(model.weight, every=10)
        time.sleep(0.01)


def session(values: int = 20) -> None:
    """What one would type at a prompt."""
    tt.serve()
    while "model.weight" not in str(tt.summary()) or len(tt.get_all("model.weight")) < values:
        tt.status(seconds=1)
        time.sleep(0.1)
    print(tt.summary())
    print("the weight is now", tt.get("model.weight").tolist())


if __name__ == "__main__":
    {"job": job, "session": session}[sys.argv[1] if len(sys.argv) > 1 else "session"]()
