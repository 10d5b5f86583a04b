"""Runs that begin in the same second have folders of their own."""

import subprocess
import sys

import pytest

import tensortap as tt

STARTED = """
import sys
import tensortap as tt
tt.init
print("ready", flush=True)
sys.stdin.readline()
run = tt.init(sys.argv[1])
tt.dump(int(sys.argv[2]), "x")
print(run)
"""


@pytest.mark.process
def test_processes_that_start_together_get_a_folder_each(tmp_path):
    command = [sys.executable, "-c", STARTED, str(tmp_path / "runs")]
    processes = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for number in range(4)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    runs = [process.communicate(timeout=30)[0].strip() for process in processes]
    assert len(set(runs)) == 4
    assert [tt.Run(run).load("x") for run in runs] == [0, 1, 2, 3]
    assert sorted(map(str, (tmp_path / "runs").iterdir())) == sorted(runs)


def test_runs_of_one_process_within_a_second_are_complete_and_apart(tmp_path):
    runs = []
    for number in range(3):
        runs.append(tt.init(tmp_path))
        tt.dump(number, "x")
    assert len(set(runs)) == 3
    assert [tt.Run(run).load("x") for run in runs] == [0, 1, 2]
    assert all((run / "runtime_info.json").exists() for run in runs)
