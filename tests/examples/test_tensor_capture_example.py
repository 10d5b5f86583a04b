"""The TensorCapture example does what it says, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_capture.py"


@pytest.fixture
def run(tmp_path):
    """Run a sub-command in an empty folder; its lines, by their first word."""

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return {line.split()[0]: line for line in done.stdout.splitlines() if line}

    return run


def test_the_demo_puts_split_tensors_together_and_finds_them_equal(run, tmp_path):
    lines = run("demo")
    assert "[4, 16]" in lines["up.outputs"]
    assert "shard(1)" in lines["up.outputs"]
    assert "[4, 32]" in lines["up.outputs"]
    assert "replicate" in lines["down.outputs"]
    assert "[4, 32]" in lines["after_activation"]
    assert "every" in lines
    assert list(tmp_path.iterdir()) == []


def test_a_compiled_model_answers_with_every_slot(run, tmp_path):
    run("compile", "--output-path=exported/", "--max-tensors=3")
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["model.pt2"]
    lines = run("inference", "--model-path=exported/")
    captured = [name for name in lines if name not in ("output", "tensor")]
    assert captured == ["up.outputs", "down.outputs", "after_activation", "after_residual", "placeholder_2"]
    assert lines["placeholder_2"].endswith("not filled")


def test_a_missing_model_is_named(tmp_path):
    command = [sys.executable, str(EXAMPLE), "inference", "--model-path=nowhere"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2
    assert "no model.pt2 in nowhere; run compile --output-path nowhere first" in done.stderr
