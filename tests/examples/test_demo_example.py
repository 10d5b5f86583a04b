"""The demo names the guilty module, run as `make demo` runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_calls_another_kernel_noise_and_names_the_module_with_the_bug(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DEMO)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    harmless, _, planted = done.stdout.partition("-- the same kernel")
    assert "WITHIN NOISE\n" in harmless
    assert "equal: weights, inputs" in planted
    assert planted.endswith("the guilty module: model.layers.3.self_attn\n")
    assert len(done.stdout.splitlines()) <= 40
