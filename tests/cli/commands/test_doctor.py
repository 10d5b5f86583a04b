"""`tensortap doctor` says what is there, what is missing, and the line that installs it."""

import subprocess
import sys

import pytest

import tensortap as package

pytestmark = pytest.mark.usefixtures("runtime")


def lines(said):
    return {(line["topic"], line["name"]): line for line in said.json["lines"]}


def test_what_is_installed_is_told_with_its_version(tensortap):
    said = tensortap("doctor")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0].split()[:4] == ["program", "tensortap", package.__version__, "in"]
    told = lines(tensortap("doctor", "--json"))
    assert told["extra", "cli"]["text"].startswith("click ")
    assert told["kernels", "compiled"]["text"]
    assert "listening" in told["live", "jobs"]["text"]
    assert "free in" in told["disk", "here"]["text"]


@pytest.mark.process
def test_a_missing_extra_is_told_with_its_pip_line_and_is_no_fault():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['xxhash'] = None\n"
        "from tensortap.cli.main import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch missing: pip install 'tensortap[torch]'" in done.stdout
    assert "xxhash missing: pip install 'tensortap[fast]'" in done.stdout


@pytest.mark.process
def test_torch_is_not_imported_to_know_its_version():
    code = "import sys; from tensortap.cli.main import main; main(['doctor']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_what_is_set_is_told_but_no_secret(tensortap, monkeypatch):
    monkeypatch.setenv("THING_TOKEN", "hunter2hunter2")
    monkeypatch.setenv("THING_PORT", "4000")
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    said = tensortap("doctor", "--json")
    assert "hunter2" not in said.out
    told = lines(said)
    assert told["setting", "THING_TOKEN"]["text"] == "set"
    assert told["setting", "THING_PORT"]["text"] == "4000"
    assert "raised" in told["setting", "strict"]["text"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TENSORTAP", "0", "TENSORTAP=0: every call returns at once"),
        ("TENSORTAP_TZ", "Mars/North", "no time zone 'Mars/North'"),
    ],
)
def test_what_is_in_the_way_is_marked_and_the_code_is_one(tensortap, monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    said = tensortap("doctor")
    assert said.code == 1
    (marked,) = [line for line in said.out.splitlines() if line.startswith("! ")]
    assert told in marked


def test_a_folder_of_sockets_that_others_can_write_to_is_in_the_way(tensortap, runtime):
    (runtime / "tensortap").mkdir()
    (runtime / "tensortap").chmod(0o777)
    said = tensortap("doctor")
    assert said.code == 1
    assert "mode 700" in said.out


def test_listening_programs_are_named(tensortap):
    endpoint = package.listen("alive and well")
    told = lines(tensortap("doctor", "--json"))["live", "jobs"]["text"]
    endpoint.close()
    assert "alive and well" in told
