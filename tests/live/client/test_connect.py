"""Jobs on other hosts: the very commands that are run, and a real connection where there is an ssh server."""

import json
import socket
import subprocess
from dataclasses import asdict

import pytest

import tensortap as tt
from tensortap.live.client.connect import choose_job, forward_command, list_command, split_address
from tensortap.live.discovery import Job, parse_job

JOB = Job("exp1", 12, 0, 1, "a", "/run/user/1000/tensortap/exp1-r0-12.sock", 1.0)


@pytest.mark.parametrize(
    ("address", "host", "name"),
    [
        ("ssh://gpu7/exp1", ["--", "gpu7"], "exp1"),
        ("ssh://me@gpu7:2222/exp%201", ["-p", "2222", "--", "me@gpu7"], "exp 1"),
        ("ssh://gpu7", ["--", "gpu7"], ""),
    ],
)
def test_an_address_names_a_host_and_a_job(address, host, name):
    assert split_address(address) == (host, name)


@pytest.mark.parametrize(
    "address", ["ssh://-oProxyCommand=evil/x", "ssh://a b/x", "ssh:///x", "ssh://$(id)/x"]
)
def test_a_host_that_could_be_an_option_or_a_command_is_refused(address):
    with pytest.raises(ValueError, match="ssh://host/name"):
        split_address(address)


def test_sockets_are_forwarded_and_nothing_is_run():
    command = forward_command(["--", "gpu7"], [("/tmp/x/0.sock", JOB.socket), ("/tmp/x/1.sock", "/b.sock")])
    assert command[:3] == ["ssh", "-N", "-T"]
    forwards = [command[at + 1] for at, word in enumerate(command) if word == "-L"]
    assert forwards == [f"/tmp/x/0.sock:{JOB.socket}", "/tmp/x/1.sock:/b.sock"]
    assert command[-2:] == ["--", "gpu7"]
    assert "BatchMode=yes" in command
    assert "ExitOnForwardFailure=yes" in command


def test_the_other_side_needs_nothing_but_a_shell_to_list_its_jobs(runtime):
    (runtime / "tensortap").mkdir(mode=0o700)
    (runtime / "tensortap" / "exp1.json").write_text(json.dumps(asdict(JOB)))
    script = list_command(["--", "gpu7"])[-1]
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    assert JOB in [parse_job(line) for line in told.splitlines()]


def test_the_job_of_an_address_is_the_newest_of_its_name():
    newer = Job("exp1", 13, 0, 1, "b", "/x.sock", 2.0)
    assert choose_job("exp1", [newer, JOB]) == [newer]
    assert choose_job("12", [newer, JOB]) == [JOB]


def test_a_host_that_does_not_answer_is_told_with_what_to_try():
    with pytest.raises(tt.NotServingError, match=r"ssh to .* failed: .*; try `ssh "):
        tt.attach("ssh://tensortap-no-such-host.invalid/x")


def test_a_job_is_reached_through_a_real_server(job):
    try:
        socket.create_connection(("127.0.0.1", 22), timeout=1).close()
        subprocess.run(
            ["ssh", "-o", "BatchMode=yes", "--", "localhost", "true"],
            check=True,
            capture_output=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"no ssh server on this host lets this user in: {error}"
        print(reason)
        pytest.skip(reason)
    with tt.attach("ssh://localhost/here") as session:
        tapped = session.tap("0", timeout=0)
        job.step()
        assert tapped.next(timeout=10).name == "0"
