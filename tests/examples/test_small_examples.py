"""The examples that need no test of their own: each runs as it is typed, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("save_and_compare.py", ["experiments"], "equal: False"),
        ("capture.py", [], "the outputs of all layers: (3, 2, 5, 16)"),
        ("trace.py", ["trace.h5"], "1.forward.scores"),
        ("live.py", [], "<Record 'loss'"),
        ("distributed.py", ["experiments"], "put together along the last axis: (3, 8)"),
        ("extend.py", [], "0 at step 1"),
    ],
)
def test_an_example_says_what_it_promises(name: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
