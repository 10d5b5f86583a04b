"""`tensortap run` of programs without a model: everything about them stays their own."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensortap as tt
from tensortap.launcher.outcome import write_interpreter_facts

pytestmark = pytest.mark.process

TENSORTAP = str(Path(sys.executable).with_name("tensortap"))
EXAMPLES = Path(__file__).parents[3] / "examples" / "unedited"
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(code: str, name: str = "program.py") -> str:
        (tmp_path / name).write_text(textwrap.dedent(code))
        return name

    return write


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Done]:
    """Run something under `tensortap run`: words before `--`, the program after it."""

    def run(*words: str, **options: Any) -> Done:
        command = [TENSORTAP, "run", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, **options
        )

    return run


def the_run(folder: Path) -> tt.Run:
    (path,) = (one for one in (folder / "runs").iterdir() if not one.name.startswith("."))
    return tt.Run(path)


def kept(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((the_run(folder).path / name).read_text())


def test_a_numpy_script_keeps_its_output_and_exit_code_and_gets_a_run(watched, tmp_path):
    script = [sys.executable, str(EXAMPLES / "numpy_fit.py"), "--rounds", "1"]
    plain = subprocess.run(script, capture_output=True, text=True, check=False)
    done = watched("--", *script)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (5, plain.stdout)
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("exit code 5\n")
    program, outcome = kept(tmp_path, ".tensortap/program.json"), kept(tmp_path, ".tensortap/outcome.json")
    assert program["program"] == script
    assert (program["exit_code"], outcome["exit_code"], outcome["signal"]) == (5, 5, None)
    assert kept(tmp_path, "runtime_info.json")["command"]["argv"] == script[1:]
    assert "numpy" in kept(tmp_path, "packages.json")["packages"]


def test_how_a_program_ended_is_kept_also_where_the_folder_is_named_by_dots(watched, tmp_path):
    done = watched("--to", f"../{tmp_path.name}/runs", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    assert kept(tmp_path, ".tensortap/outcome.json")["exit_code"] == 7


def test_a_program_that_deletes_its_folder_keeps_its_exit_code(tmp_path):
    (tmp_path / "work").mkdir()
    code = "import os; os.rmdir(os.getcwd()); raise SystemExit(7)"
    command = [TENSORTAP, "run", "--to", tmp_path / "runs", "--", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr.endswith("exit code 7\n")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("open(os.path.join(asked['notes'], 'process-1.json'), 'w')", "exit code 7"),
        (
            "own = os.path.join(asked['run'], '.tensortap'); os.remove(f'{own}/program.json'); "
            "os.mkdir(f'{own}/program.json')",
            "how it ended is not written: Is a directory",
        ),
    ],
    ids=["half a note", "a folder in the way"],
)
def test_what_goes_wrong_after_the_program_costs_no_exit_code(watched, write, code, told):
    name = write(f"""
        import json, os
        asked = json.loads(os.environ["TENSORTAP_RUN"])
        {code}
        raise SystemExit(7)
    """)
    done = watched("--", sys.executable, name)
    assert done.returncode == 7, done.stderr
    assert told in done.stderr


def test_with_quiet_nothing_is_added_to_what_the_program_says(watched, write):
    name = write("import sys; print('out'); print('err', file=sys.stderr)")
    done = watched("-q", "--", sys.executable, name)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_input_is_the_programs_own(watched):
    done = watched("-q", "--", sys.executable, "-c", "print(input()[::-1])", input="abc\n")
    assert done.stdout == "cba\n"


def test_a_traceback_is_the_programs_own(watched, write):
    name = write("def f():\n    return 1 / 0\nf()\n")
    plain = watched("-q", "--", "env", "TENSORTAP=0", sys.executable, name)
    done = watched("-q", "--", sys.executable, name)
    assert done.returncode == 1
    assert done.stderr == plain.stderr.partition("tensortap run:")[0]
    assert "tensortap" not in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_module_a_script_file_and_a_console_script_can_be_run(watched, write):
    write("import sys; print(__name__, sys.argv[1:])", "shown.py")
    assert watched("-q", "--", "-m", "shown", "--lr", "3").stdout == "__main__ ['--lr', '3']\n"
    assert watched("-q", "shown.py", "--lr", "3").stdout == "__main__ ['--lr', '3']\n"
    assert watched("-q", "--", TENSORTAP, "--version").stdout == f"tensortap {tt.__version__}\n"


@pytest.mark.parametrize("is_repository", [False, True], ids=["plain", "git"])
def test_what_was_run_by_a_switch_of_python_is_told_in_the_command(watched, write, tmp_path, is_repository):
    if is_repository:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    write("import sys", "one.py")
    for words in (["-m", "one", "--lr", "3"], ["-c", "import one", "--lr", "3"]):
        run = f"{words[0]}-run"
        watched("-q", "--to", run, "--", sys.executable, "-u", *words)
        (place,) = (tmp_path / run).iterdir()
        command = json.loads((place / "runtime_info.json").read_text())["command"]["argv"]
        has_ended = words[0] == "-m" and not is_repository  # then the program has told itself
        assert command == ([str(tmp_path / "one.py"), *words[2:]] if has_ended else words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--"], "there is no program to run"),
        (["--", "no-such-program"], "no program 'no-such-program' is on the PATH"),
        (["--every", "0", "--", "python"], "--every"),
    ],
    ids=["none", "unknown", "wrong option"],
)
def test_what_cannot_be_started_is_said_in_one_sentence_and_leaves_no_run(watched, tmp_path, words, told):
    done = watched(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_the_program_starts(watched, tmp_path):
    (tmp_path / "runs").write_text("a file")
    done = watched("--", sys.executable, "-c", "print('started')")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("tensortap run: cannot create the run folder")
    assert done.stderr.endswith("; --to takes a folder you can write to\n")


def test_the_path_and_the_sitecustomize_of_the_program_are_as_without(watched, write, tmp_path):
    (tmp_path / "own").mkdir()
    write("import builtins; builtins.was_here = __file__", "own/sitecustomize.py")
    name = write("""
        import sys, sitecustomize
        print(sys.path, was_here, sitecustomize.__file__, sys.meta_path[-1], sys.gettrace())
    """)
    environment = {**os.environ, "PYTHONPATH": "own"}
    script = [sys.executable, name]
    plain = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    done = watched("-q", "--", *script, env=environment)
    assert done.stdout == plain.stdout
    assert kept(tmp_path, "runtime_info.json")["environment_variables"]["PYTHONPATH"] == "own"
    assert "TENSORTAP_RUN" not in kept(tmp_path, "runtime_info.json")["environment_variables"]


def test_a_sitecustomize_that_fails_fails_as_without(watched, write, tmp_path):
    write("raise ValueError('mine')", "sitecustomize.py")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = watched("-q", "--", sys.executable, "-c", "print('goes on')", env=environment)
    assert done.stdout == "goes on\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: mine" in done.stderr


def test_a_python_that_cannot_be_reached_is_said(watched, tmp_path):
    done = watched("--", sys.executable, "-I", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "no Python was reached: there was none, or one with -I, -E or -S" in done.stderr
    assert kept(tmp_path, ".tensortap/program.json")["was_watched"] is False
    assert kept(tmp_path, "runtime_info.json")["command"]["argv"][0] == "-c"


def test_an_interpreter_without_tensortap_is_said_once(watched, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    code = f"import subprocess; subprocess.run([{str(bare)!r}, '-c', 'print(2)'])"
    done = watched("--", bare, "-c", code)
    assert done.stdout == "2\n"
    assert done.stderr.count("has no tensortap") == 1


def test_children_that_touch_no_model_leave_no_run_and_see_the_same_world(watched, write, tmp_path):
    name = write("""
        import multiprocessing, os, subprocess, sys

        def work(number):
            return number * 2

        if __name__ == "__main__":
            print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True).stdout)
            for way in ("spawn", "fork"):
                with multiprocessing.get_context(way).Pool(2) as pool:
                    print(pool.map(work, range(3)))
    """)
    done = watched("-q", "--", sys.executable, name)
    assert done.stdout == "b'child\\n'\n[0, 2, 4]\n[0, 2, 4]\n"
    assert done.stderr == ""
    assert kept(tmp_path, ".tensortap/program.json")["processes"] == []


@pytest.mark.parametrize(
    ("end", "code"),
    [("os._exit(3)", 3), ("os.execv(sys.executable, ['python', '-c', 'import sys; sys.exit(4)'])", 4)],
    ids=["_exit", "exec"],
)
def test_a_program_that_ends_at_once_keeps_what_was_seen(watched, write, tmp_path, end, code):
    write("def double(x):\n    y = 2 * x\n    return y\n", "arithmetic.py")
    name = write(f"""
        import os, sys, time
        import numpy as np
        from pathlib import Path
        from arithmetic import double
        double(np.ones(3))
        index = next(Path("runs").glob("*/.tensortap")) / "index-rank0.jsonl"
        while not index.exists() or b"double.y" not in index.read_bytes():
            os.sched_yield()
        {end}
    """)
    done = watched("--locals", "arithmetic:double.y", "--", sys.executable, name)
    assert done.returncode == code, done.stderr
    assert the_run(tmp_path).load("arithmetic:double.y").tolist() == [2, 2, 2]


def test_variables_of_imported_functions_and_of_the_script_itself_are_captured(watched, tmp_path):
    script = str(EXAMPLES / "numpy_fit.py")
    done = watched("--locals", "__main__:gradient.residual", "--", sys.executable, script, "--rounds", "3")
    assert done.returncode == 5
    series = the_run(tmp_path).series("__main__:gradient.residual")
    assert len(series.values) == 3
    assert abs(series.values[2]).mean() < abs(series.values[0]).mean()
    assert "3 records" in done.stderr


def test_a_variable_that_is_not_there_is_said_with_the_nearest(watched, write):
    write("def double(x):\n    result = 2 * x\n    return result\n", "arithmetic.py")
    name = write("from arithmetic import double; print(double(2))")
    done = watched("--locals", "arithmetic:double.resutl", "--", sys.executable, name)
    assert done.stdout == "4\n"
    assert "arithmetic:double has no variable 'resutl'; did you mean 'result'?" in done.stderr


def test_values_that_the_program_taps_itself_are_kept_with_its_steps(watched, write, tmp_path):
    name = write("""
        import numpy as np, tensortap as tt
        for number in range(3):
            tt.step(10 * number)
            tt.tap(np.full(2, number), "loss")
    """)
    assert watched("--", sys.executable, name).returncode == 0
    series = the_run(tmp_path).series("loss")
    assert series.steps == [0, 10, 20]
    assert [value.tolist() for value in series.values] == [[0, 0], [1, 1], [2, 2]]


def test_the_report_is_a_file_with_a_schema(watched, tmp_path):
    watched("--json", "report.json", "--tap", "layers.*", "--", sys.executable, "-c", "1")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == "tensortap.run/1"
    assert Path(report["run"]) == the_run(tmp_path).path
    assert report["unmatched"] == {"layers.*": {"reason": "", "near": []}}
    assert report["options"]["patterns"] == ["layers.*"]


def test_secrets_on_the_command_line_are_not_written(watched, tmp_path):
    secret = "sk-" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
    watched("-q", "--", sys.executable, "-c", "1", "--api-key", secret)
    texts = [one.read_text() for one in the_run(tmp_path).path.rglob("*.json")]
    assert texts
    assert not any(secret in text for text in texts)


def test_switched_off_it_runs_the_program_and_sees_nothing(watched, write):
    name = write("import tensortap as tt; print(tt.tap(1, 'x'))")
    done = watched("--", sys.executable, name, env={**os.environ, "TENSORTAP": "0"})
    assert done.stdout == "1\n"


# Between a look for signals and `pause`, one may come that nobody wakes up for; a pipe is not empty then.
AWAIT = """
import os, signal, sys
bell, rung = os.pipe()
os.set_blocking(rung, False)
signal.set_wakeup_fd(rung)
"""
WAITS = f"""{AWAIT}
def stop(number, frame):
    os.write(1, b"got %d\\n" % number)  # the signal may come within a print
    sys.exit(9)
