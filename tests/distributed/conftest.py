"""Start the ranks of a job as real processes that meet on loopback only."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Every rank prints one line of JSON, its report; `tell` is how.
PRELUDE = """
import json, os, sys
from pathlib import Path
import numpy as np
import tensortap as tt

base, meeting = Path(sys.argv[1]), sys.argv[2]

def tell(**facts):
    os.write(1, (json.dumps(facts, default=str) + "\\n").encode())

def join_group():
    global torch, dist
    import torch
    import torch.distributed as dist
    rank, world = int(os.environ["TEST_RANK"]), int(os.environ["TEST_WORLD"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    return rank

def leave_group():
    dist.barrier()
    dist.destroy_process_group()
    # Models and meshes still hold the group, and a thread of it that asks for the interpreter while that ends
    # aborts the process: it ends before.
    os._exit(0)
"""

Report = dict[str, Any]
HANGS = 300  # seconds: no job here takes a tenth of that, however busy the machine is


@pytest.fixture(scope="session")
def write_program() -> Callable[[Path, str], Path]:
    def write(folder: Path, code: str) -> Path:
        program = folder / "program.py"
        program.write_text(PRELUDE + textwrap.dedent(code))
        return program

    return write


@pytest.fixture(scope="session")
def start_ranks(write_program) -> Callable[..., list[subprocess.Popen[str]]]:
    """Start one process per rank; `variables(rank)` is what its launcher would set."""

    def start(folder: Path, code: str, world: int, variables: Any = None) -> list[subprocess.Popen[str]]:
        program = write_program(folder, code)
        command = [sys.executable, "-W", "error", str(program), str(folder / "runs"), str(folder / "meeting")]
        return [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**quiet_environment(rank, world), **(variables(rank) if variables else {})},
            )
            for rank in range(world)
        ]

    return start


@pytest.fixture(scope="session")
def run_ranks(start_ranks) -> Callable[..., list[Report]]:
    """Start the ranks, wait for all of them, and return their reports in order."""

    def run(folder: Path, code: str, world: int, variables: Any = None) -> list[Report]:
        processes = start_ranks(folder, code, world, variables)
        try:
            answers = [process.communicate(timeout=HANGS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, (_, errors) in zip(processes, answers, strict=True):
            assert process.returncode == 0, errors
        return [json.loads(report) for report, _ in answers]

    return run


@pytest.fixture
def torchrun(write_program, tmp_path) -> Callable[..., list[Report]]:
    def run(code: str, world: int, *options: str) -> list[Report]:
        program = write_program(tmp_path, code)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", *options]
        done = subprocess.run(
            [*command, str(program), str(tmp_path / "runs"), str(tmp_path / "meeting")],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**quiet_environment(), "OMP_NUM_THREADS": "1"},
            timeout=HANGS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        reports = [json.loads(line) for line in done.stdout.splitlines()]
        return sorted(reports, key=lambda report: report["rank"])

    return run


def quiet_environment(rank: int = 0, world: int = 1) -> dict[str, str]:
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "OMPI_"))},
        "GLOO_SOCKET_IFNAME": "lo",
        "TEST_RANK": str(rank),
        "TEST_WORLD": str(world),
    }
