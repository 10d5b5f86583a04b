"""The lines of a tree of values as words in columns, before they become text or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensortap.formats.rows import ValueRow
from tensortap.formats.tree_fold import Fold, Line
from tensortap.formats.tree_names import joined
from tensortap.formats.tree_words import (
    describe_type,
    escape_unprintable,
    format_range,
    format_std_trend,
    join_notes,
    pluralize,
    short_dtype,
)

Missing = Sequence[tuple[str, str]]

MOST_LINES = 2000
_MOST_MISSING = 50
_WIDEST_TYPE = 28


@dataclass(slots=True)
class Cells:
    """A line as the words of its columns; an unusual one says all after its type in one `body`."""

    head: str
    label: str
    times: str
    arrow: str
    type: str
    low: str = ""
    high: str = ""
    trend: str = ""
    tail: str = ""
    where: str = ""
    body: str = ""


def cells_of(line: Line, dtype: str, device: str, head: str = "") -> Cells:
    times = f"  x{line.times} {escape_unprintable(line.of)}".rstrip() if line.times > 1 else ""
    type_word = escape_unprintable(describe_type(line.rows, dtype, device))
    cells = Cells(head, escape_unprintable(line.label), times, line.arrow, type_word)
    cells.low, cells.high = format_range(line.rows)
    cells.trend = format_std_trend(line.ends)
    told = [line.repeated, "" if line.odd else join_notes(line.rows)]
    cells.tail = escape_unprintable(", ".join(word for word in told if word))
    if line.odd:
        cells.where, cells.body = (
            escape_unprintable(line.where),
            _odd_body(escape_unprintable(line.odd), cells),
        )
    return cells


def _odd_body(odd: str, cells: Cells) -> str:
    numbers = f"{cells.low} .. {cells.high}" if cells.high else cells.low
    words = (f"{odd}, {numbers}" if numbers else odd, cells.trend, cells.tail)
    return "  ".join(word for word in words if word)


class Columns(NamedTuple):
    """How wide each column is; a longer type pushes its own line only."""

    type: int
    low: int
    high: int
    trend: int

    def typed(self, cells: Cells) -> str:
        return f"{cells.arrow:2} {cells.type:<{self.type}}"

    def numbers(self, cells: Cells) -> str:
        if cells.high:
            return f"{cells.low:>{self.low}} .. {cells.high:<{self.high}}"
        return cells.low.rjust(self.low).ljust(self.low + self.high + (4 if self.high else 0))


def columns_of(shown: Sequence[Cells]) -> Columns:
    plain = [cells for cells in shown if not cells.body]
    return Columns(
        min(_WIDEST_TYPE, max((len(cells.type) for cells in plain), default=0)),
        max((len(cells.low) for cells in plain if cells.high), default=0),
        max((len(cells.high) for cells in plain), default=0),
        max((len(cells.trend) for cells in plain), default=0),
    )


def summary(rows: Sequence[ValueRow], fold: Fold, title: str) -> list[str]:
    """The first lines: how many values, what is usual among them, and where the first trouble is."""
    if not rows:
        return [escape_unprintable(f"{title}: nothing was captured" if title else "nothing was captured")]
    usual = f"{short_dtype(fold.dtype)} on {fold.device}" if fold.dtype and fold.device else fold.dtype
    words = ", ".join(word for word in (pluralize(len(rows), "value"), fold.repeated, usual) if word)
    lines = [f"{title}  {words}" if title else words]
    if fold.nonfinite:
        lines.append(f"! {len(fold.nonfinite):,} with NaN or Inf, first {fold.nonfinite[0].name}")
    return [escape_unprintable(line) for line in lines]


def missing_lines(missing: Missing) -> list[str]:
    """What was selected and never seen, equal reasons together."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing:
        by_reason.setdefault(reason, []).append(name)
    told = [(name, reason) for reason, names in by_reason.items() for name in joined(names)]
    lines = [escape_unprintable(f"missing: {name} - {reason}") for name, reason in told[:_MOST_MISSING]]
    hidden = len(told) - len(lines)
    return [*lines, f"missing: ... {hidden:,} more"] if hidden else lines