if "handles" in sys.argv:
    signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    os.read(bell, 1)
"""


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [TENSORTAP, "run", "--", sys.executable, "-c", WAITS, *words],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # one that is killed leaves its notes
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_signal_is_passed_on_and_the_answer_is_the_programs(tmp_path):
    process = started(tmp_path, "handles")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (9, f"got {signal.SIGTERM.value}\n")


COUNTS = f"""{AWAIT}
if "alone" in sys.argv:
    os.setpgid(0, 0)
signal.signal(signal.SIGUSR1, lambda number, frame: os.write(1, b"got\\n"))
signal.signal(signal.SIGTERM, lambda number, frame: (os.write(1, b"end\\n"), sys.exit(0)))
print("ready", flush=True)
while True:
    os.read(bell, 1)
"""


def wait_until_taken(process: int, number: int) -> None:
    """Two signals of one number are one for a process that has not taken the first yet."""
    is_waiting = True
    while is_waiting:
        status = Path(f"/proc/{process}/status").read_text()
        (waiting,) = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
        is_waiting = bool(int(waiting, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("words", [(), ("alone",)])
def test_a_signal_to_the_whole_group_reaches_the_program_once(tmp_path, words):
    process = subprocess.Popen(
        [TENSORTAP, "run", "-q", "--", sys.executable, "-c", COUNTS, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    for send in (os.killpg, os.kill):  # the second, to this command alone, is passed on
        send(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == "got\n"
        wait_until_taken(process.pid, signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("end\n", 0)


def test_a_program_that_a_signal_ended_ends_this_command_the_same_way(tmp_path):
    process = started(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM  # a shell shows 143
    assert "ended by signal 15" in told
    outcome = kept(tmp_path, ".tensortap/outcome.json")
    assert (outcome["exit_code"], outcome["signal"]) == (None, 15)


def test_killing_the_command_kills_the_program(tmp_path):
    process = started(tmp_path)
    process.kill()
    out, _ = process.communicate(timeout=30)  # returns when the program has let go of the pipe, too
    assert out == ""
    assert kept(tmp_path, ".tensortap/program.json")["exit_code"] is None


def test_an_interrupt_from_the_terminal_reaches_the_program_once(tmp_path, write):
    write(f"""{AWAIT}
