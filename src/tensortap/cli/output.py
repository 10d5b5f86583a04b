"""Output of the commands: results to stdout, notes to stderr, tables, JSON, colours, progress."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, TextIO, TypeVar

import click

from tensortap.core.settings import setting
from tensortap.render.text import format_nbytes, format_table

size = format_nbytes  # how commands write a number of bytes
SAME = OK = 0
DIFFERENT, USAGE, MISSING, REFUSED = 1, 2, 3, 4
Item = TypeVar("Item")
_MIN_COLUMN_WIDTH = 12  # characters of a column that may be shortened
_MAX_PROBLEMS = 5
_PROGRESS_DELAY = 0.5  # seconds of work before a progress bar is shown

json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object, for programs.")


def write(text: str = "") -> None:
    """Write a result to stdout; characters that its encoding lacks are escaped."""
    print(_escape_unencodable(text, sys.stdout))


def note(text: str, command: str = "") -> None:
    """Write a note about the results to stderr."""
    prefix = f"tensortap {command}".rstrip()
    print(_escape_unencodable(f"{prefix}: {_escape_controls(text)}", sys.stderr), file=sys.stderr)


def note_problems(problems: Sequence[str], command: str) -> None:
    """Note the first problems of a run: a damaged index may have many."""
    for problem in problems[:_MAX_PROBLEMS]:
        note(problem, command)
    if len(problems) > _MAX_PROBLEMS:
        more = format_count(len(problems) - _MAX_PROBLEMS, "more problem")
        note(f"{more}; tensortap verify tells all", command)


def write_json(name: str, facts: dict[str, Any], version: int = 1) -> None:
    """Write one JSON object on one line, its schema first, and flush; NaN and Inf become strings."""
    print(
        json.dumps({"schema": f"tensortap.{name}/{version}", **to_json_value(facts)}, allow_nan=False),
        flush=True,
    )


def to_json_value(value: Any) -> Any:
    """The value as JSON can represent it: NaN and Inf, paths and non-str keys as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): to_json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def write_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    shortened: str = "",
    colours: Mapping[str, str] | None = None,
) -> None:
    """Write aligned columns, those in `right` right-aligned. On a terminal, rich colours cells by their first
    word, and the column `shortened` is cut to fit; never in a pipe."""
    lines = [[printable(cell) for cell in row] for row in rows]
    if not wants_colours() or not _print_with_rich(list(head), lines, right, shortened, colours or {}):
        write(format_table(_align([list(head), *lines], [name in right for name in head])))


def style_text(text: str, style: str) -> str:
    """The text in a click colour (`green`, `red`, `yellow`, `bold`), if stdout takes colours."""
    if not wants_colours():
        return text
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style)


def wants_colours(stream: TextIO | None = None) -> bool:
    """Whether the stream is a terminal, and colours are not disabled."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not setting("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Columns of the terminal; None for a pipe, where output is never cut."""
    if not sys.stdout.isatty():
        return None
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 80


def progress(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """Yield the items, with a progress bar on stderr if it is a terminal and the work takes a while."""
    if not sys.stderr.isatty():
        yield from items
        return
    last_update, is_shown = monotonic(), False
    for done, item in enumerate(items):
        if monotonic() - last_update > _PROGRESS_DELAY:
            last_update, is_shown = monotonic() - _PROGRESS_DELAY + 0.1, True
            print(f"\r\x1b[2K{label} {_bar(done, total)} {done}/{total}", end="", file=sys.stderr, flush=True)
        yield item
    if is_shown:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """A name that is safe to print: one with control characters or surrounding blanks is quoted."""
    return text if text.isprintable() and text.strip() == text else repr(text)


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`, `12,345 records`"""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _print_with_rich(
    head: list[str],
    lines: list[list[str]],
    right: Collection[str],
    shortened: str,
    colours: Mapping[str, str],
) -> bool:
    """Print the table with rich; return whether it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    lines = _shorten_column(head, lines, shortened)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for line in lines:
        styles = [colours.get(cell.partition(",")[0], "") for cell in line]
        table.add_row(*map(Text, line, styles))
    # Wider than the terminal, lines wrap: better than a cut name.
    table_width = max(terminal_width() or 0, sum(_widths(head, lines)) + 2 * len(head))
    Console(file=sys.stdout, highlight=False, markup=False, width=table_width).print(table)
    return True


def _shorten_column(head: list[str], lines: list[list[str]], shortened: str) -> list[list[str]]:
    """The lines with one column cut to the remaining terminal width."""
    widths = _widths(head, lines)
    excess = sum(widths) + 2 * len(head) - (terminal_width() or 0)
    if shortened not in head or excess <= 0:
        return lines
    column = head.index(shortened)
    limit = max(_MIN_COLUMN_WIDTH, widths[column] - excess)
    shortened_cells = [
        line[column] if len(line[column]) <= limit else line[column][: limit - 1] + "…" for line in lines
    ]
    return [
        [*line[:column], cell, *line[column + 1 :]] for line, cell in zip(lines, shortened_cells, strict=True)
    ]


def _widths(head: list[str], lines: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(head, *lines, strict=True)]


def _align(rows: list[list[str]], is_right: list[bool]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(is_right))]
    return [
        [
            cell.rjust(column_width) if right else cell
            for cell, column_width, right in zip(row, widths, is_right, strict=True)
        ]
        for row in rows
    ]


def _bar(done: int, total: int, length: int = 24) -> str:
    filled = length * done // max(total, 1)
    return "#" * filled + "." * (length - filled)


def _escape_controls(text: str) -> str:
    """Escape control characters: a message may quote any name."""
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1]
        for character in text
    )


def _escape_unencodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
