"""The example of a ported model does what it says, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "align.py"


def test_the_example_finds_both_mistakes_and_none_before_they_are_made(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\nWITHIN NOISE\n\n80 pairs:" in done.stdout
    assert "\nequal: weights, inputs; not recorded: " in done.stdout
    assert "note:" not in done.stdout
    both = "model.layers.0.post_attention_layernorm (output), model.layers.1.self_attn (own code)"
    assert f"\nall faults: {both}\n" in done.stdout
    assert done.stdout.endswith("the runs part at: model.layers.0.post_attention_layernorm (LlamaRMSNorm)\n")
