"""The viewer as a thing that is started and ended: from Python, from a notebook, from the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import httpx
import pytest

import tensortap as tt
from tensortap.core.errors import NoRunError, NotServingError


def test_a_closed_viewer_leaves_nothing_behind(folder):
    before = {thread.name for thread in threading.enumerate()}
    viewer = tt.view(folder)
    assert viewer.is_open
    viewer.close()
    viewer.close()
    assert not viewer.is_open
    assert not {thread.name for thread in threading.enumerate()} - before
    with pytest.raises(httpx.TransportError):
        httpx.get(viewer.address, trust_env=False)
    assert repr(viewer) == "<viewer, closed>"


def test_a_page_that_listens_does_not_keep_the_viewer_open(look):
    client = look()
    with client.http.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: hello"
        client.viewer.close()
        assert all(not line.startswith("event: run") for line in lines)


@pytest.mark.parametrize(
    ("things", "start"), [([""], "/"), (["a"], "/run/"), (["a", "b"], "/compare?a="), (["", "a", "b"], "/")]
)
def test_what_is_given_says_which_page_opens(folder, things, start):
    with tt.view(*(folder / thing for thing in things)) as viewer:
        assert viewer.state.start.startswith(start)
        assert f"{viewer.address}{viewer.state.start}" in viewer.url


def test_a_run_and_a_comparison_can_be_given_as_they_are(folder):
    with tt.view(tt.Run(folder / "a")) as viewer:
        assert viewer.state.start.startswith("/run/")
    with tt.view(tt.compare_runs(folder / "a", folder / "b")) as viewer:
        assert len(viewer.state.library.run_ids) == 2


def test_a_notebook_shows_a_link_and_no_frame(folder):
    with tt.view(folder) as viewer:
        shown = viewer._repr_html_()
        assert viewer.address in shown
        assert "iframe" not in shown
        assert viewer.url != viewer.url


def test_what_cannot_be_viewed_is_refused_at_the_door(folder, tmp_path):
    with pytest.raises(NoRunError, match="does not exist"):
        tt.view(tmp_path / "nothing")
    with pytest.raises(NoRunError, match="neither a run nor an HDF5 trace"):
        tt.view(__file__)
    with pytest.raises(NoRunError, match="cannot view a int"):
        tt.view(3)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(NotServingError, match="cannot be had"),
    ):
        tt.view(folder, port=taken.getsockname()[1])
    with pytest.raises(NotServingError, match=r"port 70000 of .* cannot be had"):
        tt.view(folder, port=70000)


@pytest.mark.process
def test_looking_at_values_of_torch_imports_no_torch(folder):
    program = """
        import sys, httpx, tensortap as tt
        with tt.view(sys.argv[1]) as viewer, httpx.Client(base_url=viewer.address, trust_env=False) as client:
            client.get(viewer.url)
            for run in client.get("/api/runs").json()["runs"]:
                base = f"/api/run/{run['id']}"
                for path in ("", "/columns.bin", "/row/0", "/row/0/tile.bin", "/stats.bin?rows=0,1"):
                    assert client.get(base + path).status_code == 200
        print("torch" in sys.modules, "jax" in sys.modules, "plotly" in sys.modules)
    """
    made = """
        import sys, torch, tensortap as tt
        sink = tt.RunDirectory(sys.argv[1])
        sink.write(tt.Record("x", torch.ones(4, 4, dtype=torch.bfloat16)))
        sink.close()
    """
    for text, path in ((made, folder / "torch"), (program, folder)):
        command = [sys.executable, "-c", textwrap.dedent(text), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "False False False\n"


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_when_it_is_told_to(folder, number):
    command = [sys.executable, "-m", "tensortap.cli.main", "view", str(folder), "--no-open"]
    program = "import sys; from tensortap.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "view", str(folder), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        address = job.stdout.readline().strip()
        try:
            answer = httpx.get(address, trust_env=False)
            assert answer.status_code == 303
        finally:
            os.kill(job.pid, number)
        said = job.communicate(timeout=20)[1]
    assert job.returncode == 0, said
    assert "lets one browser in, once" in said


@pytest.mark.process
def test_the_command_speaks_json_and_tells_of_a_used_address(folder):
    program = "import sys; from tensortap.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "view", str(folder), "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        told = json.loads(job.stdout.readline())
        assert (told["schema"], told["runs"]) == ("tensortap.view/1", 2)
        assert httpx.get(told["url"], trust_env=False).status_code == 303
        assert httpx.get(told["url"], trust_env=False).status_code == 403
        assert f"here is another: {told['address']}" in job.stderr.readline()
        job.terminate()
        job.communicate(timeout=20)


def test_a_comparison_that_takes_long_does_not_keep_the_viewer_open(folder):
    viewer, is_let = tt.view(folder), threading.Event()
    viewer.state.comparisons._worker.submit(lambda: is_let.wait(60))
    before = time.monotonic()
    viewer.close()
    assert time.monotonic() - before < 10
    is_let.set()
    viewer.state.comparisons._worker.close(30)  # for the sake of the next test


def test_a_folder_that_is_not_there_is_missing_data(tmp_path, capsys):
    from tensortap.cli.main import main

    assert main(["view", str(tmp_path / "nothing"), "--no-open"]) == 3
    assert "does not exist" in capsys.readouterr().err
