"""`tensortap run` of programs that are started oddly, or that do their work in children."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tensortap as tt

pytestmark = pytest.mark.process

TENSORTAP = str(Path(sys.executable).with_name("tensortap"))
WORK = """
import multiprocessing as mp
import numpy as np

def f(x):
    y = x * np.arange(3.0)
    return y

if __name__ == "__main__":
    child = mp.get_context("{}").Process(target=f, args=(2,))
    child.start()
    child.join()
"""


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [TENSORTAP, "run", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    return run


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_of_the_script_are_captured_in_children_of_every_kind(method, watched, tmp_path) -> None:
    (tmp_path / "work.py").write_text(WORK.format(method))
    done = watched("--locals", "__main__:f.y", "--", sys.executable, "work.py")
    (run,) = (tmp_path / "runs").iterdir()
    assert tt.Run(run).load("__main__:f.y").tolist() == [0, 2, 4], done.stderr
    assert done.stderr.count("\n") == 1
    assert "1 record," in done.stderr


def test_a_script_that_names_no_interpreter_is_read_by_sh(watched, tmp_path) -> None:
    (tmp_path / "job.sh").write_text(f"{sys.executable} -c 'print(6 * 7)'\n")
    (tmp_path / "job.sh").chmod(0o755)
    done = watched("-q", "--", "./job.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_program_that_the_system_cannot_start_is_said_and_leaves_no_run(watched, tmp_path) -> None:
    (tmp_path / "job").write_text("#!/no/such/python\n")
    (tmp_path / "job").chmod(0o755)
    done = watched("--", "./job")
    assert done.returncode == 2
    assert "./job cannot be started: the interpreter in its first line does not exist" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["job"]


@pytest.mark.parametrize("option", ["--tap", "--locals"])
def test_a_pattern_that_is_empty_is_a_usage_error(option, watched, tmp_path) -> None:
    done = watched(option, "", "--", sys.executable, "-c", "print('started')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a pattern is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []
