"""`tensortap run`: run any program, unedited, and keep what it was and what its models computed."""

import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click

from tensortap.cli.output import counted, note, plain, printable
from tensortap.core.launch_spec import LaunchSpec
from tensortap.core.ranks import rank_info
from tensortap.formats.run_layout import agree_on_run, write_failed_error
from tensortap.launcher import child_process
from tensortap.launcher.outcome import PROGRAM_FILE, RunOutcome, patched_argv
from tensortap.metadata.collect import OWN_FOLDER, Metadata
from tensortap.metadata.process import cancel_outcome, timestamp_zone, working_directory

_HELP = """Run any program, unedited: python train.py, torchrun ..., -m module, a script on the PATH.

It gets a run under --to with what is needed to reproduce it. With --tap, what the patterns select in its
models is written there too: models are found when they are first called, in children and ranks as well.
Steps are those of its optimizer, else forwards. Output, input, signals and exit code are the program's own.

\b
  tensortap run -- python train.py --lr 3e-4
  tensortap run --tap 'layers.*' --every 100 -- torchrun --nproc-per-node 2 train.py
  tensortap run --locals 'mypackage.loss:focal.weights' -- -m mypackage.train
"""
_PYTHON_WORDS = ("-m", "-c")
_MOST_TOLD = 5


@click.command(help=_HELP, context_settings={"allow_interspersed_args": False})
@click.option("--tap", "taps", multiple=True, metavar="PATTERN", help="capture this; may be repeated")
@click.option(
    "--locals", "variables", multiple=True, metavar="PATTERN", help="a variable: pkg.mod:func.var, forward.x"
)
@click.option("--every", type=click.IntRange(1), default=1, help="of that many steps one")
@click.option("--first", type=click.IntRange(1), help="only that many steps")
@click.option("--keep", type=click.Choice(["values", "stats"]), default="values", help="what is kept of each")
@click.option("--when", type=click.Choice(["nonfinite", "changed"]), multiple=True, help="only such values")
@click.option(
    "--to", type=click.Path(path_type=Path), default=Path("runs"), help="the folder of runs (runs/)"
)
@click.option("--live", is_flag=True, help="open the program to tensortap attach")
@click.option("--json", "report", type=click.Path(path_type=Path), help="write how it went to this file")
@click.option("--quiet", "-q", is_flag=True, help="say nothing when all went well")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(program: tuple[str, ...], to: Path, report: Path | None, quiet: bool, **asked: Any) -> int:
    words = _resolved(program)
    if not all((*asked["taps"], *asked["variables"])):
        raise click.UsageError("a pattern is empty; --tap '**' takes every module, and no --tap takes none")
    if report is not None and not report.absolute().parent.is_dir():
        raise click.UsageError(f"--json {report}: there is no folder {report.parent}")
    is_first = not to.exists()
    account = RunOutcome(_errand(to, words, asked), words)
    try:
        _describe(account)
        account.save()  # whatever becomes of this process, the run knows what it is
        begun = monotonic()
        status = account.status = child_process.run_program(words, account.spec.environment())
        account.seconds = monotonic() - begun
    except child_process.CannotStartError as error:
        _forget_run(account, is_first=is_first)
        raise click.UsageError(str(error)) from None
    finally:
        account.read_reports()
    _keep_end(account)
    if report is not None:
        _report(account, report)
    _tell(account, is_quiet=quiet)
    return child_process.exit_like(status)


def _resolved(program: tuple[str, ...]) -> list[str]:
    """The words with the program's own file first; what only a Python understands gets this one."""
    if not program:
        raise click.UsageError("there is no program to run; write it after --, as in -- python train.py")
    if program[0].endswith(".py") or program[0] in _PYTHON_WORDS:
        return [sys.executable, *program]
    found = shutil.which(program[0])
    if found is None:
        raise click.UsageError(f"no program {printable(program[0])!r} is on the PATH, or none to execute")
    return [found, *program[1:]]


