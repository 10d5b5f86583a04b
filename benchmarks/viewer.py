"""What answers of the viewer take, in processor time: columns and queries of many captures, tiles of much.

`python benchmarks/viewer.py [captures] [megabytes]`: 100,000 captures, a tensor of 1,024 MB unless told."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np

import many_captures
import tensortap as tt
from harness import Table, finish, tell

ROUNDS = 9
MS = 1000.0
QUERIES = (
    "attn.q step>137",
    "layers.1*.attn.*",
    "shape:[4,8] -step:1..5",
    "module:layers.13",
    "q|k|v dtype:f32",
)
table = Table("the viewer")


def large(folder: Path, megabytes: int) -> None:
    """A square tensor that is written once, row after row."""
    side = int((megabytes * (1 << 20) / 4) ** 0.5)
    draw = np.random.default_rng(0)
    value = np.empty((side, side), np.float32)
    for start in range(0, side, 1024):
        value[start : start + 1024] = draw.standard_normal((min(1024, side - start), side), np.float32)
    sink = tt.RunDirectory(folder)
    sink.write(tt.Record("large", value))
    sink.close()


def median(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Of server and client together: both are in this process."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return MS * statistics.median(times)


def many(folder: Path, count: int) -> None:
    many_captures.write(folder, count)
    assert tt.view  # imported before the clock runs
    start = time.process_time()
    with (
        tt.view(folder) as viewer,
        httpx.Client(base_url=viewer.address, timeout=60, trust_env=False) as client,
    ):
        client.get(viewer.url)
        run = client.get("/api/runs").json()["runs"][0]["id"]
        client.get(f"/api/run/{run}/columns.bin")
        table.add(
            f"{count:,} captures: from nothing to the columns", MS * (time.process_time() - start), 1500, "ms"
        )
        tell("the same again: columns", median(lambda: client.get(f"/api/run/{run}/columns.bin")), "ms")
        for query in QUERIES:
            taken = median(lambda query=query: client.get(f"/api/run/{run}/rows.bin", params={"q": query}))
            table.add(f"query {query!r}", taken, 60, "ms")


def tiles(folder: Path, megabytes: int) -> None:
    large(folder, megabytes)
    with (
        tt.view(folder) as viewer,
        httpx.Client(base_url=viewer.address, timeout=60, trust_env=False) as client,
    ):
        client.get(viewer.url)
        base = f"/api/run/{client.get('/api/runs').json()['runs'][0]['id']}/row/0"
        levels = 7
        for level in range(levels):
            address = f"{base}/tile.bin?lod={level}"
            table.add(
                f"the first tile of level {level} of {megabytes} MB",
                median(lambda at=address: client.get(at), 1),
                150,
                "ms",
            )
            tell("  and again", median(lambda at=address: client.get(at)), "ms")
        tell("range", median(lambda: client.get(f"{base}/range"), 3), "ms")
        tell("histogram", median(lambda: client.get(f"{base}/hist"), 3), "ms")


if __name__ == "__main__":
    captures = int(sys.argv[1]) if len(sys.argv) > 1 else many_captures.COUNT
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    with tempfile.TemporaryDirectory() as made:
        many(Path(made) / "many", captures)
        tiles(Path(made) / "large", size)
    sys.exit(finish([table]) > 0)
