"""`tensortap jobs` and `tensortap attach`, as they are typed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.cli.main import main

JOB = """
import time, tensortap as tt
tt.listen("counting")
print("ready", flush=True)
while True:
    tt.step()
    tt.tap(2.5, "loss")
    time.sleep(0.002)
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def counting() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate(timeout=20)


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from tensortap.cli.main import main; sys.exit(main())",
        *arguments,
    ]


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    assert "attach" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_jobs_notes_that_there_is_none(capsys, options):
    assert main(["jobs", *options]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "tensortap jobs: no job listens; tt.listen() in a program opens it\n"


@pytest.mark.process
def test_jobs_lists_them_for_people_and_for_programs(capsys, counting):
    assert main(["jobs"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == ["name", "pid", "rank", "for", "program"]
    assert f"counting  {counting.pid}" in table
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == counting.pid


def test_attach_without_a_job_says_how_to_open_one(capsys):
    assert main(["attach", "nothing"]) == 3
    assert capsys.readouterr().err == (
        "tensortap attach: no job listens; tt.listen() in a program, or TENSORTAP_LIVE=1, opens it\n"
    )


@pytest.mark.process
def test_attach_shows_rate_losses_lag_and_overhead(capsys, counting):
    arguments = ["attach", "counting", "--tap", "loss", "--interval", "0.6", "--times", "2"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for word in ("counting  step ", "steps/s", "records", "lost", "lag", "overhead", "% of step time"):
        assert word in lines[1]
    assert "mean=2.5" in lines[2]


@pytest.mark.process
def test_ctrl_c_ends_it_and_the_job_goes_on(counting):
    process = subprocess.Popen(command("attach", "--interval", "0.1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("counting")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    process.communicate()
    assert [job.pid for job in tt.jobs()] == [counting.pid]


@pytest.mark.process
def test_the_end_of_the_job_ends_it_with_a_sentence(counting):
    process = subprocess.Popen(command("attach", "--interval", "0.1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("counting")
    os.kill(counting.pid, signal.SIGKILL)
    begun = time.monotonic()
    out, _ = process.communicate(timeout=10)
    assert time.monotonic() - begun < 5
    assert "gone without a word" in out.splitlines()[-1]
    assert process.returncode == 1
