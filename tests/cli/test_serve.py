"""`tensortap serve` shows what arrives, records it, and ends with a summary."""

import os
import signal
import socket
import subprocess
import sys

import pytest

import tensortap as tt
from tensortap.core.record import Record
from tensortap.sinks.stream import Stream


@pytest.fixture
def serve(tmp_path):
    """Start the command; the first line it prints has come."""
    started = []

    def start(*arguments):
        code = "import sys; from tensortap.cli.main import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "serve", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_values_are_shown_as_they_arrive_recorded_and_summed_up(serve, tmp_path):
    process = serve("--port", "0", "--to", "runs")
    address = process.stdout.readline().split()[2].rstrip(";")
    stream = Stream(address)
    assert stream.send(Record("loss", 0.25)).wait(10)
    assert "loss  0.25  (id 1)" in process.stdout.readline()
    stream.close()
    os.kill(process.pid, signal.SIGTERM)
    rest, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    assert "1 value of 1 name" in rest
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    assert tt.Run(run).load("loss") == 0.25


def test_a_taken_port_is_told_in_a_sentence(serve):
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = serve("--port", str(other.getsockname()[1]))
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert errors.startswith("tensortap serve: port ")
    assert len(errors.splitlines()) == 1


def test_another_interface_without_a_token_is_refused(serve):
    process = serve("--port", "0", "--host", "0.0.0.0")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "needs a token" in errors
