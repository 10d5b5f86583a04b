"""The example of running a run again does what it says, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "reproduce.py"


def test_the_example_is_bitwise_equal_and_finds_the_planted_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    same, changed = done.stdout.split("\n-- and with one line changed")
    assert "BITWISE EQUAL: all " in same
    assert "DIFFERENT: the runs part at 1\n" in changed
    assert list(tmp_path.glob("tmp*")) == []
