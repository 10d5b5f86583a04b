"""The command, the environment and the time are recorded as documented."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.process import timestamp_zone

MOMENT = datetime(2025, 10, 28, 14, 30, 41)


def _offset(name: str | None) -> timedelta | None:
    return MOMENT.replace(tzinfo=timestamp_zone(name)).utcoffset()


def test_shanghai_is_the_default_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORTAP_TZ", raising=False)
    assert _offset(None) == timedelta(hours=8)


def test_the_setting_chooses_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORTAP_TZ", "Asia/Tokyo")
    assert _offset(None) == timedelta(hours=9)
    assert _offset("UTC") == timedelta(0)


def test_local_is_the_zone_of_the_machine() -> None:
    assert _offset("local") == datetime.now().astimezone().utcoffset()


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "Asia", "/etc/localtime", "a\0b"])
def test_an_unknown_zone_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"^no time zone '.*' on this machine; give 'local', 'UTC' or a zone"
    ):
        timestamp_zone(name)


@pytest.mark.process
def test_shanghai_works_without_zone_files() -> None:
    code = (
        "import sys; sys.modules['tzdata'] = None\n"
        "from tensortap.metadata.process import timestamp_zone\n"
        "from datetime import datetime\n"
        "print(datetime(2025, 1, 1, tzinfo=timestamp_zone('Asia/Shanghai')).isoformat())\n"
    )
    environment = {**os.environ, "PYTHONTZPATH": "/no/such/folder"}
    environment.pop("TENSORTAP_TZ", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2025-01-01T00:00:00+08:00"


@pytest.mark.process
def test_the_command_is_quoted_without_the_interpreter(
    write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["train.py", "--name", "a b", "--api-key", "hunter2"]
    monkeypatch.setattr(sys, "argv", argv)
    command = write_run().read("runtime_info.json")["command"]
    assert command["executable"] == sys.executable
    assert command["argv"][:4] == argv[:4]
    assert command["full_command"].startswith("train.py --name 'a b' --api-key '<redacted:")
    assert "hunter2" not in str(command)


def test_every_variable_is_recorded_and_secrets_are_hidden(
    write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("MAX_TOKENS", "5")
    recorded = write_run().read("runtime_info.json")["environment_variables"]
    assert set(recorded) == set(os.environ)
    assert recorded["MAX_TOKENS"] == "5"
    assert recorded["HF_TOKEN"].startswith("<redacted:")


@pytest.mark.parametrize(("policy", "shown"), [("all", "hunter2"), ("names", "<not recorded>")])
def test_the_policy_decides_about_values(
    policy: str, shown: str, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    recorded = write_run(env=policy).read("runtime_info.json")["environment_variables"]
    assert recorded["HF_TOKEN"] == shown


def test_an_unknown_policy_is_refused(write_run: Any) -> None:
    with pytest.raises(ValueError, match=r"env is 'none'; give 'all', 'redact' or 'names'"):
        write_run(env="none")


def test_a_variable_of_odd_bytes_is_kept(write_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "caf\udce9")
    assert write_run().read("runtime_info.json")["environment_variables"]["ODD"] == "caf\udce9"


def test_the_timestamp_is_of_the_creation_and_stays(write_run: Any) -> None:
    run = write_run(timezone="Asia/Shanghai")
    first = run.read("runtime_info.json")["timestamp"]
    assert first.endswith("+08:00")
    assert len(first) == len("2025-10-28T14:30:41+08:00")
    run.metadata.write()
    assert run.read("runtime_info.json")["timestamp"] == first


def test_the_working_directory_is_recorded(
    home: Path, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert write_run().read("runtime_info.json")["working_directory"] == str(home)
