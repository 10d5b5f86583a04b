"""The tracking example does what it says, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "track.py"


def test_the_example_shows_changes_targets_the_first_inf_and_a_model(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "video@28 → shape=torch.Size([8, 24, 32, 3]) | dtype=torch.uint8  ~type" in done.stderr
    assert done.stderr.count("loss@43 →") == 3
    assert "! first Inf: 576 of 4608" in done.stderr
    assert "┌── step 0\n│   ├─ [Tensor] 0@0 →" in done.stderr
    assert list(tmp_path.iterdir()) == []
