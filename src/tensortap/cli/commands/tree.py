"""`tensortap tree RUN`: the modules of a run with their values, folded, each with its range."""

import json
import sys
from pathlib import Path
from typing import Any

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
    style_text,
    write,
    write_json,
)
from tensortap.formats.run_layout import INTERNAL_FOLDER, MODEL_FILE
from tensortap.readers.index_counts import file_ends
from tensortap.readers.listing import describe_lost_files, file_ends_from_cells
from tensortap.readers.run import Run
from tensortap.readers.stored_record import UNREADABLE, display_row
from tensortap.render.value_rows import ValueRow
from tensortap.render.value_tree import render_value_tree, stream_limits

_MAX_RECORDS, _MAX_BYTES = 20_000, 2 << 30  # above, only the last step is read by default
_HELP = """The modules of a RUN with their values: type, shape, range and spread.

PATTERN selects names as tt.capture does: 'layers.0-5.attn', '**.mlp', 'attn.in'. Values that look alike are
one line; NaN and Inf stand apart. Statistics are computed once and kept in the run."""


@click.command(help=_HELP)
@click.argument("run", type=click.Path())
@click.argument("pattern", required=False)
@step_and_rank_options
@json_option
def command(run: str, pattern: str | None, step: str | None, rank: str | None, as_json: bool) -> int:
    source = open_run(run)
    records = select_records(source, pattern, step, rank)
    if step is None and _is_too_large(records):
        records = _last_step(records)
    rows = [display_row(record) for record in progress(records, "reading", len(records))]
    problems = [*source.problems, *describe_lost_files(source.path, _file_ends(records))]
    note_problems(problems, "tree")
    if as_json:
        write_json("tree", {"run": run, "values": [_facts(row) for row in rows]})
    else:
        _write(source.path, rows)
    is_damaged = problems or any(row.note.startswith(UNREADABLE) for row in rows)
    return MISSING if is_damaged else OK


def _write(path: Path, rows: list[ValueRow]) -> None:
    model = _read_model_facts(path)
    text = render_value_tree(
        rows, _title(path, model), (), *stream_limits(sys.stdout), classes=model.get("modules")
    )
    write("\n".join(style_text(line, "yellow") if "! " in line else line for line in text.split("\n")))


def _is_too_large(records: Run) -> bool:
    return len(records) > _MAX_RECORDS or _nbytes(records) > _MAX_BYTES


def _nbytes(records: Run) -> int:
    return (
        sum(records.cells()["nbytes"]) if records.is_narrowed else int(records.columns.plain["nbytes"].sum())
    )


def _file_ends(records: Run) -> dict[str, int]:
    return file_ends_from_cells(records.cells()) if records.is_narrowed else file_ends(records.columns)


def _last_step(records: Run) -> Run:
    last = select_records(records, None, "last", None)
    if len(last) < len(records):
        description = f"{format_count(len(records), 'record')} of {size(_nbytes(records))}"
        note(f"{description}: only the last step is shown; --step 0..9 shows others", "tree")
    return last


def _read_model_facts(path: Path) -> dict[str, Any]:
    """Facts of the captured model, such as the classes of its modules; empty if there is none."""
    try:
        content = json.loads((path / INTERNAL_FOLDER / MODEL_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _title(path: Path, model: dict[str, Any]) -> str:
    return " ".join(filter(None, [path.absolute().name, str(model.get("class") or "")]))


def _facts(row: ValueRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "step": row.step,
        "rank": row.rank,
        "call": row.call,
        "dtype": row.dtype,
        "shape": row.shape,
        "device": row.device,
        "min": row.low,
        "max": row.high,
        "mean": row.mean,
        "std": row.sigma,
        "nan": row.nan,
        "inf": row.inf,
        "count": row.count,
        "note": row.note,
    }
