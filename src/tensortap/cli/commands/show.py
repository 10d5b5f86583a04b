"""`tensortap show RUN:NAME@STEP`: one value: where it is from, its statistics, a histogram, a heat map."""

import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import click

from tensortap.cli import plots
from tensortap.cli.address import parse_address, parse_step_or_rank, split_step
from tensortap.cli.output import (
    format_count,
    json_option,
    note,
    note_problems,
    printable,
    size,
    to_json_value,
    write,
    write_json,
    write_table,
)
from tensortap.cli.show_subject import (
    TRACE_SUFFIXES,
    ShownValue,
    find_in_file,
    find_in_run,
    find_in_safetensors,
    find_in_trace,
)
from tensortap.core.errors import RefusedError
from tensortap.formats.safetensors import SUFFIX
from tensortap.kernels.decode import decode
from tensortap.readers.run import Run
from tensortap.render.plots import ArraySummary, default_index, format_index, index_array, summarize_array
from tensortap.render.text import ShortRepr

_LIST_HEAD = ("name", "kind", "records", "dtype", "shape", "size")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HELP = """One value: where it is from, statistics, a histogram, a heat map, its way over the steps.

\b
WHERE  RUN                     the names of a run
       RUN:layers.0.attn       its latest value
       RUN:layers.0.attn@137   the one of step 137
       value.npy, a.npz:name   a file of values, also .safetensors
       trace.h5:forward.x@3    a trace"""


@click.command(help=_HELP)
@click.argument("where", type=click.Path())
@click.option(
    "--step", callback=parse_step_or_rank, metavar="N", help="The value of this step: 3, first or last."
)
@click.option(
    "--rank", callback=parse_step_or_rank, metavar="N", help="The value of this rank: 3, first or last."
)
@click.option("--call", type=int, help="The n-th of its name in its step, from 0.")
@click.option("--slice", "index", metavar="INDEX", help="The part to draw: 0,3,:,: or ...,1:5.")
@click.option("--bars", default=12, type=click.IntRange(1, 1000), help="Lines of the histogram.")
@click.option("--values", "with_values", is_flag=True, help="Print the numbers themselves, all of the slice.")
@click.option("--image", type=click.Path(), metavar="FILE", help="Write the heat map as a PNG file.")
@click.option("--trust", is_flag=True, help="Read a pickle of unknown origin, which may run code.")
@json_option
def command(
    where: str, index: str | None, bars: int, image: str | None, as_json: bool, **options: Any
) -> None:
    shown = _find_subject(where, options)
    if image is not None:
        _check_image(shown, where, Path(image))
    if isinstance(shown, list):
        _write_list(where, shown, as_json)
    elif shown.bits is None:
        _write_non_array(shown, as_json)
    else:
        _write_array(shown, index, bars, image, options["with_values"], as_json)


def _find_subject(where: str, options: dict[str, Any]) -> ShownValue | list[dict[str, Any]]:
    address = parse_address(where)
    if address.path.suffix in TRACE_SUFFIXES:
        return find_in_trace(address, options["step"], options["rank"], options["call"])
    if not address.path.is_dir():
        _check_has_no_steps(address.path, options)
        if address.path.suffix == SUFFIX:
            return find_in_safetensors(address.path, address.name)
        return find_in_file(address.path, address.name, trust=options["trust"])
    run = Run(address.path)
    note_problems(run.problems, "show")
    address = split_step(run, address)
    step = options["step"] if options["step"] is not None else address.step
    return find_in_run(run, address.name, step, options["rank"], options["call"], trust=options["trust"])


def _check_has_no_steps(path: Path, options: dict[str, Any]) -> None:
    for name in ("step", "rank", "call"):
        if options[name] is not None:
            raise click.UsageError(
                f"--{name} chooses among the values of a run; {path.name} is a file of values"
            )


def _check_image(shown: ShownValue | list[dict[str, Any]], where: str, path: Path) -> None:
    if isinstance(shown, list):
        raise click.UsageError(f"--image draws one value of {where}; tensortap show {where} lists them")
    if shown.bits is None:
        raise click.UsageError(f"--image draws numbers, and {where} holds none")
    if path.exists() and not _is_png(path):
        raise RefusedError(f"{path} exists and is no PNG file, so it is not replaced; choose another name")


def _is_png(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PNG_SIGNATURE)) == _PNG_SIGNATURE


def _write_list(where: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json("show", {"where": where, "values": rows})
        return
    lines = [
        [str(row["name"]) or "''", row["kind"], f"{row['records']:,}", row["dtype"], _shape(row), _size(row)]
        for row in rows
    ]
    write_table(_LIST_HEAD, lines, right={"records", "size"})
    note(f"{format_count(len(rows), 'name')}; tensortap show {quote(where)}:NAME shows one", "show")


def _size(row: dict[str, Any]) -> str:
    return "" if row["bytes"] is None else size(row["bytes"])


def _shape(row: dict[str, Any]) -> str:
    return "" if row["shape"] is None else str(list(row["shape"]))


def _write_non_array(shown: ShownValue, as_json: bool) -> None:
    if as_json:
        write_json("show", {**shown.facts, "text": ShortRepr().format(shown.value)})
        return
    _write_header(shown)
    write(ShortRepr().format(shown.value))


def _write_array(
    shown: ShownValue, index: str | None, bars: int, image: str | None, with_values: bool, as_json: bool
) -> None:
    selected = shown.parse_index(index) if index is not None else None
    bits = shown.bits if selected is None else index_array(shown.bits, selected)
    summary = summarize_array(
        bits, shown.dtype, bins=bars, known=shown.known_statistics if selected is None else None
    )
    drawn_index = selected if selected is not None else default_index(shown.bits.shape)
    if image is not None:
        _write_image(Path(image), plots.heat_map_png(shown.bits, shown.dtype, drawn_index))
    if as_json:
        facts = {
            **shown.facts,
            "slice": format_index(drawn_index) if selected is not None else None,
            **_summary_facts(summary),
        }
        values = {"values": to_json_value(decode(bits, shown.dtype).tolist())} if with_values else {}
        write_json("show", {**facts, "history": shown.history, **values})
    elif with_values:
        for line in plots.value_lines(bits, shown.dtype):
            write(line)
    else:
        _write_summary(shown, summary, drawn_index)


def _write_summary(shown: ShownValue, summary: ArraySummary, drawn_index: Any) -> None:
    _write_header(shown)
    sections = [
        list(plots.statistics_lines(summary)),
        list(plots.histogram_lines(summary)),
        list(plots.heat_map_lines(shown.bits, shown.dtype, drawn_index)),
        list(plots.sparkline_lines(shown.history)),
    ]
    write("\n\n".join("\n".join(lines) for lines in sections if lines))


def _write_header(shown: ShownValue) -> None:
    write("\n".join(printable(line) for line in shown.header))


def _summary_facts(summary: ArraySummary) -> dict[str, Any]:
    return {
        "statistics": asdict(summary.statistics),
        "percentiles": summary.percentiles,
        "histogram": summary.histogram,
        "sampled_every": summary.stride,
    }


def _write_image(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    print(f"tensortap show: written to {path}", file=sys.stderr)
