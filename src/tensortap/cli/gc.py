"""`tensortap gc`: what could be deleted below folders, and delete it once that is agreed to."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from tensortap.cli.output import counted, json_option, note, size, write, write_json, write_table
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
    found = [one for one in _found(list(folders) or ["."]) if not only or one.kind in only]
    total = sum(one.nbytes for one in found)
    if not as_json and found:
        write_table(_HEAD, [[one.kind, size(one.nbytes), str(one.path)] for one in found], right={"size"})
        write(f"{counted(len(found), 'thing')}, {size(total)}")
    gone = [] if dry_run or not found or not _is_agreed(len(found), total, yes) else _removed(found)
    if as_json:
        write_json("gc", {"items": [_facts(one, one in gone) for one in found], "bytes": total})
    elif not found:
        note("there is nothing to delete", "gc")
    elif gone:
        note(f"deleted {counted(len(gone), 'thing')}, {size(sum(one.nbytes for one in gone))}", "gc")


def _found(folders: list[str]) -> list[Garbage]:
    gallery = RunFinder(list(folders))
    runs = list(gallery)
    being_written = runs_being_written()
    beside = sorted({*(run.parent for run in runs), *map(Path, folders)})
    found = [one for run in runs for one in find_garbage_in_run(run, being_written)]
    found += [one for folder in beside for one in find_old_launches(folder)]
    found += filter(None, (garbage_at("socket", path) for path in stale_files()))
    for problem in gallery.problems:
        note(problem, "gc")
    return list(dict.fromkeys(found))


def _is_agreed(count: int, total: int, yes: bool) -> bool:
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError(
            f"{counted(count, 'thing')} of {size(total)} could be deleted, but there is no terminal to ask; "
            "--yes agrees, --dry-run only lists"
        )
    return click.confirm("delete these?", default=False, err=True)


def _removed(found: list[Garbage]) -> list[Garbage]:
    """What was written to since it was listed stays."""
    being_written = runs_being_written()
    gone = []
    for one in found:
        if any(run in one.path.resolve().parents or run == one.path.resolve() for run in being_written):
            continue
        if one.remove():
            gone.append(one)
        else:
            note(f"{os.fspath(one.path)} has changed or cannot be deleted; it stays", "gc")
    return gone


def _facts(one: Garbage, is_gone: bool) -> dict[str, Any]:
    return {"what": one.kind, "path": str(one.path), "bytes": one.nbytes, "deleted": is_gone}
