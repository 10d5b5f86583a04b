"""What live sessions cost a job: a tap nobody asked for, the first tensor, and a reader that is slow.

    python benchmarks/live.py

The job is a process of its own; with and without a session take turns in it, in the same run.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from typing import Any

from harness import Table, finish, medians, tell

CALLS = 20_000
ROUNDS = 15
PHASES, PHASE_SECONDS = 8, 1.5
READER_SECONDS = 0.2  # for each frame
BUDGET_MB = 64
ELEMENTS = 4 << 20  # 16 MB of float32


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        os.environ["TENSORTAP_LIVE_MB"] = str(BUDGET_MB)
        tables = [measure_calls(), *measure_job()]
    return finish(tables)


def measure_calls() -> Table:
    """The cost of `tt.tap` in this process, with a session in another one."""
    import torch

    import tensortap as tt

    table, value = Table("a tap that nobody asked for"), torch.zeros(4)
    tap = tt.tap

    def tapped() -> None:
        for _ in range(CALLS):
            tap(value, "x")

    def per_call() -> float:
        return medians({"tapped": tapped}, ROUNDS)["tapped"] / CALLS * 1e6

    endpoint: Any = tt.listen("calls")
    table.add("tap call, listening, no session", per_call(), 0.5, "us")
    with other_session("calls"):
        table.add("tap call, a session attached, not tapped", per_call(), 1.0, "us")
        stepping = medians({"steps": lambda: [tt.step() for _ in range(CALLS)]}, ROUNDS)["steps"]
        tell("tt.step(), a session attached, nothing asked", stepping / CALLS * 1e6, "us")
    endpoint.close()
    return table


class other_session:
    """A session in a process of its own, which only looks on."""

    def __init__(self, job: str) -> None:
        code = f"import sys, tensortap as tt; s = tt.attach({job!r}); print('ready', flush=True); input()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def __exit__(self, *error: object) -> None:
        self._process.communicate("\n", timeout=20)


def measure_job() -> list[Table]:
    job = subprocess.Popen(
        [sys.executable, __file__, "job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    try:
        first = measure_first()
        return [first, measure_slow(job)]
    finally:
        job.kill()
        job.communicate()


def measure_first() -> Table:
    """From `attach` to the first value, beyond one step."""
    import tensortap as tt

    table, beyond, after_tap = Table("the first tensor"), [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with tt.attach("bench") as session:
            asked = time.perf_counter()
            record = session.tap("small", timeout=0).next(timeout=20)
            end = time.perf_counter()
            step = 1 / session.status["rate"] if session.status["rate"] else 0.05
            assert record.value.shape == (8,)
        beyond.append(end - start - step)
        after_tap.append(end - asked - step)
    table.add("attach to first tensor, beyond one step", statistics.median(beyond) * 1e3, 50, "ms")
    tell("of that, tap to first tensor", statistics.median(after_tap) * 1e3, "ms")
    return table


def measure_slow(job: Any) -> Table:
    """16 MB of every step asked for by a reader that takes 0.2 s for each."""
    table = Table("a slow reader")
    phase(job, "before", None)  # no session has been there: what the job takes by itself
    for number in range(PHASES):
        for label, pause in (("alone", None), ("slow", READER_SECONDS), ("again", None), ("quick", 0.0)):
            phase(job, f"{label} {number}", pause)
    job.stdin.write("end\n")
    told = json.loads(job.stdout.readline())
    for clock in ("wall", "cpu"):
        tell(f"step without a reader, a second time, x alone ({clock})", ratio(told, "again", clock))
        table.add(f"step with a slow reader of 16 MB, x alone ({clock})", ratio(told, "slow", clock), 1.05)
        tell(
            f"step with a quick reader that wants 16 MB of each, x alone ({clock})",
            ratio(told, "quick", clock),
        )
    slow = max(found["memory"] for name, found in told.items() if name.startswith("slow"))
    beyond = (slow - told["before"]["memory"]) / (BUDGET_MB << 20)
    table.add("memory with a slow reader, beyond that before, x the budget", beyond, 1.1)
    late = statistics.median(told[f"slow {number}"]["late"] for number in range(PHASES))
    memcpy = told["before"]["memcpy"]
    table.add(
        "99th percentile of a tap with a slow reader, beyond one memcpy", (late - memcpy) * 1e3, 5, "ms"
    )
    tell("a step alone", told["alone 0"]["wall"] * 1e3, "ms")
    tell("one memcpy of 16 MB", memcpy * 1e3, "ms")
    return table


def ratio(told: dict[str, dict[str, float]], label: str, clock: str) -> float:
    """The median over the rounds, each against what the job took without a reader before and after it."""
    found = []
    for number in range(PHASES):
        alone, again = told[f"alone {number}"][clock], told[f"again {number}"][clock]
        base = alone if label == "again" else (alone + again) / 2
        found.append(told[f"{label} {number}"][clock] / base)
    return statistics.median(found)


def phase(job: Any, label: str, pause: float | None) -> None:
    reader = None if pause is None else Reader(pause)
    time.sleep(0.2)
    job.stdin.write(label + "\n")
    time.sleep(PHASE_SECONDS)
    job.stdin.write("between\n")
    if reader is not None:
        reader.close()


class Reader:
    """Takes a frame, pauses, and only then takes the next: the job sees a session that is slow."""

    def __init__(self, pause: float) -> None:
        from tensortap.live.discovery import jobs
        from tensortap.transport.connection import connect
        from tensortap.transport.frames import FrameKind

        self._kinds, self._pause = FrameKind, pause
        self._link = connect(jobs()[0].socket)
        self._link.send(FrameKind.TAP, {"id": 1, "tap": 1, "patterns": ["big"]})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._link.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                frame = self._link.receive()
                if frame.kind is self._kinds.DATA:
                    time.sleep(self._pause)
                elif frame.kind is self._kinds.CREDIT:
                    self._link.send(self._kinds.CREDIT, {"tap": 1})
        except OSError:
            return


def run_job() -> int:
    import torch

    import tensortap as tt

    torch.set_num_threads(1)
    tt.listen("bench")
    weights, big, small = torch.randn(512, 512), torch.randn(ELEMENTS), torch.zeros(8)
    label, memory = ["between"], defaultdict(int)
    walls, cpus, taps = defaultdict(list), defaultdict(list), defaultdict(list)
    target = torch.zeros(ELEMENTS)
    memcpy = medians({"copy": lambda: target.copy_(big)}, ROUNDS)["copy"]

    def follow() -> None:
        for line in sys.stdin:
            label[0] = line.strip()

    threading.Thread(target=follow, daemon=True).start()
    print("ready", flush=True)
    while label[0] != "end":
        now, start, cpu = label[0], time.perf_counter(), time.thread_time()
        tt.step()
        for _ in range(4):
            weights @ weights
        tapped = time.perf_counter()
        tt.tap(big, "big")
        taps[now].append(time.perf_counter() - tapped)
        tt.tap(small, "small")
        walls[now].append(time.perf_counter() - start)
        cpus[now].append(time.thread_time() - cpu)
        if len(walls[now]) % 10 == 0:
            memory[now] = max(memory[now], resident())
    told = {name: figures(walls[name], cpus[name], taps[name]) for name in walls}
    told = {name: {**found, "memory": memory[name], "memcpy": memcpy} for name, found in told.items()}
    print(json.dumps(told), flush=True)
    return 0


def figures(walls: list[float], cpus: list[float], taps: list[float]) -> dict[str, float]:
    late = sorted(taps)[int(len(taps) * 0.99)]
    return {"wall": statistics.fmean(walls), "cpu": statistics.fmean(cpus), "late": late}


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(run_job() if sys.argv[1:] == ["job"] else main())
