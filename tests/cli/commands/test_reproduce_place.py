"""`tensortap reproduce` of programs that leave their folder, or whose script lies elsewhere or nowhere."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.proof import sampled

pytestmark = pytest.mark.process

TENSORTAP = str(Path(sys.executable).with_name("tensortap"))
LEAVES = "import os, tempfile\nos.chdir(tempfile.gettempdir())\n"
NUMPY = "import numpy as np\ndef f():\n    y = np.arange(4.0)\n    return y\nf()\n"
DUMPS = "import tensortap as tt, numpy as np\ntt.init(RUNS)\ntt.dump(np.arange(3.0), 'x')\n"
MODEL = """
import torch
torch.manual_seed(0)
torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2))(torch.ones(1, 2))
"""
LOCALS = ("--locals", "__main__:f.y")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration, key or temporary folder of the machine reaches a program."""
    (tmp_path / "gitconfig").write_text("[user]\n\tname = A B\n\temail = a@b\n")
    (tmp_path / "tmp").mkdir()
    for name, value in {
        "GIT_CONFIG_GLOBAL": tmp_path / "gitconfig",
        "GIT_CONFIG_NOSYSTEM": 1,
        "XDG_STATE_HOME": tmp_path / "state",
        "TMPDIR": tmp_path / "tmp",
        "PYTHONDONTWRITEBYTECODE": 1,
        "OMP_NUM_THREADS": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder with files; a repository that has committed them, if asked for."""

    def make(name: str, *, is_repository: bool = False, **files: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        for file, text in files.items():
            (place / f"{file}.py").write_text(text)
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", "x"]):
            if is_repository:
                subprocess.run(["git", *words], cwd=place, check=True)
        return place

    return make


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Run something in a folder; the run that it made."""

    def recorded(where: Path, *command: str, **options: Any) -> Path:
        subprocess.run(command, cwd=where, check=True, capture_output=True, timeout=100, **options)
        (run,) = (one for one in (tmp_path / "runs").iterdir() if not one.name.startswith("."))
        return run

    return recorded


def watch(*options: str, to: Path) -> list[str]:
    return [TENSORTAP, "run", *options, "--to", str(to / "runs"), "--", sys.executable]


@pytest.mark.parametrize(
    ("options", "code", "is_repository"),
    sampled(
        [(LOCALS, NUMPY, False), (("--tap", "**"), MODEL, False), (("--tap", "**"), MODEL, True)],
        [(LOCALS, NUMPY, False), (("--tap", "**"), MODEL, True)],
    ),
    ids=["plain", "model", "model in git"],
)
def test_a_watched_program_that_leaves_its_folder_is_reproduced(
    options: tuple[str, ...], code: str, is_repository: bool, folder, record, tensortap, tmp_path: Path
) -> None:
    project = folder("project", is_repository=is_repository, job=LEAVES + code)
    run = record(project, *watch(*options, to=tmp_path), "job.py")
    said = tensortap("reproduce", run, "--verify")
    assert (said.code, said.out.partition(":")[0]) == (0, "BITWISE EQUAL"), said.err


@pytest.mark.parametrize(
    ("words", "is_repository"),
    [(("sub/job.py",), True), (("-m", "sub.job"), False)],
    ids=["script in git", "module"],
)
def test_a_program_that_leaves_its_folder_before_its_run_begins_is_reproduced(
    words: tuple[str, ...], is_repository: bool, folder, record, tensortap, tmp_path: Path
) -> None:
    project = folder("project", is_repository=is_repository)
    (project / "sub").mkdir()
    (project / "sub" / "job.py").write_text(LEAVES + DUMPS.replace("RUNS", repr(str(tmp_path / "runs"))))
    run = record(project, "env", f"PWD={project}", sys.executable, *words)  # as a shell has it
    said = tensortap("reproduce", run, "--verify")
    assert said.out.startswith("BITWISE EQUAL"), said.err
    assert f"in {project}" in tensortap("reproduce", run).out


def test_a_program_started_by_a_shell_script_is_reproduced_from_where_the_script_was(
    folder, record, tensortap, tmp_path: Path
) -> None:
    project = folder("project", is_repository=True, job=MODEL)
    (project / "go.sh").write_text(f"mkdir -p sub && cd sub && exec {sys.executable} ../job.py\n")
    run = record(project, *watch("--tap", "**", to=tmp_path)[:-1], "sh", "go.sh")
    said = tensortap("reproduce", run, "--verify")
    assert said.out.startswith("BITWISE EQUAL"), said.err


def test_a_program_that_removes_its_file_has_it_kept(folder, record, tensortap, tmp_path: Path) -> None:
    project = folder("project", job=f"import os\nos.remove(__file__)\n{NUMPY}")
    run = record(project, *watch(*LOCALS, to=tmp_path), "job.py")
    assert tensortap("reproduce", run, "--verify").out.startswith("BITWISE EQUAL")


@pytest.mark.parametrize(
    ("word", "is_repository"),
    [("{}/job.py", True), ("../scripts/job.py", True), ("../scripts/job.py", False)],
    ids=["absolute in git", "relative in git", "plain"],
)
def test_a_script_beside_the_repository_is_restored_as_it_was(
    word: str, is_repository: bool, folder, record, tensortap, tmp_path: Path
) -> None:
    scripts = folder("scripts", is_repository=is_repository, job=NUMPY)
    project = folder("project", is_repository=True, other="x = 1\n")
    run = record(project, *watch(*LOCALS, to=tmp_path), word.format(scripts))
    (scripts / "job.py").write_text(NUMPY.replace("4.0", "5.0"))
    plan = tensortap("reproduce", run)
    assert "# script job.py: commit" in plan.out if is_repository else "# script: 1 file kept" in plan.out
    said = tensortap("reproduce", run, "--verify")
    assert said.out.startswith("BITWISE EQUAL"), said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-"], "it came from standard input and was not kept"),
        (["-X", "dev", "-u"], "it came from standard input and was not kept"),
        (["-m", "IPython", "--quick"], "it was typed into a notebook or shell and was not kept"),
    ],
    ids=["dash", "nothing", "ipython"],
)
def test_a_program_whose_text_nobody_kept_is_named_as_missing(
    words: list[str], told: str, folder, record, tensortap, tmp_path: Path
) -> None:
    code = DUMPS.replace("RUNS", repr(str(tmp_path / "runs")))
    run = record(folder("project"), sys.executable, *words, input=code.encode())
    plan = tensortap("reproduce", run)
    assert f"# missing: the text of the program: {told}; save it as a file" in plan.out
    assert tensortap("reproduce", run, "--go").code == 3
