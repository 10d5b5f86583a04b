"""Ask a running job for values it was never told to send: python examples/live.py

This file plays both parts: the job is started as a process of its own, the session attaches to it."""

import subprocess
import sys

import tensortap as tt

JOB = """
import torch
from torch import nn
import tensortap as tt

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
tt.listen("example"), tt.expose(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
print("ready", flush=True)
while True:
    loss = tt.tap(model(torch.randn(64, 8)).square().mean(), "loss")
    optimizer.zero_grad(), loss.backward(), optimizer.step()
    tt.step()
"""


def main() -> None:
    job = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        job.stdout.readline()  # it listens
        with tt.attach(str(job.pid)) as session:
            print(session.catalog("0"))
            tap = session.tap("0", "loss", every=5)
            for _ in range(4):
                print(tap.next(timeout=20))
            print("weights:", session.once("2.weight"))
    finally:
        job.kill()
        job.wait()


if __name__ == "__main__":
    main()
