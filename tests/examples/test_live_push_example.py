"""The live example: a job and a session side by side, as a user starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[2] / "examples" / "live_push.py"


def test_the_session_sees_the_weights_of_the_running_job(tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    settings = {**os.environ, "THING_PORT": str(port), "OMP_NUM_THREADS": "1"}
    options = {"env": settings, "cwd": tmp_path, "text": True, "stdout": subprocess.PIPE}
    session = subprocess.Popen([sys.executable, str(EXAMPLE), "session"], **options)
    try:
        assert "listening at" in session.stdout.readline()
        subprocess.run([sys.executable, str(EXAMPLE), "job"], check=True, timeout=60, **options)
        out, _ = session.communicate(timeout=30)
    finally:
        session.kill()
        session.communicate()
    assert "the weight is now [[0.9" in out or "the weight is now [[1.0" in out
    assert "40 values of 2 names" in out
