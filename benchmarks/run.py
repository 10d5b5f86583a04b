"""What `tensortap run` costs a small training script that is not tapped: per step, and once per program.

A plain and a watched process live side by side and take turns of a few steps each, in an order drawn anew, so
that a noisy moment meets both; a turn is timed inside of them, in processor time.
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

STEPS = 10  # of one turn
PLAIN = [sys.executable, __file__, "--worker"]
TENSORTAP = str(Path(sys.executable).with_name("tensortap"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work()
    pairs, rounds = (2, 40) if given.quick else (5, 120)
    with tempfile.TemporaryDirectory() as folder:
        watched = [TENSORTAP, "run", "--quiet", "--to", folder, "--", *PLAIN]
        found = [compete(watched, rounds) for _ in range(pairs)]
        null = [compete(PLAIN, rounds)[0] for _ in range(pairs)]
        once = [begin(watched) - begin(PLAIN) for _ in range(pairs)]
    table = Table("tensortap run")
    ratio = statistics.median(ratio for ratio, _ in found)
    table.add("a step of a small training script, watched and not tapped", ratio, 1.02)
    # What the machine lets one see: two plain processes against each other.
    tell("a plain step against a plain step, least", min(null))
    tell("a plain step against a plain step, most", max(null))
    tell("a watched step, least", min(ratio for ratio, _ in found))
    tell("a watched step, most", max(ratio for ratio, _ in found))
    tell("the plain step", 1e6 * statistics.median(step for _, step in found), "us")
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


def compete(watched: list[str], rounds: int) -> tuple[float, float]:
    """The ratio of undisturbed turns, and the plain step: what else runs only makes a turn longer."""
    workers, draw = [Worker(PLAIN), Worker(watched)], random.Random(0)
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        spent = {one: workers[one].turn() for one in draw.sample((0, 1), 2)}
        times.append((spent[0], spent[1]))
    for worker in workers:
        worker.end()
    before, after = (undisturbed(list(spent)) for spent in zip(*times[rounds // 8 :], strict=True))
    return after / before, before / STEPS


def undisturbed(times: list[float]) -> float:
    return statistics.quantiles(times, n=5)[0]


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
