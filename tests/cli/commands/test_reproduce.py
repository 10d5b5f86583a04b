"""`tensortap reproduce`: the plan, the numbers again, and what is missing or refused, with exit codes."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.proof import sampled

from tensortap.cli.main import main
from tensortap.readers.run import Run

pytestmark = pytest.mark.process

SECRET = "hunter2-a8Fk2Lm9"
MODEL = """
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate, self.second, self.norm = Mixer(), Gate(), Mixer(), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.second(self.gate(self.first(x))))
"""
TRAINING = """
import numpy as np
import torch
import tensortap as tt
from model import Net

torch.manual_seed(0)
model = Net()
batch = torch.tensor(np.fromfile("batch.bin", np.float32).reshape(-1, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with tt.capture(model, "**", "**.in", to="runs"):
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
"""
PLANTED = """\
--- a/model.py
+++ b/model.py
@@ -14,3 +14,3 @@
     def forward(self, x):
-        return x * torch.sigmoid(x)
+        return x * torch.sigmoid(1.01 * x)
{}
""".format(" ")
SMALL = """
import os, sys
import numpy as np
import tensortap as tt
tt.init("runs")
tt.dump(np.arange(3.0, dtype=np.float32), "x")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are made that several tests look at, and the key of hidden values lies."""
    home = tmp_path_factory.mktemp("home")
    config = "[user]\n\tname = A B\n\temail = a@b\n[init]\n\tdefaultBranch = main\n"
    (home / "gitconfig").write_text(config)
    (home / "tmp").mkdir()
    return home


def surroundings(home: Path, temporary: Path) -> dict[str, str]:
    """No configuration, key or temporary folder of the machine reaches a program."""
    return {
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "XDG_STATE_HOME": str(home / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_COMPILE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
    }


@pytest.fixture(autouse=True)
def _surroundings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    for name, value in surroundings(home, tmp_path / "tmp").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=path, capture_output=True, text=True, check=True).stdout


def worktrees(project: Path) -> int:
    return len(git(project, "worktree", "list").splitlines())


def begun(home: Path, path: Path) -> Path:
    """An empty repository."""
    path.mkdir()
    environment = {**os.environ, **surroundings(home, home / "tmp")}
    subprocess.run(["git", "init", "-q"], cwd=path, env=environment, check=True)
    return path


@pytest.fixture
def project(home: Path, tmp_path: Path) -> Path:
    return begun(home, tmp_path / "project")


@pytest.fixture(scope="module")
def record(home: Path) -> Callable[..., Path]:
    """Commit and run a program; its run."""

    def recorded(
        project: Path, code: str, *arguments: str, python: str = sys.executable, **variables: str
    ) -> Path:
        environment = {**os.environ, **surroundings(home, home / "tmp"), **variables}
        (project / "job.py").write_text(code)
        for words in (["add", "job.py"], ["commit", "-q", "-m", "the program"]):
            subprocess.run(["git", *words], cwd=project, env=environment, check=True)
        command = [python, "job.py", *arguments]
        subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True)
        return max((project / "runs").iterdir())

    return recorded


@pytest.fixture(scope="module")
def small(home: Path, record: Callable[..., Path]) -> Path:
    """A run of a program without torch, which starts quickly; it is only looked at."""
    return record(begun(home, home / "small"), SMALL)


@pytest.fixture
def changeable(small: Path, tmp_path: Path) -> Path:
    """A copy of its facts and values, which a test may damage."""
    return Path(shutil.copytree(small, tmp_path / "changeable"))


@pytest.fixture(scope="module")
def trained(home: Path, record: Callable[..., Path]) -> Path:
    """A run of a small training on the CPU, of code with uncommitted, untracked and binary changes."""
    project = begun(home, home / "trained")
    (project / "model.py").write_text(MODEL.replace("tanh", "relu"))
    git(project, "add", "model.py")
    (project / "model.py").write_text(MODEL)
    np.random.default_rng(0).normal(size=32).astype(np.float32).tofile(project / "batch.bin")
    return record(project, TRAINING)


def test_a_training_on_the_cpu_is_bitwise_equal_in_a_fresh_folder(
    trained: Path, tmp_path: Path, capfd: Any
) -> None:
    project = trained.parents[1]
    before = git(project, "status", "--porcelain")
    assert {" M model.py", "?? batch.bin"} <= set(before.splitlines())
    assert main(["reproduce", str(trained), "--verify", "--into", str(tmp_path / "again")]) == 0
    out, err = capfd.readouterr()
    count = len(Run(trained))
    assert count > 20
    assert out.startswith(f"BITWISE EQUAL: all {count} values\nrun: {tmp_path / 'again' / 'code' / 'runs'}")
    assert re.search(r"project: commit \w{12} and patch restored, tree \w{12} as recorded", err)
    assert git(project, "status", "--porcelain") == before


def test_one_changed_line_is_reported_at_its_module(trained: Path, tmp_path: Path, capfd: Any) -> None:
    patch = tmp_path / "planted.patch"
    patch.write_text(PLANTED)
    assert main(["reproduce", str(trained), "--verify", "--apply", str(patch)]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("DIFFERENT: the runs part at gate\n")
    assert "planted.patch applied on top: this is no longer the code of the run" in err


def test_a_difference_of_rounding_is_noise(project: Path, record: Any, capfd: Any) -> None:
    code = SMALL.replace("np.arange(3.0,", "np.nextafter(1, 2 if 'TENSORTAP_PARENT' in os.environ else 0,")
    assert main(["reproduce", str(record(project, code)), "--verify"]) == 0
    assert capfd.readouterr().out.startswith("WITHIN NOISE: 1 value")


def test_a_program_under_tensortap_run_is_watched_again(project: Path, capfd: Any) -> None:
    (project / "unedited.py").write_text(
        "import torch\ntorch.manual_seed(0)\ntorch.nn.Sequential(torch.nn.Linear(8, 8))(torch.ones(2, 8))\n"
    )
    watch = "from tensortap.cli.main import main; main()"
    command = [sys.executable, "-c", watch, "run", "--tap", "**", "--to", "watched", "--"]
    subprocess.run([*command, sys.executable, "unedited.py"], cwd=project, check=True)
    (run,) = (project / "watched").iterdir()
    assert main(["reproduce", str(run), "--verify"]) == 0
    assert capfd.readouterr().out.startswith(f"BITWISE EQUAL: all {len(Run(run))} values")


def test_without_go_nothing_happens_and_the_plan_is_a_script_that_does_it(
    small: Path, tmp_path: Path, capfd: Any
) -> None:
    again, before = tmp_path / "by hand é", worktrees(small.parent)
    assert main(["reproduce", str(small), "--into", str(again)]) == 0
    script = capfd.readouterr().out
    assert not again.exists()
    assert worktrees(small.parent) == before
    subprocess.run(["sh"], input=script, text=True, check=True)
    (run,) = (again / "code" / "runs").iterdir()
    assert Run(run).load("x").tolist() == [0, 1, 2]


def test_the_answer_can_be_read_by_programs(small: Path, capfd: Any) -> None:
    assert main(["reproduce", str(small), "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["schema"] == "tensortap.reproduce/1"
    assert plan["environment"] == "current"
    assert plan["missing"] == []
    assert main(["reproduce", str(small), "--verify", "--json"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert (done["verdict"], done["exit_code"]) == ("bitwise", 0)
    assert Path(done["new_run"]).is_relative_to(done["into"])


@pytest.fixture(scope="module")
def secretive(home: Path, record: Callable[..., Path]) -> Path:
    """A run of a program that needs a secret variable."""
    code = SMALL + "tt.dump(os.environ.get('SERVICE_API_KEY', 'none'), 'key')\n"
    return record(begun(home, home / "secretive"), code, SERVICE_API_KEY=SECRET)


def test_a_hidden_variable_is_named_as_missing(secretive: Path, capfd: Any) -> None:
    assert main(["reproduce", str(secretive), "--go"]) == 3
    out, err = capfd.readouterr()
    assert "missing: variable SERVICE_API_KEY, which was hidden: --set-env SERVICE_API_KEY=VALUE" in err
    assert main(["reproduce", str(secretive)]) == 0
    out += capfd.readouterr().out
    assert ': "${SERVICE_API_KEY:?' in out
    assert SECRET not in out + err


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_hidden_variable_is_given_or_found(
    way: str, secretive: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    given = [f"--set-env=SERVICE_API_KEY={SECRET}"] if way == "option" else []
    if way == "environment":
        monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    assert main(["reproduce", str(secretive), "--verify", *given]) == 0
    out, err = capfd.readouterr()
    assert "BITWISE EQUAL" in out
    assert SECRET not in out + err


def test_a_value_that_is_not_the_recorded_one_is_told_beside_the_answer(secretive: Path, capfd: Any) -> None:
    given = ["--set-env", "SERVICE_API_KEY=another", "--set-env", "LANGUAGES=C"]
    assert main(["reproduce", str(secretive), "--verify", *given]) == 1
    err = capfd.readouterr().err
    assert "the value given for variable SERVICE_API_KEY is another than the run had, by its digest" in err
    assert "variable LANGUAGES was not hidden, so the recorded one is used" in err


def test_another_value_of_the_same_name_is_not_taken(
    secretive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "of another account")
    assert main(["reproduce", str(secretive), "--go"]) == 3


def test_a_hidden_variable_can_be_left_out(secretive: Path, capfd: Any) -> None:
    assert main(["reproduce", str(secretive), "--go", "--unset", "SERVICE_API_KEY", "--json"]) == 0
    assert Run(json.loads(capfd.readouterr().out)["new_run"]).load("key") == "none"


def test_a_hidden_variable_is_asked_for_on_a_terminal(secretive: Path) -> None:
    code = "import sys; from tensortap.cli.main import main; sys.exit(main())"
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-c", code, "reproduce", str(secretive), "--verify"])
    shown = b""
    with open(terminal, "r+b", buffering=0) as stream:
        while b"without it)" not in shown:
            shown += stream.read(1000)
        stream.write(f"{SECRET}\n".encode())
        with contextlib.suppress(OSError):  # what Linux says when the last program has left the terminal
            while more := stream.read(1000):
                shown += more
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert b"BITWISE EQUAL" in shown
    assert SECRET.encode() not in shown


def test_a_hidden_argument_is_asked_for(project: Path, record: Any, capfd: Any) -> None:
    run = record(project, SMALL + "tt.dump(sys.argv[1:], 'arguments')\n", "--api-key", SECRET, "--lr", "1")
    assert main(["reproduce", str(run), "--go", "--unset", "all"]) == 3
    assert "argument --api-key, which was hidden: --set-arg --api-key=VALUE" in capfd.readouterr().err
    assert main(["reproduce", str(run), "--verify", "--set-arg", f"--api-key={SECRET}"]) == 0
    assert SECRET not in "".join(capfd.readouterr())


def test_a_script_takes_what_was_hidden_from_variables(
    project: Path, record: Any, tmp_path: Path, capfd: Any
) -> None:
    code = SMALL + "tt.dump([sys.argv[1:], os.environ.get('SERVICE_API_KEY')], 'both')\n"
    run = record(project, code, "--api-key", SECRET, "--lr", "1", SERVICE_API_KEY=SECRET)
    assert main(["reproduce", str(run), "--into", str(tmp_path / "again")]) == 0
    script = capfd.readouterr().out
    (name,) = re.findall(r"HIDDEN_[0-9a-f]{16}", script)
    variables = {**os.environ, name: SECRET, "SERVICE_API_KEY": SECRET}
    subprocess.run(["sh"], input=script, text=True, check=True, env=variables)
    (again,) = (tmp_path / "again" / "code" / "runs").iterdir()
    assert Run(again).load("both") == [["--api-key", SECRET, "--lr", "1"], SECRET]


PAYLOADS = {
    "a line": "x\ntouch HACKED\n",
    "a list": "x; touch HACKED; :",
    "a substitution": "x$(touch HACKED)`touch HACKED`",
    "a quote": "x'; touch HACKED; '",
    "a double quote": 'x"; touch HACKED; "',
    "an expansion": 'x}"; touch HACKED; : "${x',
}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_what_a_stranger_wrote_into_a_run_does_not_become_a_command(
    kind: str, tmp_path: Path, capfd: Any
) -> None:
    run, payload = tmp_path / "run", PAYLOADS[kind]
    hidden = "<redacted:0123456789abcdef>"
    git_facts = {"root": f"/{payload}", "remotes": {"a": payload}, "tree": "0" * 40}
    facts = {
        "runtime_info.json": {
            "command": {"executable": f"/{payload}", "argv": []},
            "working_directory": f"/{payload}",
            "timestamp": payload,
            "environment_variables": {payload: hidden, "A": payload, f"B{payload}": "x"},
        },
        "packages.json": {"python_version": payload, "all_packages": {"numpy": "1"}},
        "git_info.json": {"project_git_info": {"commit_id": "0" * 40}},
        ".tensortap/environment.json": {"git": git_facts, "orig_argv": ["python", payload, hidden + payload]},
    }
    (run / ".tensortap").mkdir(parents=True)
    for name, content in facts.items():
        (run / name).write_text(json.dumps(content))
    for env in ("current", "fresh"):
        assert main(["reproduce", str(run), "--env", env, "--into", str(tmp_path / f"{env} {kind}")]) == 0
        script = capfd.readouterr().out
        assert "\nset -eu\n" in script
        # Nothing is there to run, so that each line is reached.
        subprocess.run(
            ["sh"],
            input=script.replace("set -eu", "git() { :; }; cd() { :; }").replace("exec env -i", ": "),
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HIDDEN_0123456789abcdef": "x"},
        )
    assert not list(tmp_path.rglob("*HACKED"))


@pytest.mark.parametrize("name", ["-r /etc/passwd", "a\nEND_OF_PACKAGES\ntouch HACKED", ""])
def test_a_package_that_cannot_be_one_is_refused_as_damage(name: str, changeable: Path, capfd: Any) -> None:
    own = changeable / ".tensortap" / "environment.json"
    facts = json.loads(own.read_text())
    facts["packages"] = [{"name": name, "version": "1"}]
    own.write_text(json.dumps(facts))
    assert main(["reproduce", str(changeable)]) == 3
    assert "which cannot be one" in capfd.readouterr().err


def test_a_commit_that_is_an_option_is_damage(changeable: Path, capfd: Any) -> None:
    facts = json.loads((changeable / "git_info.json").read_text())
    facts["project_git_info"]["commit_id"] = "--upload-pack=touch HACKED"
    (changeable / "git_info.json").write_text(json.dumps(facts))
    assert main(["reproduce", str(changeable), "--go"]) == 3
    assert "as a commit, which cannot be one" in capfd.readouterr().err


def test_a_path_that_leads_out_is_refused(changeable: Path, capfd: Any) -> None:
    (changeable / "project.patch").write_text(
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+y\n"
    )
    assert main(["reproduce", str(changeable), "--go"]) == 4
    assert "such a patch is not applied" in capfd.readouterr().err
    assert main(["reproduce", str(changeable)]) == 4
    plan = capfd.readouterr().out
    assert "# refused: " in plan
    assert "git -C" not in plan


@pytest.mark.parametrize("arguments", [["--set-env", "NAME"], ["--env", "other"], []])
def test_wrong_arguments_are_a_usage_error(arguments: list[str], small: Path) -> None:
    run = [str(small)] if arguments else []
    assert main(["reproduce", *run, *arguments]) == 2


def test_a_run_that_does_not_exist_is_told_to_be_so(tmp_path: Path, capfd: Any) -> None:
    assert main(["reproduce", str(tmp_path / "nope")]) == 3
    assert f"{tmp_path / 'nope'} does not exist; give the folder of a run" in capfd.readouterr().err


def test_a_folder_that_is_no_run_is_missing_data(tmp_path: Path, capfd: Any) -> None:
    assert main(["reproduce", str(tmp_path)]) == 3
    assert "has no runtime_info.json" in capfd.readouterr().err


def test_a_program_that_fails_now_but_did_not_then_is_a_difference(
    project: Path, record: Any, capfd: Any
) -> None:
    run = record(project, SMALL + "sys.exit(5 if 'TENSORTAP_PARENT' in os.environ else 0)\n")
    assert main(["reproduce", str(run), "--go"]) == 1
    assert "the program ended with exit code 5, and before with exit code 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        ({"exit_code": None, "signal": 15}, 1, "ended with exit code 0, and before with signal 15"),
        ({}, 0, "how the program ended before is not known"),
    ],
)
def test_how_a_program_ended_before_is_told_as_it_was_recorded(
    changeable: Path, capfd: Any, outcome: dict[str, Any], code: int, told: str
) -> None:
    (changeable / ".tensortap" / "outcome.json").write_text(json.dumps(outcome))
    assert main(["reproduce", str(changeable), "--go"]) == code
    assert told in capfd.readouterr().err


def test_runs_that_part_at_the_model_itself_say_so(home: Path, record: Any, capfd: Any) -> None:
    code = """
import torch
import tensortap as tt
unseeded = torch.nn.Linear(2, 2)
with tt.capture(unseeded, "out", to="runs"):
    unseeded(torch.ones(1, 2))
"""
    run = record(begun(home, home / "by chance"), code)
    assert main(["reproduce", str(run), "--verify"]) == 1
    assert "DIFFERENT: the runs part at the model itself\n" in capfd.readouterr().out


def test_a_program_that_fails_as_it_did_is_reproduced(project: Path, record: Any, capfd: Any) -> None:
    run = record(project, SMALL + "raise KeyError('as always')\n")
    assert main(["reproduce", str(run), "--verify"]) == 0
    assert "the program ended with KeyError, and is expected to do so again" in capfd.readouterr().err


def test_a_program_that_begins_no_run_leaves_nothing_to_compare(
    project: Path, record: Any, capfd: Any
) -> None:
    run = record(project, "import os\nif 'TENSORTAP_PARENT' in os.environ:\n    raise SystemExit\n" + SMALL)
    assert main(["reproduce", str(run), "--verify"]) == 3
    assert "so there is nothing to compare" in capfd.readouterr().err


@pytest.fixture(scope="module")
def waiting(home: Path, record: Callable[..., Path]) -> Path:
    """A run of a program that, when it is run again, waits until it is told to end."""
    waits = "if 'TENSORTAP_PARENT' in os.environ:\n    print('ready', flush=True)\n    sys.stdin.read()\n"
    return record(begun(home, home / "waiting"), SMALL + waits)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_the_repository_clean(number: int, waiting: Path, tmp_path: Path) -> None:
    before = worktrees(waiting.parent)
    code = "import sys; from tensortap.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "reproduce", str(waiting), "--go"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(line == "ready\n" for line in process.stderr)
    assert worktrees(waiting.parent) == before + 1
    process.send_signal(number)
    process.communicate()  # ends the input of the program, which nobody has interrupted
    assert process.returncode == 130
    assert worktrees(waiting.parent) == before
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture(scope="module")
def numeric(home: Path, record: Callable[..., Path]) -> Path:
    """A run made by an environment of its own that has numpy and nothing else."""
    folder, source = home / "env", Path(sys.modules["tensortap"].__file__ or "").parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs", f"numpy-{np.__version__}.dist-info"):
        (packages / name).symlink_to(Path(np.__file__).parents[1] / name)
    (packages / "tensortap").symlink_to(source)
    return record(begun(home, home / "numeric"), SMALL, python=str(folder / "bin" / "python"))


def test_the_interpreter_that_has_the_packages_is_used(numeric: Path, home: Path, capfd: Any) -> None:
    assert main(["reproduce", str(numeric), "--verify"]) == 0
    assert f"packages: those of {home / 'env' / 'bin' / 'python'} as recorded" in capfd.readouterr().err


def test_packages_that_differ_are_told_beside_the_answer(numeric: Path, capfd: Any) -> None:
    assert main(["reproduce", str(numeric), "--verify", "--env", "current"]) == 0
    assert "was not there" in capfd.readouterr().err


def test_a_fresh_environment_gets_exactly_the_recorded_packages(
    numeric: Path, tmp_path: Path, capfd: Any
) -> None:
    again = tmp_path / "again"
    assert main(["reproduce", str(numeric), "--verify", "--env", "fresh", "--into", str(again)]) == 0
    assert capfd.readouterr().out.startswith("BITWISE EQUAL")
    assert (again / "requirements.txt").read_text() == f"numpy=={np.__version__}\n"
    (found,) = again.glob("env/lib/python*/site-packages/numpy-*.dist-info")
    assert found.name == f"numpy-{np.__version__}.dist-info"


@pytest.fixture(scope="module")
def wheels(home: Path) -> Path:
    """A folder that has numpy for uv, which does not know what pip is configured with."""
    words = ["-q", "--no-deps", "-d", str(home / "wheels"), f"numpy=={np.__version__}"]
    subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True)
    return home / "wheels"


@pytest.mark.parametrize(
    ("state", "maker", "installer"),
    sampled(
        [("works", "uv", "uv"), ("has no packages", "uv", "pip"), ("fails", "venv", "pip")],
        [("works", "uv", "uv"), ("fails", "venv", "pip")],
    ),
)
def test_an_environment_is_made_by_uv_where_it_can_and_by_pip_where_it_cannot(
    state: str,
    maker: str,
    installer: str,
    numeric: Path,
    wheels: Path,
    tmp_path: Path,
    capfd: Any,
    monkeypatch,
) -> None:
    (tmp_path / "bin").mkdir()
    if state == "fails":
        (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho no >&2; exit 1\n")
        (tmp_path / "bin" / "uv").chmod(0o755)
    else:
        (tmp_path / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels if state == "works" else tmp_path / "bin"))
    for name, value in {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    again = tmp_path / "again"
    assert main(["reproduce", str(numeric), "--verify", "--env", "fresh", "--into", str(again)]) == 0
    assert capfd.readouterr().out.startswith("BITWISE EQUAL")
    assert ("uv = " in (again / "env" / "pyvenv.cfg").read_text()) is (maker == "uv")
    (told,) = again.glob("env/lib/python*/site-packages/numpy-*.dist-info/INSTALLER")
    assert told.read_text().strip() == installer


def test_a_package_that_is_not_to_be_had_is_named_with_the_nearest(
    numeric: Path, tmp_path: Path, capfd: Any
) -> None:
    run, before = shutil.copytree(numeric, tmp_path / "changed"), worktrees(numeric.parent)
    facts = run / ".tensortap" / "environment.json"
    facts.write_text(facts.read_text().replace(f'"version": "{np.__version__}"', '"version": "1.99.0+cu128"'))
    assert main(["reproduce", str(run), "--go", "--env", "fresh"]) == 3
    err = capfd.readouterr().err
    assert "missing: numpy==1.99.0+cu128: no file in the configured index; the nearest there is " in err
    assert worktrees(numeric.parent) == before


def test_packages_that_nobody_knows_are_named_as_missing(changeable: Path, capfd: Any) -> None:
    own = changeable / ".tensortap" / "environment.json"
    own.write_text(json.dumps({**json.loads(own.read_text()), "packages": None}))
    (changeable / "packages.json").write_text("{}")
    assert main(["reproduce", str(changeable), "--go"]) == 3
    assert "missing: the packages of the run: its Python did not tell them" in capfd.readouterr().err
