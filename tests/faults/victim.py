"""A program to be killed: imports once, then forks a child per line of stdin that dumps until it dies.

Each line is `<way> <folder>`. The child says `run <pid> <path>`, then `ack <n>` once value `n` is promised
to be safe; the parent says `ended` when the child is gone.
"""

import os
import sys

import numpy as np

import tensortap as tt

# Small, odd, beyond one write block: each takes another road to the disk.
SIZES = (10, 1000, 1, 60_001, 0, 700_000, 300)
BATCH = 5  # of values between two calls of flush()


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def content(number: int) -> np.ndarray:
    return np.arange(SIZES[number % len(SIZES)], dtype=np.float64) + number


def dump_until_killed(way: str, folder: str) -> None:
    is_background = way == "background"
    run = tt.init(folder, background=is_background, layout="pack" if way == "pack" else "files")
    say(f"run {os.getpid()} {run}")
    for number in range(100_000):
        tt.dump(torch.from_numpy(content(number)) if way == "pt" else content(number), f"v{number}")
        if not is_background:
            say(f"ack {number}")
        elif number % BATCH == BATCH - 1:
            tt.flush()
            say(f"ack {number}")


if "pt" in sys.argv:
    import torch

tt.init, tt.dump  # noqa: B018 - imported before the first fork, so that children start at once
for order in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            dump_until_killed(*order.split())
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    say("ended")
