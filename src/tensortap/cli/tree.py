"""`tensortap tree RUN`: the modules of a run with their values, folded, each with its range."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from tensortap.cli.address import chosen, opened_run, step_and_rank
from tensortap.cli.output import (
    MISSING,
    OK,
    counted,
    json_option,
    note,
    note_problems,
    progress,
    size,
    styled,
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

_MOST_RECORDS, _MOST_BYTES = 20_000, 2 << 30  # beyond, only the last step is looked at unless asked
_HELP = """The modules of a RUN with their values: type, shape, range and spread.

PATTERN selects names as tt.capture does: 'layers.0-5.attn', '**.mlp', 'attn.in'. Values that look alike are
one line; NaN and Inf stand apart. Statistics are computed once and kept in the run."""


@click.command(help=_HELP)
@click.argument("run", type=click.Path())
@click.argument("pattern", required=False)
@step_and_rank
@json_option
def command(run: str, pattern: str | None, step: str | None, rank: str | None, as_json: bool) -> int:
    opened = opened_run(run)
    found = chosen(opened, pattern, step, rank)
    if step is None and _is_much(found):
        found = _last_step(found)
    rows = [display_row(one) for one in progress(found, "reading", len(found))]
    problems = [*opened.problems, *describe_lost_files(opened.path, _ends(found))]
    note_problems(problems, "tree")
    if as_json:
        write_json("tree", {"run": run, "values": [_facts(row) for row in rows]})
    else:
        _write(opened.path, rows)
    is_damaged = problems or any(row.note.startswith(UNREADABLE) for row in rows)
    return MISSING if is_damaged else OK


def _write(path: Path, rows: list[ValueRow]) -> None:
    model = _model(path)
    text = render_value_tree(
        rows, _title(path, model), (), *stream_limits(sys.stdout), classes=model.get("modules")
    )
    write("\n".join(styled(line, "yellow") if "! " in line else line for line in text.split("\n")))


def _is_much(found: Run) -> bool:
    return len(found) > _MOST_RECORDS or _nbytes(found) > _MOST_BYTES


def _nbytes(found: Run) -> int:
    return sum(found.cells()["nbytes"]) if found.is_narrowed else int(found.columns.plain["nbytes"].sum())


def _ends(found: Run) -> dict[str, int]:
    return file_ends_from_cells(found.cells()) if found.is_narrowed else file_ends(found.columns)


def _last_step(found: Run) -> Run:
    last = chosen(found, None, "last", None)
    if len(last) < len(found):
        told = f"{counted(len(found), 'record')} of {size(_nbytes(found))}"
        note(f"{told}: only the last step is shown; --step 0..9 shows others", "tree")
    return last


def _model(path: Path) -> dict[str, Any]:
    """The classes of its modules, where a model was captured."""
    try:
        found = json.loads((path / INTERNAL_FOLDER / MODEL_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
