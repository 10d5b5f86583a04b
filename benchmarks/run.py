"""What `tensortap run` costs a small training script that is not tapped: per step, and once per program.

Two plain processes and a watched one live side by side and take turns of a few steps each, in an order drawn
anew, so that a noisy moment meets all; a turn is timed inside of them, in processor time. What else runs on
the machine only makes a turn longer, often by half of it: of the turns of many processes the quickest are
compared, and the second plain one tells what the machine lets one see.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Table, finish, tell

STEPS = 3  # of one turn
PLAIN = [sys.executable, __file__, "--worker"]
TENSORTAP = str(Path(sys.executable).with_name("tensortap"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work()
    groups, rounds = (3, 60) if given.quick else (15, 100)
    with tempfile.TemporaryDirectory() as folder:
        watched = [TENSORTAP, "run", "--quiet", "--to", folder, "--", *PLAIN]
        plain, again, tapless = compete([PLAIN, PLAIN, watched], groups, rounds)
        once = [begin(watched) - begin(PLAIN) for _ in range(5)]
    table = Table("tensortap run")
    table.add("a step of a small training script, watched and not tapped", tapless / plain, 1.02)
    tell("a plain step against a plain step", again / plain)
    tell("the plain step", 1e6 * plain / STEPS, "us")
    tell("until the first step is over, more than without", statistics.median(once), "s")
    return finish([table])


class Worker:
    """A process that takes steps when told to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turn()

    def turn(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate(timeout=60)


def compete(commands: list[list[str]], groups: int, rounds: int) -> list[float]:
    """The undisturbed turn of each command, over many processes of it."""
    times: list[list[float]] = [[] for _ in commands]
    draw = random.Random(0)
    for _ in range(groups):
        workers = [Worker(command) for command in commands]
        for number in range(rounds):
            for one in draw.sample(range(len(workers)), len(workers)):
                spent = workers[one].turn()
                if number >= rounds // 8:
                    times[one].append(spent)
        for worker in workers:
            worker.end()
    return [statistics.quantiles(spent, n=20)[0] for spent in times]


def begin(command: list[str]) -> float:
    begun = time.perf_counter()
    worker = Worker(command)
    spent = time.perf_counter() - begun
    worker.end()
    return spent


def work() -> int:
    """The script as a stranger would write it, with a clock."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    batch, target = torch.randn(4, 16, 64), torch.randn(4, 16, 8)
    loss_of = nn.MSELoss()
    for _ in sys.stdin:
        begun = time.process_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model(batch), target).backward()
            optimizer.step()
        print(time.process_time() - begun, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
