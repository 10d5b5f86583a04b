"""`kill -9` at random moments: what was promised is there, and nothing half-written is listed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt

pytestmark = pytest.mark.process

VICTIM = Path(__file__).with_name("victim.py")
TRIALS = {"npy": 14, "pt": 12, "pack": 12, "background": 12}  # 50 in all
SEED = 20251028
SIZES = (10, 1000, 1, 60_001, 0, 700_000, 300)  # as in victim.py
METADATA = {"runtime_info.json", "packages.json", "git_info.json"}

Nursery = subprocess.Popen[str]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Callable[[str], Nursery]]:
    # A copy, since the metadata would otherwise be of the repository that these tests lie in.
    program = shutil.copy(VICTIM, tmp_path)
    started: list[Nursery] = []

    def start(way: str) -> Nursery:
        process = subprocess.Popen(
            [sys.executable, program, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)


@pytest.mark.parametrize("way", TRIALS)
def test_whatever_was_acknowledged_survives_kill_9_at_any_moment(way, nursery, tmp_path):
    chance = random.Random(f"{SEED} {way}")
    print(f"seed {SEED}, {TRIALS[way]} kills of {way}")
    process = nursery(way)
    acknowledged = 0
    for trial in range(TRIALS[way]):
        run, promised = kill_one(process, f"{way} {tmp_path}/{trial}", chance)
        check_run(run, promised, way)
        acknowledged += len(promised)
    assert acknowledged >= TRIALS[way]


def kill_one(process: Nursery, order: str, chance: random.Random) -> tuple[Path, range]:
    """Let a child dump, kill it somewhere in the middle; its run and the numbers it was promised."""
    process.stdin.write(order + "\n")
    _, pid, path = process.stdout.readline().split()
    promised = 0
    for _ in range(chance.randint(1, 20)):
        promised = int(process.stdout.readline().split()[1]) + 1
    time.sleep(chance.uniform(0, 0.003))  # not to wait for anything: so that the kill falls anywhere
    os.kill(int(pid), signal.SIGKILL)
    while (line := process.stdout.readline()) != "ended\n":
        promised = int(line.split()[1]) + 1
    return Path(path), range(promised)


def check_run(path: Path, promised: range, way: str) -> None:
    run = tt.Run(path)
    assert run.problems == []
    assert {f"v{number}" for number in promised} <= set(run.names)
    for stored in run:
        check_content(np.asarray(stored.load()), int(stored.name[1:]))
    check_files(path, way, len(promised))


def check_files(path: Path, way: str, count: int) -> None:
    """Every plain file, listed or not, is whole for the libraries it is meant for; there is nothing else."""
    suffix = ".pt" if way == "pt" else ".npy"
    files = [file for file in path.iterdir() if file.name not in METADATA and file.name != ".tensortap"]
    assert len(files) >= (0 if way == "pack" else count)
    for file in files:
        assert re.fullmatch(rf"v\d+\{suffix}", file.name), f"litter: {file.name}"
        check_content(read_plainly(file), int(file.stem[1:]))


def read_plainly(file: Path) -> np.ndarray:
    if file.suffix == ".npy":
        return np.load(file)
    import torch

    return torch.load(file, weights_only=True).numpy()


def check_content(found: np.ndarray, number: int) -> None:
    expected = np.arange(SIZES[number % len(SIZES)], dtype=np.float64) + number
    np.testing.assert_array_equal(found, expected, err_msg=f"v{number}")
