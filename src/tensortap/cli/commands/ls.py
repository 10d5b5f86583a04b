"""`tensortap ls`: the runs below folders, newest first, each in a line."""

from datetime import datetime
from pathlib import Path

import click

from tensortap.cli.output import format_count, json_option, note, printable, size, write_json, write_table
from tensortap.metadata.process import timestamp_zone
from tensortap.readers.listing import RunFinder, RunSummary, runs_being_written, summarize_run

_HEAD = ("name", "started", "state", "steps", "ranks", "records", "bytes", "commit", "command")
_RIGHT = {"steps", "ranks", "records", "bytes"}
_COLOURS = {"writing": "green", "cut off": "yellow", "damaged": "red"}
_SORT_KEYS = {
    "started": lambda run: -(run.started or 0.0),
    "name": lambda run: run.path.name,
    "records": lambda run: -run.records,
    "bytes": lambda run: -run.nbytes,
    "steps": lambda run: -len(run.steps),
    "state": lambda run: run.state,
}
_HELP = """The runs below folders (else below the current one), newest first.

\b
state  finished, writing (a process of this machine has it open), cut off
       (its program was killed; what was written is readable), damaged
commit the code it was made with; * means changes that were not committed"""


@click.command(help=_HELP)
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path())
@click.option("--sort", type=click.Choice(list(_SORT_KEYS)), default="started", help="What comes first.")
@click.option(
    "--where", metavar="QUERY", help="Only these: command:train.py steps>100 state:writing since:2h."
)
@json_option
def command(folders: tuple[str, ...], sort: str, where: str | None, as_json: bool) -> None:
    finder = RunFinder(list(folders) or ["."])
    being_written = runs_being_written()
    all_runs = sorted((summarize_run(path, being_written) for path in finder), key=_SORT_KEYS["started"])
    runs = sorted(all_runs if where is None else _filter_runs(all_runs, where), key=_SORT_KEYS[sort])
    for problem in finder.problems:
        note(problem, "ls")
    if as_json:
        write_json("ls", {"runs": [run.facts() for run in runs]})
    elif runs:
        write_table(_HEAD, [_row(run) for run in runs], right=_RIGHT, shortened="command", colours=_COLOURS)
    if not as_json:
        _write_notes(runs, folders, len(all_runs))


def _filter_runs(runs: list[RunSummary], query: str) -> list[RunSummary]:
    from tensortap.readers.run_query import filter_runs  # imported lazily: a plain list needs no numpy

    return filter_runs(runs, query)


def _row(run: RunSummary) -> list[str]:
    started = "" if run.started is None else _format_time(run.started)
    commit = run.commit[:8] + ("*" if run.is_dirty else "")
    counts = [str(len(run.steps)), str(len(run.ranks)), f"{run.records:,}", size(run.nbytes)]
    return [str(run.path), started, _describe_state(run), *counts, commit, run.command]


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timestamp_zone(None)).strftime("%Y-%m-%d %H:%M:%S")


def _describe_state(run: RunSummary) -> str:
    nonfinite = [f"{count} with {kind}" for count, kind in ((run.nan, "NaN"), (run.inf, "Inf")) if count]
    return ", ".join([run.state, *nonfinite])


def _write_notes(runs: list[RunSummary], folders: tuple[str, ...], count: int) -> None:
    """Notes on damaged runs, or that there is no run."""
    for run in runs:
        if run.problems:
            more = f", and {len(run.problems) - 1} more" if len(run.problems) > 1 else ""
            note(f"{printable(str(run.path))}: {run.problems[0]}{more}; tensortap verify tells all", "ls")
    if not runs:
        folder_names = " or ".join(map(printable, folders)) or str(Path.cwd())
        note(_describe_no_runs(folder_names, count), "ls")


def _describe_no_runs(folder_names: str, count: int) -> str:
    if count:
        return f"none of {format_count(count, 'run')} under {folder_names} is what --where asks for"
    return f"no run under {folder_names}; tt.init(folder) or tt.capture(model, to=folder) writes one"
