"""The command as a whole: its table, help, errors and exit codes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

import tensortap as package
from tensortap.cli.group import CommandGroup
from tensortap.cli.main import COMMANDS, main

ASK = "import sys; from tensortap.cli.main import main; code = main(sys.argv[1:]); "


def fresh(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_has_a_file_and_help(name, tensortap):
    command = CommandGroup(COMMANDS).get_command(click.Context(click.Command("tensortap")), name)
    assert isinstance(command, click.Command)
    said = tensortap(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"tensortap {name}" in said.out


# A script for a shell is for a program already.
WITHOUT_JSON = {"completion"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_answer_in_json(name):
    command = CommandGroup(COMMANDS).get_command(click.Context(click.Command("tensortap")), name)
    options = {word for parameter in command.params for word in parameter.opts}
    assert ("--json" in options) is (name not in WITHOUT_JSON)


@pytest.mark.process
def test_help_lists_every_command_and_imports_none():
    imports = (
        "print(sorted(m for m in sys.modules if m.startswith('tensortap.cli.')), 'numpy' in sys.modules)"
    )
    done = fresh(ASK + imports, "--help")
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    loaded = "['tensortap.cli.group', 'tensortap.cli.main', 'tensortap.cli.output'] False"
    assert done.stdout.splitlines()[-1] == loaded


def test_nothing_typed_is_a_question_for_help(tensortap):
    assert tensortap().out == tensortap("--help").out
    assert tensortap("-h").code == 0


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_told(tensortap, flag):
    assert tensortap(flag) == (0, f"tensortap {package.__version__}\n", "")


def test_an_unknown_command_is_told_the_nearest(tensortap):
    said = tensortap("comapre", "a", "b")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("tensortap: no command 'comapre'; did you mean 'compare'")
    assert said.err.endswith(f"tensortap --help lists all {len(COMMANDS)}\n")


def test_a_command_nobody_would_guess_is_told_without_a_guess(tensortap):
    assert "did you mean" not in tensortap("\x1b[31mqqqq").err
    assert "\x1b" not in tensortap("\x1b[31mqqqq").err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "a"), "tensortap compare: missing argument 'B'; tensortap compare --help tells more\n"),
        (("ls", "--sorted"), "no such option"),
        (("tree", "x", "--step", "soon"), "'soon' is no number; write 3, 0..9, 1,4,7, first or last"),
        (("--nonsense",), "tensortap --help tells more"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tensortap, arguments, told):
    said = tensortap(*arguments)
    assert (said.code, said.out) == (2, "")
    assert told.lower() in said.err.lower()
    assert len(said.err.splitlines()) == 1


@pytest.mark.process
def test_without_click_one_sentence_says_how_to_get_it():
    done = fresh("import sys; sys.modules['click'] = None; " + ASK + "sys.exit(code)", "ls")
    assert done.returncode == 2
    assert done.stderr == (
        "tensortap: the command line needs click, which is not installed; pip install 'tensortap[cli]'\n"
    )


@pytest.mark.process
def test_without_rich_and_torch_a_run_is_shown_all_the_same(make_run):
    run = make_run()
    without = "import sys; sys.modules['rich'] = sys.modules['torch'] = None; "
    done = fresh(without + ASK + "sys.exit(code)", "show", f"{run}:x")
    assert done.returncode == 0, done.stderr
    assert "float32 [4, 4]" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("command", ["ls", "tree", "show", "verify"])
def test_looking_at_a_run_imports_no_torch(make_run, command):
    run = make_run()
    done = fresh(ASK + "assert code == 0; print('torch' in sys.modules)", command, str(run))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error(make_run):
    runs = [make_run(f"runs/{number:03}") for number in range(3)]
    command = (
        f"import sys; from tensortap.cli.main import main; sys.exit(main(['ls', {str(runs[0].parent)!r}]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_both_names(tensortap, shell):
    said = tensortap("completion", shell)
    assert said.code == 0
    assert "_TENSORTAP_COMPLETE" in said.out
    assert "tensortap" in said.out
    assert "_tt_completion" in said.out


def test_the_script_of_bash_is_read_by_bash(tensortap):
    said = tensortap("completion", "bash")
    done = subprocess.run(["bash", "-n"], input=said.out, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_that_asks_gets_the_names_of_commands(monkeypatch, capsys):
    monkeypatch.setenv("_TENSORTAP_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tensortap co")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["plain,compare", "plain,completion"]


def test_an_unknown_shell_is_refused(tensortap):
    assert tensortap("completion", "tcsh").code == 2


@pytest.mark.parametrize("command", ["tree", "show", "verify", "diff", "ls"])
@pytest.mark.parametrize("path", ["x" * 300, "a/../../nowhere", "слой/層", "файл\x1b[31m"])
def test_a_path_that_cannot_be_is_told_in_one_line(tensortap, tmp_path, monkeypatch, command, path):
    monkeypatch.chdir(tmp_path)
    said = tensortap(command, path, *([path] if command == "diff" else []))
    assert (said.code, said.out) == (3, "")
    assert len(said.err.splitlines()) == 1
    assert "\x1b" not in said.err


UNREADABLE = """
import os, sys
from tensortap.cli.main import main
main(["verify", sys.argv[1]]); main(["ls", sys.argv[1]]); main(["tree", sys.argv[1]])
sys.stdout.flush()
own = sys.argv[1] + "/.tensortap/"
os.chmod(own + "packs", 0)
os.chmod(own + "index-rank0.jsonl", int(sys.argv[2]))
if os.geteuid() == 0:
    os.seteuid(65534)
for command in ("ls", "verify", "tree"):
    print(command, main([command, sys.argv[1]]), file=sys.stderr)
"""


@pytest.mark.process
@pytest.mark.parametrize("mode", ["0", str(0o644)], ids=["index", "values-alone"])
def test_what_may_not_be_read_is_told_in_a_sentence(make_run, mode):
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        run = Path(shutil.copytree(make_run(), f"{folder}/run"))
        os.chmod(folder, 0o755)
        done = fresh(UNREADABLE, str(run), mode)
        os.chmod(run / ".tensortap" / "packs", 0o755)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = [line.split() for line in done.stderr.splitlines() if line.split()[0] in ("ls", "verify", "tree")]
    assert [int(code) for _, code in told] == [0, 3, 3]
    assert "is gone" not in done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_an_output_that_is_closed_is_no_error(make_run, closed):
    line = f"exec {sys.executable} -c 'from tensortap.cli.main import main; exit(main())' ls \"$1\" {closed}"
    assert (
        subprocess.run(["sh", "-c", line, "sh", make_run()], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_mistake_of_ours_is_raised_where_it_is_looked_for(monkeypatch, tensortap, make_run, strict):
    monkeypatch.setenv("TENSORTAP_STRICT", strict)
    monkeypatch.setattr("tensortap.cli.commands.ls.summarize_run", lambda *_: int("no number"))
    if strict == "0":
        assert tensortap("ls", make_run()).code == 2
        return
    with pytest.raises(ValueError, match="invalid literal"):
        tensortap("ls", make_run())


def test_a_sentence_about_what_was_typed_is_no_mistake_of_ours(monkeypatch, tensortap, make_run):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    said = tensortap("ls", make_run(), "--where", "steps>many")
    assert (said.code, said.err) == (2, "tensortap ls: 'many' is no number; write it as in steps>100\n")


@pytest.mark.process
def test_a_full_disk_is_told_as_such(make_run):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from tensortap.cli.main import main; exit(main())", "ls", make_run()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.startswith("tensortap ls: cannot write: no space left on device\n")
