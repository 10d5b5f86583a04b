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

from tensortap.cli.output import format_count, note, printable, to_json_value
from tensortap.core.filesystem import working_directory
from tensortap.core.launch_spec import LaunchSpec
from tensortap.core.ranks import rank_info
from tensortap.formats.run_layout import agree_on_run, write_failed_error
from tensortap.launcher import child_process
from tensortap.launcher.outcome import PROGRAM_FILE, RunOutcome, patched_argv
from tensortap.metadata.collect import OWN_FOLDER, Metadata
from tensortap.metadata.process import cancel_outcome, timestamp_zone

_HELP = """Run any program, unedited: python train.py, torchrun ..., -m module, a script on the PATH.

It gets a run under --to with what is needed to reproduce it. With --tap, what the patterns select in its
models is written there too: models are found when they are first called, in children and ranks as well.
Steps are those of its optimizer, else forwards. Output, input, signals and exit code are the program's own.

\b
  tensortap run -- python train.py --lr 3e-4
  tensortap run --tap 'layers.*' --every 100 -- torchrun --nproc-per-node 2 train.py
  tensortap run --locals 'mypackage.loss:focal.weights' -- -m mypackage.train
"""
_PYTHON_OPTIONS = ("-m", "-c")
_MAX_NOTES = 5


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
def command(program: tuple[str, ...], to: Path, report: Path | None, quiet: bool, **options: Any) -> int:
    words = _resolve_program(program)
    if not all((*options["taps"], *options["variables"])):
        raise click.UsageError("a pattern is empty; --tap '**' takes every module, and no --tap takes none")
    if report is not None and not report.absolute().parent.is_dir():
        raise click.UsageError(f"--json {report}: there is no folder {report.parent}")
    is_new_folder = not to.exists()
    outcome = RunOutcome(_make_launch_spec(to, words, options), words)
    try:
        _write_metadata(outcome)
        outcome.save()  # saved before the program starts, in case this process is killed
        started_at = monotonic()
        status = outcome.status = child_process.run_program(words, outcome.spec.environment())
        outcome.seconds = monotonic() - started_at
    except child_process.CannotStartError as error:
        _delete_run(outcome, is_new_folder=is_new_folder)
        raise click.UsageError(str(error)) from None
    finally:
        outcome.read_reports()
    _save_outcome(outcome)
    if report is not None:
        _write_report(outcome, report)
    _write_notes(outcome, is_quiet=quiet)
    return child_process.exit_like(status)


def _resolve_program(program: tuple[str, ...]) -> list[str]:
    """The command with the path of its executable; a script, -m or -c runs with this Python."""
    if not program:
        raise click.UsageError("there is no program to run; write it after --, as in -- python train.py")
    if program[0].endswith(".py") or program[0] in _PYTHON_OPTIONS:
        return [sys.executable, *program]
    executable = shutil.which(program[0])
    if executable is None:
        raise click.UsageError(f"no program {printable(program[0])!r} is on the PATH, or none to execute")
    return [executable, *program[1:]]


def _make_launch_spec(to: Path, words: list[str], options: dict[str, Any]) -> LaunchSpec:
    run = agree_on_run(Path(os.path.abspath(to)), timestamp_zone(None), rank_info(), attempt=0)
    scripts = [Path(word).stem for word in words[1:] if word.endswith(".py")]
    return LaunchSpec(
        run=str(run),
        notes=tempfile.mkdtemp(prefix="tensortap-run-"),
        startup=child_process.STARTUP_FOLDER,
        patterns=(*options["taps"], *options["variables"]),
        every=options["every"],
        first=options["first"],
        keep=options["keep"],
        when=options["when"],
        live=(*scripts, Path(words[0]).stem)[0] if options["live"] else "",
        folder=working_directory(),
    )


