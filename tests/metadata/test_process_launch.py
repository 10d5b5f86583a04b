"""What started a program, where its packages come from, what it was made of and how it ended."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tensortap.metadata.process import is_launcher

pytestmark = pytest.mark.process

BEGIN = "import sys\nfrom pathlib import Path\nfrom tensortap.metadata.collect import Metadata\n"
RECORD = BEGIN + "Metadata(Path('run')).write()\n"


def _run(folder: Path, code: str, *arguments: str, **variables: str) -> Any:
    """The facts of a program after its end."""
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(code)
    command = [sys.executable, "job.py", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, check=False)
    return lambda name: json.loads((folder / "run" / ".tensortap" / name).read_text())


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node", "2", "train.py"],
        ["/env/bin/python3.11", "/env/bin/torchrun", "train.py"],
        ["python", "-u", "-X", "dev", "-m", "torch.distributed.run", "train.py"],
        ["mpirun", "-np", "2", "python", "train.py"],
    ],
)
def test_a_launcher_is_known_by_its_name(command: list[str]) -> None:
    assert is_launcher(command)


@pytest.mark.parametrize("command", [["bash"], ["python", "train.py", "torchrun"], ["python", "-c", "x"], []])
def test_other_programs_are_no_launchers(command: list[str]) -> None:
    assert not is_launcher(command)


def test_the_launcher_above_a_program_is_recorded_without_its_secrets(home: Path) -> None:
    launcher = home / "torchrun"
    launcher.write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'job.py'], check=True)\n")
    (home / "job.py").write_text(RECORD)
    subprocess.run([sys.executable, str(launcher), "--token", "hunter2"], cwd=home, check=True)
    text = (home / "run" / ".tensortap" / "environment.json").read_text()
    (command,) = json.loads(text)["launch"]["launchers"]
    assert command[1:3] == [str(launcher), "--token"]
    assert "hunter2" not in text


def test_runs_are_counted_announced_and_name_their_parent(home: Path) -> None:
    listed = home / "list.txt"
    facts = _run(
        home / "project",
        BEGIN + "for name in ('first', 'run'):\n    Metadata(Path(name)).write()\n",
        TENSORTAP_RUN_LIST=str(listed),
        TENSORTAP_PARENT="/runs/before",
    )("environment.json")
    assert (facts["number"], facts["parent"]) == (1, "/runs/before")
    lines = [line.split("\t") for line in listed.read_text().splitlines()]
    assert [(number, Path(folder).name) for number, _, folder in lines] == [("0", "first"), ("1", "run")]


def test_a_list_that_cannot_be_written_is_noted(home: Path) -> None:
    facts = _run(home / "project", RECORD, TENSORTAP_RUN_LIST=str(home / "no" / "list"))("environment.json")
    assert [problem["fact"] for problem in facts["problems"]] == ["list of runs"]


def test_package_indexes_are_recorded_without_credentials(home: Path) -> None:
    config = home / "pip.conf"
    config.write_text(
        "[global]\nextra-index-url = https://me:s3cret@one.example/simple\n  https://two.example\n"
    )
    facts = _run(
        home / "project",
        RECORD,
        PIP_CONFIG_FILE=str(config),
        PIP_INDEX_URL="https://t0ken@own.example/simple",
    )("environment.json")
    assert {"https://one.example/simple", "https://two.example"} <= set(facts["indexes"]["extra-index-url"])
    assert facts["indexes"]["index-url"][-1] == "https://own.example/simple"
    assert "s3cret" not in json.dumps(facts)


def test_an_exception_that_ended_the_program_is_recorded(home: Path) -> None:
    assert _run(home / "bad", RECORD + "raise KeyError('x')\n")("outcome.json")["error"] == "KeyError"
    good = _run(home / "good", RECORD)("outcome.json")
    assert good["error"] is None
    assert good["seconds"] >= 0


def test_a_forked_child_does_not_end_the_run(home: Path) -> None:
    code = RECORD + "import os\nif not os.fork():\n    raise SystemExit\nos.wait()\n"
    code += "assert not Path('run/.tensortap/outcome.json').exists()\n"
    assert _run(home / "project", code)("outcome.json")["error"] is None


def test_a_run_that_was_deleted_does_not_come_back(home: Path) -> None:
    _run(home / "project", RECORD + "import shutil\nshutil.rmtree('run')\n")
    assert not (home / "project" / "run").exists()


def test_without_a_repository_the_programs_own_files_are_kept(home: Path) -> None:
    folder = home / "plain"
    folder.mkdir()
    (folder / "late.py").write_text("x = 1\n")
    (folder / "unused.py").write_text("x = 1\n")
    (folder / "small.yaml").write_text("lr: 1\n")
    (folder / "secrets.yaml").write_text("password: x\n")
    facts = _run(folder, RECORD + "import late\n", "--config=small.yaml", "secrets.yaml")("code/sources.json")
    assert facts["root"] == str(folder)
    assert facts["files"] == ["job.py", "late.py", "small.yaml"]
    assert [one["path"] for one in facts["skipped"]] == ["secrets.yaml"]
    with tarfile.open(folder / "run" / ".tensortap" / "code" / "sources.tar") as tar:
        assert tar.getnames() == facts["files"]