try:
    print("terminal", os.isatty(0), flush=True)
    os.read(bell, 1)
except KeyboardInterrupt:
    print("once", flush=True)
print("end", flush=True)
    """)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execv(TENSORTAP, [TENSORTAP, "run", "-q", "--", sys.executable, "program.py"])
    said = read_until(terminal, b"terminal True")
    os.write(terminal, b"\x03")
    said += read_until(terminal, b"end")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert said.count(b"once") == 1


def read_until(terminal: int, mark: bytes) -> bytes:
    said = b""
    while mark not in said:
        assert select.select([terminal], [], [], 60)[0], f"nothing more after {said!r}"
        said += os.read(terminal, 1024)
    return said


def test_a_program_outside_of_any_repository_gets_the_code_of_no_other(watched, write, tmp_path):
    """Not that of the folder in which this command itself lies."""
    name = write("print('nothing to see')")
    watched("--", sys.executable, name)
    run = the_run(tmp_path).path
    assert not (run / "project.patch").exists()
    assert kept(tmp_path, "git_info.json")["project_git_info"] == {}
    assert kept(tmp_path, ".tensortap/code/sources.json")["files"] == ["program.py"]


def test_the_packages_of_another_interpreter_are_its_own(watched, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    facts = packages / "only_there-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: only_there\nVersion: 1.2\n")
    watched("--", tmp_path / "bare" / "bin" / "python", "-c", "pass")
    environment = kept(tmp_path, ".tensortap/environment.json")
    assert [(one["name"], one["version"]) for one in environment["packages"]] == [("only_there", "1.2")]
    assert kept(tmp_path, "packages.json")["all_packages"] == {"only_there": "1.2"}
    assert environment["interpreter"]["prefix"] == str(tmp_path / "bare")


def test_packages_that_an_interpreter_does_not_tell_are_unknown(watched, write, tmp_path):
    silent = tmp_path / write("#!/bin/sh\nexit 0\n", "python-silent")
    silent.chmod(0o755)
    watched("--", silent, "program.py")
    environment = kept(tmp_path, ".tensortap/environment.json")
    assert environment["packages"] is None
    assert environment["problems"] == [{"fact": "packages", "reason": f"{silent} did not tell what it has"}]
    assert kept(tmp_path, "packages.json") == {}


def test_what_was_a_problem_before_stays_one_when_the_interpreter_tells_nothing(tmp_path):
    own = tmp_path / ".tensortap"
    own.mkdir()
    before = {"fact": "git", "reason": "no answer"}
    (own / "environment.json").write_text(json.dumps({"problems": [before]}))
    write_interpreter_facts(tmp_path, str(tmp_path / "nowhere"), knows_imported=False)
    problems = json.loads((own / "environment.json").read_text())["problems"]
    assert [one["fact"] for one in problems] == ["git", "packages"]


def test_starting_a_program_waits_for_no_numpy():
    code = "import sys, tensortap.cli.commands.run; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_report_that_cannot_be_written_is_said_and_the_exit_code_stays_the_programs(watched, tmp_path):
    done = watched("--json", "nowhere/report.json", "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no folder nowhere" in done.stderr
    (tmp_path / "taken").mkdir()
    done = watched("--json", "taken", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    assert "taken is not written: Is a directory" in done.stderr


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("layers.*", "no model was called"),
        (
            "program:step.x",
            "the program imported no module 'program'; functions of the script itself are __main__:step.x",
        ),
    ],
)
def test_why_nothing_was_there_to_select_is_told(watched, write, pattern, told):
    program = write("def step():\n    x = 1\nstep()\n")
    done = watched("--tap", pattern, "--", sys.executable, program)
    assert done.returncode == 0
    assert f"tensortap run: {pattern!r} selected nothing: {told}\n" in done.stderr


def test_a_function_of_a_module_that_runs_as_the_program_is_told_by_its_name(watched, write):
    write("import torch\ndef step():\n    x = torch.nn.Linear(2, 2)(torch.ones(1, 2))\nstep()\n", "job.py")
    done = watched("--tap", "job:step.x", "--", "-m", "job")
    told = "the program imported no module 'job'; functions of the script itself are __main__:step.x"
    assert f"tensortap run: 'job:step.x' selected nothing: {told}\n" in done.stderr