def _write_metadata(outcome: RunOutcome) -> None:
    """Write the metadata before the program starts; a process with a model adds to it."""
    run = Path(outcome.spec.run)
    if rank_info().rank != 0:
        return
    try:
        with patched_argv(outcome.command) as start:
            Metadata(run, start=start).write()
    except OSError as error:
        raise write_failed_error("the metadata", run, error) from error
    cancel_outcome(run / OWN_FOLDER)


def _delete_run(outcome: RunOutcome, *, is_new_folder: bool) -> None:
    """Delete the run of a program that was never started."""
    shutil.rmtree(outcome.spec.run, ignore_errors=True)
    if is_new_folder:
        with suppress(OSError):
            os.rmdir(os.path.dirname(outcome.spec.run))


def _save_outcome(outcome: RunOutcome) -> None:
    """Save the outcome; failing to write it must not change the exit code."""
    try:
        outcome.save()
    except OSError as error:
        note(f"how it ended is not written: {error.strerror or error}", "run")


def _write_report(outcome: RunOutcome, path: Path) -> None:
    facts = {"schema": "tensortap.run/1", **to_json_value(outcome.facts)}
    try:
        path.write_text(json.dumps(facts, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        note(f"{path} is not written: {error.strerror or error}", "run")


def _describe_no_match(pattern: str, facts: dict[str, Any], *, has_model: bool) -> str:
    module, colon, variable = pattern.partition(":")
    if facts["reason"]:
        return str(facts["reason"])
    if colon:
        hint = f"; functions of the script itself are __main__:{variable}" if module != "__main__" else ""
        return f"{pattern!r} selected nothing: the program imported no module {module!r}{hint}"
    near = f"; did you mean {' or '.join(map(repr, facts['near']))}?" if facts["near"] else ""
    return f"{pattern!r} selected nothing{near if has_model else ': no model was called'}"


def _write_notes(outcome: RunOutcome, *, is_quiet: bool) -> None:
    for pattern, facts in outcome.unmatched.items():
        note(_describe_no_match(pattern, facts, has_model=bool(outcome.processes)), "run")
    if outcome.has_no_report and outcome.spec.patterns:
        note("the program ended before it could tell what was selected; what was written can be read", "run")
    _write_missing_notes(outcome)
    for name in dict.fromkeys(module for process in outcome.processes for module in process["let_go"]):
        note(f"nothing more came from {name}: it was given to torch.jit, which cannot follow hooks", "run")
    if outcome.python_without_tensortap:
        note(
            f"{outcome.python_without_tensortap} has no tensortap, so nothing was seen of it; "
            "install it there",
            "run",
        )
    elif not outcome.was_watched:
        note("no Python was reached: there was none, or one with -I, -E or -S", "run")
    if not is_quiet:
        note(f"{_relative_path(outcome.spec.run)}: {_describe_outcome(outcome)}", "run")


def _write_missing_notes(outcome: RunOutcome) -> None:
    refused = [entry for process in outcome.processes for entry in process["refused"]]
    entries_by_sentence = {
        "nothing came from {}: {}": outcome.missing,
        "a value of {} is left out: {}": refused,
    }
    for sentence, entries in entries_by_sentence.items():
        for name, reason in entries[:_MAX_NOTES]:
            note(sentence.format(name, reason), "run")
        if len(entries) > _MAX_NOTES:
            note(
                f"and {len(entries) - _MAX_NOTES} more, which {OWN_FOLDER}/{PROGRAM_FILE} of the run lists",
                "run",
            )


def _relative_path(path: str) -> str:
    """The path relative to the current folder, if that still exists."""
    try:
        current_folder = os.path.join(os.getcwd(), "")
    except OSError:
        return path
    return path.removeprefix(current_folder)


def _describe_outcome(outcome: RunOutcome) -> str:
    steps = max((process["steps"] for process in outcome.processes), default=0)
    parts = [format_count(outcome.records, "record")] if outcome.spec.patterns or outcome.records else []
    parts += [format_count(steps, "step")] if steps else []
    return ", ".join([*parts, f"{outcome.seconds:.1f} s", _describe_exit(outcome.status or 0)])


def _describe_exit(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"ended by signal {-status}"
