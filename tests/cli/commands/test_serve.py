"""`tensortap serve` shows what arrives, records it, and ends with a summary."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import tensortap as tt
from tensortap.cli.main import main
from tensortap.core.record import Record
from tensortap.sinks.stream import Stream

pytestmark = pytest.mark.process


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


def test_programs_get_an_object_for_each_event(serve):
    process = serve("--port", "0", "--json")
    listening = json.loads(process.stdout.readline())
    assert (listening["schema"], listening["event"]) == ("tensortap.serve/1", "listening")
    stream = Stream(listening["address"])
    for record in (Record("loss", float("nan"), step=3), Record("w", np.ones((2, 3), "f4")), Record("w", {})):
        assert stream.send(record).wait(10)
    stream.close()
    told = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [(one["event"], one["id"], one["name"]) for one in told] == [
        ("value", 1, "loss"),
        ("value", 2, "w"),
        ("value", 3, "w"),
    ]
    assert [(one["dtype"], one["shape"], one["value"], one["step"]) for one in told] == [
        (None, None, "NaN", 3),
        ("float32", [2, 3], None, 0),
        (None, None, None, 0),
    ]
    os.kill(process.pid, signal.SIGTERM)
    rest, errors = process.communicate(timeout=10)
    end = json.loads(rest)
    assert (process.returncode, end["event"], end["dropped"]) == (0, "end", 0)
    assert end["names"] == [
        {"name": "loss", "values": 1, "gone": 0},
        {"name": "w", "values": 2, "gone": 0},
    ]
    assert errors.startswith("listening at ")


def test_what_arrived_before_the_end_is_told_before_it(serve):
    process = serve("--port", "0", "--json")
    stream = Stream(json.loads(process.stdout.readline())["address"])
    assert all(one.wait(10) for one in [stream.send(Record("x", number)) for number in range(50)])
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=10)
    stream.close()
    told = [json.loads(line) for line in rest.splitlines()]
    assert [one.get("value") for one in told] == [*range(50), None]


def test_a_taken_port_is_told_in_a_sentence(serve):
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = serve("--port", str(other.getsockname()[1]))
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (3, "")
    assert errors.startswith("tensortap serve: port ")
    assert len(errors.splitlines()) == 1


def test_another_interface_without_a_token_is_refused(serve):
    process = serve("--port", "0", "--host", "0.0.0.0")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4
    assert "needs a token" in errors


@pytest.mark.parametrize(
    "typed", [["serve", "--memory", "x"], ["serve", "--port", "65536"], ["attach", "--every", "0"]]
)
def test_what_cannot_be_meant_is_a_wrong_argument(typed, capsys):
    assert main(typed) == 2
    assert capsys.readouterr().err.startswith(f"tensortap {typed[0]}: ")
