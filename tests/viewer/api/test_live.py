"""A running job on the page: what it offers, what comes of a tap, and that the job stays its own master."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.process

JOB = """
    import sys, torch, tensortap as tt
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tt.listen("shown")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    tt.expose(model)
    print("ready", flush=True)
    import time
    while True:
        tt.tap(model(torch.randn(4, 8)).mean().detach(), "loss")
        tt.tap(torch.ones(3), "in/out/0")
        tt.tap(torch.tensor(float("-inf")), "lowest")
        tt.step()
        time.sleep(0.02)
"""


@contextmanager
def training(folder):
    """A program that trains until it is ended, with its socket in that folder."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(JOB)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as made:
        try:
            assert made.stdout.readline() == "ready\n"
            yield made
        finally:
            made.kill()


@pytest.fixture(scope="module")
def shared():
    """One job for all tests that leave it running, and the folder of its socket."""
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder, training(folder) as made:
        yield made, folder


@pytest.fixture
def job(shared, monkeypatch):
    made, folder = shared
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    return made


def events(stream):
    """What a page hears, as (event, data)."""
    event = ""
    for line in stream.iter_lines():
        if line.startswith("event:"):
            event = line[7:]
        elif line.startswith("data:"):
            yield event, json.loads(line[5:])


def test_a_job_is_listed_and_offers_its_sites(look, job):
    client = look()
    (told,) = client.json("/api/live")["jobs"]
    assert (told["name"], told["pid"], told["ranks"]) == ("shown", job.pid, [0])
    assert client.json("/api/runs")["jobs"] == [told]
    assert client.json(f"/api/live/{told['id']}")["open"]
    places = client.json(f"/api/live/{told['id']}/catalog?q=0")["places"]
    assert "0.weight" in [place["name"] for place in places]
    assert client.json("/api/live/ffff", 404)["error"]["kind"] == "unknown"


def test_a_tap_from_the_page_brings_values_within_a_moment(look, job):
    client = look(allow_actions=True)
    identity = client.json("/api/live")["jobs"][0]["id"]
    base = f"/api/live/{identity}"
    tap = client.post(f"{base}/tap", {"patterns": ["0"], "every": 1})["tap"]
    assert tap["state"] == "armed"
    with client.http.stream("GET", f"{base}/stream") as stream:
        heard = events(stream)
        kind, meters = next(heard)
        assert (kind, meters["open"]) == ("meters", True)
        record = next(data["records"][0] for kind, data in heard if kind == "records")
    assert (record["name"], record["shape"], record["odd"]) == ("0", [4, 16], "")
    value = f"{base}/value/{tap['tap']}/0/0"
    assert client.json(value)["shape"] == [4, 16]
    facts, columns = client.columns(f"{value}/tile.bin")
    assert (facts["height"], facts["width"], len(columns["value"])) == (4, 16, 64)
    assert client.json(f"{value}/history")["steps"]
    assert client.post(f"{base}/untap", {"tap": tap["tap"]}) == {"ended": 1}
    assert client.json(base)["taps"] == []


def test_a_single_number_comes_with_its_value(look, job):
    client = look(allow_actions=True)
    base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
    client.post(f"{base}/tap", {"patterns": ["loss"]})
    with client.http.stream("GET", f"{base}/stream") as stream:
        record = next(data["records"][0] for kind, data in events(stream) if kind == "records")
    assert isinstance(record["value"], float)
    assert client.post(f"{base}/untap", {"tap": "*"}) == {"ended": 1}


def test_what_streams_can_be_recorded_as_a_run(look, job, folder):
    client = look(allow_actions=True)
    base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
    path = client.post(f"{base}/record", {"on": True})["path"]
    client.post(f"{base}/tap", {"patterns": ["0"]})
    with client.http.stream("GET", f"{base}/stream") as stream:
        next(data for kind, data in events(stream) if kind == "records")
    assert client.post(f"{base}/record", {"on": False})["path"] is None
    names = [run["path"] for run in client.json("/api/runs")["runs"]]
    assert path in names


def test_what_the_job_refuses_is_told_in_its_words(look, job):
    client = look(allow_actions=True)
    base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
    told = client.post(f"{base}/tap", {"patterns": ["nowhere.at.all"]}, 404)
    assert "no site 'nowhere.at.all'" in told["error"]["text"]
    assert client.post(f"{base}/tap", {"patterns": "0"}, 400)["error"]["kind"] == "usage"
    assert client.post(f"{base}/watch", {"condition": "absmax(0) >"}, 400)["error"]["text"]
    watched = client.post(f"{base}/watch", {"condition": "absmax(0) > 1e9"})["tap"]
    assert (watched["condition"], watched["state"]) == (True, "armed")


def test_a_number_that_is_not_finite_comes_as_what_it_is(look, job):
    client = look(allow_actions=True)
    base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
    client.post(f"{base}/tap", {"patterns": ["lowest"], "every": 1})
    with client.http.stream("GET", f"{base}/stream") as stream:
        record = next(data["records"][0] for kind, data in events(stream) if kind == "records")
    assert (record["value"], record["odd"]) == ("-inf", "Inf")


def test_a_job_that_ends_says_goodbye_on_the_page(look, runtime):
    with training(runtime) as job:
        client = look()
        base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
        with client.http.stream("GET", f"{base}/stream") as stream:
            heard = events(stream)
            next(heard)
            job.kill()
            assert any(kind == "gone" for kind, _ in heard)


def test_a_name_with_slashes_is_a_name(look, job):
    client = look(allow_actions=True)
    base = f"/api/live/{client.json('/api/live')['jobs'][0]['id']}"
    tap = client.post(f"{base}/tap", {"patterns": ["in/out/0"], "every": 1})["tap"]["tap"]
    with client.http.stream("GET", f"{base}/stream") as stream:
        next(data for kind, data in events(stream) if kind == "records")
    value = f"{base}/value/{tap}/in%2Fout%2F0/0"
    assert client.json(value)["name"] == "in/out/0"
    assert client.columns(f"{value}/tile.bin")[1]["value"].tolist() == [1.0] * 3
    assert client.json(f"{base}/value/{'9' * 5000}/x/0", 404)["error"]["kind"] == "unknown"
