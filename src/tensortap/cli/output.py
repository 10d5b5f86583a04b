"""What every command writes with: results to stdout, notes to stderr, tables, JSON, colours, progress."""

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
_SHORTEST = 12  # letters of a column that may be cut
_MOST_PROBLEMS = 5
_PATIENCE = 0.5  # seconds of work before a bar is worth a look

json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object, for programs.")


def write(text: str = "") -> None:
    """A result, on stdout; what its encoding cannot say is escaped."""
    print(_sayable(text, sys.stdout))


def note(text: str, command: str = "") -> None:
    """What is said about the results, on stderr."""
    who = f"tensortap {command}".rstrip()
    print(_sayable(f"{who}: {_harmless(text)}", sys.stderr), file=sys.stderr)


def note_problems(problems: Sequence[str], command: str) -> None:
    """What is wrong with a run, as far as it is worth reading: a damaged index may have many bad lines."""
    for problem in problems[:_MOST_PROBLEMS]:
        note(problem, command)
    if len(problems) > _MOST_PROBLEMS:
        more = counted(len(problems) - _MOST_PROBLEMS, "more problem")
        note(f"{more}; tensortap verify tells all", command)


def write_json(name: str, facts: dict[str, Any], version: int = 1) -> None:
    """One object on one line, with its schema first, at once; what JSON has no number for becomes a word."""
    print(json.dumps({"schema": f"tensortap.{name}/{version}", **plain(facts)}, allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinities as words, paths and odd keys as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def write_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    shortened: str = "",
    colours: Mapping[str, str] | None = None,
) -> None:
    """Aligned columns; those in `right` hold numbers. A terminal that wants colours gets them from rich, by
    the first word of a cell; if it is too narrow, the column `shortened` is cut there, never in a pipe."""
    lines = [[printable(cell) for cell in row] for row in rows]
    if not wants_colours() or not _draws(list(head), lines, right, shortened, colours or {}):
        write(format_table(_aligned([list(head), *lines], [name in right for name in head])))


def styled(text: str, style: str) -> str:
    """The text in a click colour (`green`, `red`, `yellow`, `bold`), where stdout wants colours."""
    if not wants_colours():
        return text
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style)


def wants_colours(stream: TextIO | None = None) -> bool:
    """Whether it is a terminal, and nobody asked for none."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not setting("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """Columns of the terminal; None where output is piped, and is never cut."""
    if not sys.stdout.isatty():
        return None
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 80


def progress(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """The items, with a bar on stderr while a terminal looks and it takes more than a moment."""
    if not sys.stderr.isatty():
        yield from items
        return
    begun, shown = monotonic(), False
    for done, item in enumerate(items):
        if monotonic() - begun > _PATIENCE:
            begun, shown = monotonic() - _PATIENCE + 0.1, True
            print(f"\r\x1b[2K{label} {_bar(done, total)} {done}/{total}", end="", file=sys.stderr, flush=True)
        yield item
    if shown:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """A name as it may be shown: one that could move the cursor, break the line or not be seen is quoted."""
    return text if text.isprintable() and text.strip() == text else repr(text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`, `12,345 records`"""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _draws(
    head: list[str],
    lines: list[list[str]],
    right: Collection[str],
    shortened: str,
    colours: Mapping[str, str],
) -> bool:
    """Whether rich is there to draw the table, and has done so."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    lines = _fitting(head, lines, shortened)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for line in lines:
        styles = [colours.get(cell.partition(",")[0], "") for cell in line]
        table.add_row(*map(Text, line, styles))
    # Wider than the terminal it breaks the lines: better than half a name.
    room = max(width() or 0, sum(_widths(head, lines)) + 2 * len(head))
    Console(file=sys.stdout, highlight=False, markup=False, width=room).print(table)
    return True


def _fitting(head: list[str], lines: list[list[str]], shortened: str) -> list[list[str]]:
    """The cells of one column cut to what the terminal leaves for it."""
    widths = _widths(head, lines)
    excess = sum(widths) + 2 * len(head) - (width() or 0)
    if shortened not in head or excess <= 0:
        return lines
    at = head.index(shortened)
    most = max(_SHORTEST, widths[at] - excess)
    cut = [line[at] if len(line[at]) <= most else line[at][: most - 1] + "…" for line in lines]
    return [[*line[:at], cell, *line[at + 1 :]] for line, cell in zip(lines, cut, strict=True)]


def _widths(head: list[str], lines: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(head, *lines, strict=True)]


def _aligned(rows: list[list[str]], is_right: list[bool]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(is_right))]
    return [
        [cell.rjust(wide) if right else cell for cell, wide, right in zip(row, widths, is_right, strict=True)]
        for row in rows
    ]


def _bar(done: int, total: int, length: int = 24) -> str:
    filled = length * done // max(total, 1)
    return "#" * filled + "." * (length - filled)


def _harmless(text: str) -> str:
    """Without what could move the cursor: a sentence may quote any name."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def _sayable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
