"""`tensortap gc`: what could be deleted below folders, and delete it once that is agreed to."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from tensortap.cli.output import format_count, json_option, note, size, write, write_json, write_table
from tensortap.core.errors import RefusedError
from tensortap.live.discovery import stale_files
from tensortap.readers.cleanup import (
    GARBAGE_KINDS,
    Garbage,
    find_garbage_in_run,
    find_old_launches,
    garbage_at,
)
from tensortap.readers.listing import RunFinder, runs_being_written

_HEAD = ("what", "size", "path")
_HELP = """What could be deleted below folders (else below the current one), and delete it once you agree.

\b
draft      a file that a writer which has ended left half done
cache      what is computed again when it is needed
launch     where the ranks of a launch met, more than an hour ago
empty run  a run without a record or a fact
socket     of a job that has ended

A run that is being written is left alone, links are not followed, and no recorded value is ever deleted.

\b
exit codes:
  0  done, or nothing to do
  4  refused: nobody was there to agree"""


@click.command(help=_HELP)
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path())
@click.option("--dry-run", is_flag=True, help="List only.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.option(
    "--only", multiple=True, type=click.Choice(GARBAGE_KINDS), help="This kind alone; may be repeated."
)
@json_option
def command(folders: tuple[str, ...], dry_run: bool, yes: bool, only: tuple[str, ...], as_json: bool) -> None:
    garbage = [entry for entry in _find_garbage(list(folders) or ["."]) if not only or entry.kind in only]
    total = sum(entry.nbytes for entry in garbage)
    if not as_json and garbage:
        write_table(
            _HEAD, [[entry.kind, size(entry.nbytes), str(entry.path)] for entry in garbage], right={"size"}
        )
        write(f"{format_count(len(garbage), 'thing')}, {size(total)}")
    deleted = [] if dry_run or not garbage or not _confirm(len(garbage), total, yes) else _delete(garbage)
    if as_json:
        write_json("gc", {"items": [_facts(entry, entry in deleted) for entry in garbage], "bytes": total})
    elif not garbage:
        note("there is nothing to delete", "gc")
    elif deleted:
        note(
            f"deleted {format_count(len(deleted), 'thing')}, {size(sum(entry.nbytes for entry in deleted))}",
            "gc",
        )


def _find_garbage(folders: list[str]) -> list[Garbage]:
    finder = RunFinder(list(folders))
    runs = list(finder)
    being_written = runs_being_written()
    parents = sorted({*(run.parent for run in runs), *map(Path, folders)})
    garbage = [entry for run in runs for entry in find_garbage_in_run(run, being_written)]
    garbage += [entry for folder in parents for entry in find_old_launches(folder)]
    garbage += filter(None, (garbage_at("socket", path) for path in stale_files()))
    for problem in finder.problems:
        note(problem, "gc")
    return list(dict.fromkeys(garbage))


def _confirm(count: int, total: int, yes: bool) -> bool:
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError(
            f"{format_count(count, 'thing')} of {size(total)} could be deleted, but there is no terminal to "
            "ask; --yes agrees, --dry-run only lists"
        )
    return click.confirm("delete these?", default=False, err=True)


def _delete(garbage: list[Garbage]) -> list[Garbage]:
    """Delete what has not changed since it was listed; return what was deleted."""
    being_written = runs_being_written()
    deleted = []
    for entry in garbage:
        if any(run in entry.path.resolve().parents or run == entry.path.resolve() for run in being_written):
            continue
        if entry.remove():
            deleted.append(entry)
        else:
            note(f"{os.fspath(entry.path)} has changed or cannot be deleted; it stays", "gc")
    return deleted


def _facts(entry: Garbage, is_deleted: bool) -> dict[str, Any]:
    return {"what": entry.kind, "path": str(entry.path), "bytes": entry.nbytes, "deleted": is_deleted}