def _errand(to: Path, words: list[str], asked: dict[str, Any]) -> LaunchSpec:
    run = agree_on_run(Path(os.path.abspath(to)), timestamp_zone(None), rank_info(), attempt=0)
    scripts = [Path(word).stem for word in words[1:] if word.endswith(".py")]
    return LaunchSpec(
        run=str(run),
        notes=tempfile.mkdtemp(prefix="tensortap-run-"),
        startup=child_process.STARTUP_FOLDER,
        patterns=(*asked["taps"], *asked["variables"]),
        every=asked["every"],
        first=asked["first"],
        keep=asked["keep"],
        when=asked["when"],
        live=(*scripts, Path(words[0]).stem)[0] if asked["live"] else "",
        folder=working_directory(),
    )


def _describe(account: RunOutcome) -> None:
    """As it is before the program begins; a process of it that has a model will know more."""
    run = Path(account.spec.run)
    if rank_info().rank != 0:
        return
    try:
        with patched_argv(account.command) as start:
            Metadata(run, start=start).write()
    except OSError as error:
        raise write_failed_error("the metadata", run, error) from error
    cancel_outcome(run / OWN_FOLDER)


def _forget_run(account: RunOutcome, *, is_first: bool) -> None:
    """What was never started leaves nothing behind."""
    shutil.rmtree(account.spec.run, ignore_errors=True)
    if is_first:
        with suppress(OSError):
            os.rmdir(os.path.dirname(account.spec.run))


def _keep_end(account: RunOutcome) -> None:
    """The program is over: its exit code is not given away for a file that cannot be written."""
    try:
        account.save()
    except OSError as error:
        note(f"how it ended is not written: {error.strerror or error}", "run")


def _report(account: RunOutcome, path: Path) -> None:
    facts = {"schema": "tensortap.run/1", **plain(account.facts)}
    try:
        path.write_text(json.dumps(facts, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        note(f"{path} is not written: {error.strerror or error}", "run")


def _why_nothing(pattern: str, told: dict[str, Any], *, has_model: bool) -> str:
    module, colon, variable = pattern.partition(":")
    if told["reason"]:
        return str(told["reason"])
    if colon:
        own = f"; functions of the script itself are __main__:{variable}" if module != "__main__" else ""
        return f"{pattern!r} selected nothing: the program imported no module {module!r}{own}"
    near = f"; did you mean {' or '.join(map(repr, told['near']))}?" if told["near"] else ""
    return f"{pattern!r} selected nothing{near if has_model else ': no model was called'}"


def _tell(account: RunOutcome, *, is_quiet: bool) -> None:
    for text, told in account.unmatched.items():
        note(_why_nothing(text, told, has_model=bool(account.processes)), "run")
    if account.has_no_report and account.spec.patterns:
        note("the program ended before it could tell what was selected; what was written can be read", "run")
    _tell_lacks(account)
    for name in dict.fromkeys(one for process in account.processes for one in process["let_go"]):
        note(f"nothing more came from {name}: it was given to torch.jit, which cannot follow hooks", "run")
    if account.python_without_tensortap:
        note(
            f"{account.python_without_tensortap} has no tensortap, so nothing was seen of it; install it there",
            "run",
        )
    elif not account.was_watched:
        note("no Python was reached: there was none, or one with -I, -E or -S", "run")
    if not is_quiet:
        note(f"{_shown(account.spec.run)}: {_summary(account)}", "run")


def _tell_lacks(account: RunOutcome) -> None:
    refused = [one for process in account.processes for one in process["refused"]]
    kinds = {"nothing came from {}: {}": account.missing, "a value of {} is left out: {}": refused}
    for sentence, lacks in kinds.items():
        for name, reason in lacks[:_MOST_TOLD]:
            note(sentence.format(name, reason), "run")
        if len(lacks) > _MOST_TOLD:
            note(
                f"and {len(lacks) - _MOST_TOLD} more, which {OWN_FOLDER}/{PROGRAM_FILE} of the run lists",
                "run",
            )


def _shown(path: str) -> str:
    """As it can be typed here, where there is still a folder."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:
        return path
    return path.removeprefix(here)


def _summary(account: RunOutcome) -> str:
    steps = max((process["steps"] for process in account.processes), default=0)
    words = [counted(account.records, "record")] if account.spec.patterns or account.records else []
    words += [counted(steps, "step")] if steps else []
    return ", ".join([*words, f"{account.seconds:.1f} s", _end(account.status or 0)])


def _end(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"ended by signal {-status}"
