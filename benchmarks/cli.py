"""What the command costs before it does anything: processor time beyond that of the bare interpreter."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import tensortap as tt
from harness import Table, finish, tell

CALL = "import sys; from tensortap.cli.main import main; sys.exit(main())"
RUNS, RECORDS = 100, 100


def cpu(command: list[str], environment: dict[str, str]) -> float:
    """Seconds of user and system time of one process."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def write_runs(folder: Path) -> None:
    """Like those of a small training job: a name per layer, some steps, the facts beside them."""
    values = np.random.default_rng(0).normal(size=(8, 8)).astype("f4")
    for number in range(RUNS):
        run = tt.init(str(folder), background=False)
        tt.close()
        sink = tt.RunDirectory(run, stats=number % 2 == 0)
        for record in range(RECORDS):
            sink.write(tt.Record(f"layers.{record % 10}.attn", values, "output", step=record // 10))
        sink.close()


def measured(rounds: int, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Medians of what each takes beyond the interpreter, of rounds in which all take their turn."""
    program = [sys.executable, "-c", CALL]
    commands = {
        "--help": [*program, "--help"],
        "ls --help": [*program, "ls", "--help"],
        f"ls of {RUNS} runs": [*program, "ls", str(folder)],
        f"ls --json of {RUNS} runs": [*program, "ls", str(folder), "--json"],
        "import numpy": [sys.executable, "-c", "import numpy"],
    }
    bare = [sys.executable, "-c", "pass"]
    for command in commands.values():  # compiled and cached before it is measured
        cpu(command, environment)
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(cpu(command, environment) - cpu(bare, environment))
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 5 if parser.parse_args().quick else 15
    table = Table("command line")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # no repository: its state is measured elsewhere
        write_runs(Path(folder) / "runs")
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found = measured(rounds, Path(folder) / "runs", environment)
        os.chdir("/")
    table.add("tensortap --help, beyond the interpreter", found["--help"], 0.25, "s")
    table.add(f"tensortap ls of {RUNS} runs, beyond the interpreter", found[f"ls of {RUNS} runs"], 0.4, "s")
    for name in ("ls --help", f"ls --json of {RUNS} runs", "import numpy"):
        tell(f"{name}, beyond the interpreter", found[name], "s")
    return finish([table])


if __name__ == "__main__":
    sys.exit(main())
