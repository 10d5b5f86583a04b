"""What gathering costs: 100 MB per rank from two ranks to rank 0, against `dist.gather` of the same bytes.

    python benchmarks/gather.py

Both run in the same two processes, taking turns; the time is rank 0's, from a barrier to a barrier.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Table, finish

MEGABYTES = 100
ROUNDS = 15
WORLD = 2
LIMIT = 1.3
# How the same bytes are divided into values.
DIVISIONS = {"one value": 1, "25 values": 25, "1,000 values": 1000}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        ranks = [start(rank, meeting) for rank in range(WORLD)]
        return max(rank.wait() for rank in ranks)


def start(rank: int, meeting: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, str(rank), str(meeting)], env=environment)


def measure(rank: int, meeting: str) -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    whole = torch.rand(MEGABYTES * 2**20 // 4)
    received = [torch.empty_like(whole) for _ in range(WORLD)] if rank == 0 else None
    contestants: dict[str, Callable[[], object]] = {"dist.gather": lambda: dist.gather(whole, received)}
    for name, count in DIVISIONS.items():
        contestants[name] = partial(gather_values, make_stage(), list(whole.chunk(count)))
    times = take_turns(contestants, dist.barrier)
    over = report(times) if rank == 0 else 0
    dist.barrier()
    sys.stdout.flush()
    os._exit(bool(over))  # gloo's threads now and then abort a process that ends in the usual way


def make_stage() -> object:
    from tensortap.stages.gather import Gather

    return Gather(1)


def gather_values(stage: object, values: list[object]) -> list[object]:
    from tensortap.core.record import Record

    for number, value in enumerate(values):
        stage.push(Record(f"x{number % 50}", value, step=1))
    return list(stage.tick(1))


def take_turns(
    contestants: dict[str, Callable[[], object]], meet: Callable[[], object]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS + 2):
        for name, run in contestants.items():
            meet()
            begin = time.perf_counter()
            kept = run()
            meet()
            if number >= 2:  # the first two warm up connections and allocator
                times[name].append(time.perf_counter() - begin)
            del kept
    return times


def report(times: dict[str, list[float]]) -> int:
    base = times.pop("dist.gather")
    print(f"dist.gather of {MEGABYTES} MB per rank: {statistics.median(base) * 1e3:.0f} ms")
    table = Table("gather")
    for name, spent in times.items():
        ratios = [ours / theirs for ours, theirs in zip(spent, base, strict=True)]
        table.add(f"{MEGABYTES} MB per rank as {name}", statistics.median(ratios), LIMIT)
    return finish([table])


if __name__ == "__main__":
    sys.exit(measure(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main())
