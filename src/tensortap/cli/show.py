"""`tensortap show RUN:NAME@STEP`: one value: where it is from, its statistics, a histogram, a heat map."""

import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import click

from tensortap.cli import plots
from tensortap.cli.address import named, one_place, target
from tensortap.cli.output import (
    counted,
    json_option,
    note,
    note_problems,
    plain,
    printable,
    size,
    write,
    write_json,
    write_table,
)
from tensortap.cli.show_subject import TRACES, Subject, in_file, in_run, in_tensors, in_trace
from tensortap.core.errors import RefusedError
from tensortap.formats.safetensors import SUFFIX
from tensortap.kernels.decode import decode
from tensortap.readers.run import Run
from tensortap.render.plots import ArraySummary, default_index, format_index, index_array, summarize_array
from tensortap.render.text import ShortRepr

_LIST_HEAD = ("name", "kind", "records", "dtype", "shape", "size")
_PNG = b"\x89PNG\r\n\x1a\n"
_HELP = """One value: where it is from, statistics, a histogram, a heat map, its way over the steps.

\b
WHERE  RUN                     the names of a run
       RUN:layers.0.attn       its latest value
       RUN:layers.0.attn@137   the one of step 137
       value.npy, a.npz:name   a file of values, also .safetensors
       trace.h5:forward.x@3    a trace"""


@click.command(help=_HELP)
@click.argument("where", type=click.Path())
@click.option("--step", callback=one_place, metavar="N", help="The value of this step: 3, first or last.")
@click.option("--rank", callback=one_place, metavar="N", help="The value of this rank: 3, first or last.")
@click.option("--call", type=int, help="The n-th of its name in its step, from 0.")
@click.option("--slice", "index", metavar="INDEX", help="The part to draw: 0,3,:,: or ...,1:5.")
@click.option("--bars", default=12, type=click.IntRange(1, 1000), help="Lines of the histogram.")
@click.option("--values", "with_values", is_flag=True, help="Print the numbers themselves, all of the slice.")
@click.option("--image", type=click.Path(), metavar="FILE", help="Write the heat map as a PNG file.")
@click.option("--trust", is_flag=True, help="Read a pickle of unknown origin, which may run code.")
@json_option
def command(where: str, index: str | None, bars: int, image: str | None, as_json: bool, **asked: Any) -> None:
    found = _subject(where, asked)
    if image is not None:
        _check_image(found, where, Path(image))
    if isinstance(found, list):
        _write_list(where, found, as_json)
    elif found.bits is None:
        _write_other(found, as_json)
    else:
        _write_numbers(found, index, bars, image, asked["with_values"], as_json)


def _subject(where: str, asked: dict[str, Any]) -> Subject | list[dict[str, Any]]:
    place = target(where)
    if place.path.suffix in TRACES:
        return in_trace(place, asked["step"], asked["rank"], asked["call"])
    if not place.path.is_dir():
        _check_has_no_steps(place.path, asked)
        if place.path.suffix == SUFFIX:
            return in_tensors(place.path, place.name)
        return in_file(place.path, place.name, trust=asked["trust"])
    run = Run(place.path)
    note_problems(run.problems, "show")
    place = named(run, place)
    step = asked["step"] if asked["step"] is not None else place.step
    return in_run(run, place.name, step, asked["rank"], asked["call"], trust=asked["trust"])


def _check_has_no_steps(path: Path, asked: dict[str, Any]) -> None:
    for name in ("step", "rank", "call"):
        if asked[name] is not None:
            raise click.UsageError(
                f"--{name} chooses among the values of a run; {path.name} is a file of values"
            )


def _check_image(found: Subject | list[dict[str, Any]], where: str, path: Path) -> None:
    if isinstance(found, list):
        raise click.UsageError(f"--image draws one value of {where}; tensortap show {where} lists them")
    if found.bits is None:
        raise click.UsageError(f"--image draws numbers, and {where} holds none")
    if path.exists() and not _is_picture(path):
        raise RefusedError(f"{path} exists and is no PNG file, so it is not replaced; choose another name")


def _is_picture(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PNG)) == _PNG


def _write_list(where: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json("show", {"where": where, "values": rows})
        return
    lines = [
        [str(row["name"]) or "''", row["kind"], f"{row['records']:,}", row["dtype"], _shape(row), _size(row)]
        for row in rows
    ]
    write_table(_LIST_HEAD, lines, right={"records", "size"})
    note(f"{counted(len(rows), 'name')}; tensortap show {quote(where)}:NAME shows one", "show")


def _size(row: dict[str, Any]) -> str:
    return "" if row["bytes"] is None else size(row["bytes"])


def _shape(row: dict[str, Any]) -> str:
    return "" if row["shape"] is None else str(list(row["shape"]))


def _write_other(found: Subject, as_json: bool) -> None:
    if as_json:
        write_json("show", {**found.facts, "text": ShortRepr().format(found.other)})
        return
    _write_head(found)
    write(ShortRepr().format(found.other))


def _write_numbers(
    found: Subject, index: str | None, bars: int, image: str | None, with_values: bool, as_json: bool
) -> None:
    chosen = found.index(index) if index is not None else None
    bits = found.bits if chosen is None else index_array(found.bits, chosen)
    look = summarize_array(bits, found.dtype, bins=bars, known=found.known if chosen is None else None)
    place = chosen if chosen is not None else default_index(found.bits.shape)
    if image is not None:
        _write_image(Path(image), plots.image(found.bits, found.dtype, place))
    if as_json:
        facts = {**found.facts, "slice": format_index(place) if chosen is not None else None, **_look(look)}
        values = {"values": plain(decode(bits, found.dtype).tolist())} if with_values else {}
        write_json("show", {**facts, "history": found.history, **values})
    elif with_values:
        for line in plots.value_lines(bits, found.dtype):
            write(line)
    else:
        _write_portrait(found, look, place)


def _write_portrait(found: Subject, look: ArraySummary, place: Any) -> None:
    _write_head(found)
    sections = [
        list(plots.statistics_lines(look)),
        list(plots.histogram_lines(look)),
        list(plots.heat_map_lines(found.bits, found.dtype, place)),
        list(plots.sparkline_lines(found.history)),
    ]
    write("\n\n".join("\n".join(lines) for lines in sections if lines))


def _write_head(found: Subject) -> None:
    write("\n".join(printable(line) for line in found.head))


def _look(look: ArraySummary) -> dict[str, Any]:
    return {
        "statistics": asdict(look.statistics),
        "percentiles": look.percentiles,
        "histogram": look.histogram,
        "sampled_every": look.stride,
    }


def _write_image(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    print(f"tensortap show: written to {path}", file=sys.stderr)
