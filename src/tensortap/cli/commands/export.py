"""`tensortap export RUN FILE`: values for other programs, or a page to send to someone."""

from collections.abc import Iterable
from pathlib import Path

import click

from tensortap.cli.address import open_run, select_records, step_and_rank_options
from tensortap.cli.output import (
    MISSING,
    OK,
    format_count,
    json_option,
    note,
    note_problems,
    progress,
    size,
    write,
    write_json,
)
from tensortap.core.errors import UnknownNameError
from tensortap.readers.stored_record import StoredRecord
from tensortap.recording.export import FORMATS, Exported, Format, export

_HELP = """Write the values of a RUN into one FILE for other programs, or a page to look at.

\b
FILE ends in  .npz          for numpy: all but objects; bf16 and fp8 as float32, which holds each
              .safetensors  exact
              .h5           a trace: one dataset for each name, with iterations and ranks
              .html         one page, at most 5 MB: the tree with statistics, cards of the values

A name that occurs once is its own key; else the key tells step, rank and call as far as they differ:
loss@step=3. Two runs in one page: tensortap compare A B --save FILE.html."""
_FORMATS: tuple[Format, ...] = ("npz", "safetensors", "hdf5", "html")


@click.command(help=_HELP)
@click.argument("run", type=click.Path())
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("pattern", required=False)
@step_and_rank_options
@click.option("--format", "form", type=click.Choice(_FORMATS), help="Where the end of FILE does not say.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
def command(
    run: str,
    file: Path,
    pattern: str | None,
    step: str | None,
    rank: str | None,
    form: Format | None,
    force: bool,
    as_json: bool,
) -> int:
    source = open_run(run)
    note_problems(source.problems, "export")
    records = select_records(source, pattern, step, rank)
    if not len(records):
        raise UnknownNameError(f"{run} holds no record, so there is nothing to export")
    exported = export(records, file, format=form, force=force, watch=_with_progress)
    for key, reason in list(exported.skipped.items())[:10]:
        note(f"{key!r} is left out: {reason}", "export")
    if len(exported.skipped) > 10:
        note(f"{format_count(len(exported.skipped) - 10, 'more value')} left out", "export")
    _write(exported, as_json, "dataset" if (form or FORMATS.get(file.suffix)) == "hdf5" else "value")
    return MISSING if exported.unreadable or source.problems else OK


def _with_progress(records: Iterable[StoredRecord], total: int) -> Iterable[StoredRecord]:
    return progress(records, "exporting", total)


def _write(exported: Exported, as_json: bool, noun: str) -> None:
    if as_json:
        facts = {
            "file": str(exported.path),
            "bytes": exported.nbytes,
            "keys": exported.keys,
            "skipped": exported.skipped,
        }
        write_json("export", facts)
    else:
        write(f"{exported.path}: {format_count(len(exported.keys), noun)}, {size(exported.nbytes)}")
