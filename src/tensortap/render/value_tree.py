"""Captured values as a folded tree of text: structure on the left, values on the right."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensortap.render.value_rows import ValueRow
from tensortap.render.value_tree_fold import FoldedTree, TreeLine
from tensortap.render.words import (
    describe_type,
    escape_unprintable,
    fold_numbered_names,
    format_range,
    format_std_trend,
    join_notes,
    pluralize,
    short_dtype,
)

_MAX_LABEL_WIDTH = 48
_MIN_LABEL_WIDTH = 8
_MIN_NAME_LENGTH = 5
_MIN_WHERE_LENGTH = 12
_BOX = ("├─ ", "└─ ", "│  ", "   ", "…")
_ASCII = ("|- ", "'- ", "|  ", "   ", "...")


def render_value_tree(
    rows: Sequence[ValueRow],
    title: str = "",
    missing: MissingValues = (),
    width: int | None = None,
    ascii: bool = False,
    *,
    classes: Mapping[str, str] | None = None,
) -> str:
    """The tree as lines of text. A line below a folded one covers all its siblings: their common range, and
    sigma from the first to the last. `classes` gives the class of a module path.

    >>> print(render_value_tree(value_rows(records), "GPT2", cap.missing, *stream_limits(sys.stdout)))
    """
    fold = FoldedTree(rows, classes)
    drawing = _ASCII if ascii else _BOX
    drawn = list(_draw_branches(fold.lines, drawing))
    visible = _build_cells(drawn[:MAX_LINES], fold)
    hidden = len(drawn) - len(visible)
    room = width or sys.maxsize
    above = [_elide_middle(line, room, drawing[-1]) for line in summary_lines(rows, fold, title)]
    below = [f"... {pluralize(hidden, 'more line')}"] if hidden else []
    below += [_elide_middle(line, room, drawing[-1]) for line in missing_lines(missing)]
    text = "\n".join([*above, *_lay_out_lines(visible, width, drawing[-1]), *below])
    return text.encode("ascii", "backslashreplace").decode() if ascii else text


def stream_limits(stream: Any) -> tuple[int | None, bool]:
    """The terminal width of the stream (None if it is no terminal), and whether it needs ASCII."""
    return (shutil.get_terminal_size().columns if _is_terminal(stream) else None), not _can_encode_boxes(
        stream
    )


def _draw_branches(
    lines: list[TreeLine], drawing: Sequence[str], before: str = ""
) -> Iterator[tuple[str, TreeLine]]:
    tee, corner, bar, blank, _ = drawing
    for line in lines:
        is_last = line is lines[-1]
        yield before + (corner if is_last else tee), line
        if not line.brief:
            yield from _draw_branches(line.children, drawing, before + (blank if is_last else bar))


def _build_cells(drawn: list[tuple[str, TreeLine]], fold: FoldedTree) -> list[LineCells]:
    rows_of_cells: list[LineCells] = []
    types: list[str] = []
    for head, line in drawn:
        cells = line_cells(line, fold.dtype, fold.device, head)
        types.append(cells.type)
        # An omitted shape is read from the line above, so that must be a sibling or the parent, not a
        # deeper line.
        is_below = bool(rows_of_cells) and 0 <= len(head) - len(rows_of_cells[-1].head) <= len(_BOX[0])
        if is_below and not line.anomaly and "[" in cells.type and cells.type == types[-2]:
            cells.type = ""
        rows_of_cells.append(cells)
    return rows_of_cells


def _lay_out_lines(rows_of_cells: list[LineCells], width: int | None, ellipsis: str) -> list[str]:
    columns = column_widths(rows_of_cells)
    values = [
        _format_anomalous(cells, columns) if cells.body else _format_ordinary(cells, columns)
        for cells in rows_of_cells
    ]
    left = _label_column_width(rows_of_cells, values, width)
    return [
        _format_line(cells, value, left, width, ellipsis)
        for cells, value in zip(rows_of_cells, values, strict=True)
    ]


def _label_column_width(rows_of_cells: list[LineCells], values: list[str], width: int | None) -> int:
    heads = [len(cells.head) + len(cells.label) + len(cells.times) for cells in rows_of_cells]
    if width is None:
        return max((head for head in heads if head <= _MAX_LABEL_WIDTH), default=_MAX_LABEL_WIDTH)
    right = max(
        (len(value) for cells, value in zip(rows_of_cells, values, strict=True) if not cells.body), default=0
    )
    least = max((len(cells.head) for cells in rows_of_cells), default=0) + _MIN_LABEL_WIDTH
    return min(max(heads, default=0), max(least, width - right - 2))


def _format_ordinary(cells: LineCells, columns: ColumnWidths) -> str:
    parts = (
        columns.format_type(cells),
        columns.format_numbers(cells),
        cells.trend.ljust(columns.trend),
        cells.tail,
    )
    return ("  " + "  ".join(parts)).rstrip()


def _format_anomalous(cells: LineCells, columns: ColumnWidths) -> str:
    where = f"{cells.where}: " if cells.where else ""
    start = f"{columns.format_type(cells)}  " if cells.arrow else ""
    return f"! {start}{where}{cells.body}"


def _format_line(cells: LineCells, value: str, left: int, width: int | None, ellipsis: str) -> str:
    if width is None:
        return (f"{cells.head}{cells.label}{cells.times}".ljust(left) + f"  {value}").rstrip()
    line = f"{cells.head}{_fit_label(cells, left - len(cells.head), ellipsis)}".ljust(left)
    if cells.body:
        room = width - left - 2 - (len(value) - len(cells.where))
        where = _elide_middle(cells.where, max(room, _MIN_WHERE_LENGTH), ellipsis)
        return f"{line}  {value.replace(cells.where, where, 1)}"
    return _drop_trailing_words(f"{line}  {value}".rstrip(), width, ellipsis)


def _fit_label(cells: LineCells, room: int, ellipsis: str) -> str:
    """Drops the class of the siblings first, their number last."""
    times = cells.times
    if len(cells.label) + len(times) > room:
        times = "  " + times.split()[0] if times else ""
    return _elide_middle(cells.label, max(room - len(times), _MIN_NAME_LENGTH), ellipsis) + times


def _drop_trailing_words(line: str, width: int, ellipsis: str) -> str:
    """Drops whole words: half a number would be another number."""
    if len(line) <= width:
        return line
    while len(line) > width - len(ellipsis) - 1 and "  " in line.rstrip():
        line = line.rstrip().rpartition("  ")[0]
    return f"{line.rstrip()} {ellipsis}"


def _elide_middle(text: str, room: int, ellipsis: str) -> str:
    """Keeps the start (layer numbers) and the end (value names)."""
    if len(text) <= room:
        return text
    kept = max(room - len(ellipsis), 2)
    return text[: kept - kept // 2] + ellipsis + text[len(text) - kept // 2 :]


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no stream, or a closed one
        return False


def _can_encode_boxes(stream: Any) -> bool:
    try:
        "".join(_BOX).encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


MissingValues = Sequence[tuple[str, str]]

MAX_LINES = 2000
_MAX_MISSING = 50
_MAX_TYPE_WIDTH = 28


@dataclass(slots=True)
class LineCells:
    """A line as strings per column; an anomalous one has everything after its type in `body`."""

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


def line_cells(line: TreeLine, dtype: str, device: str, head: str = "") -> LineCells:
    times = f"  x{line.times} {escape_unprintable(line.class_name)}".rstrip() if line.times > 1 else ""
    type_word = escape_unprintable(describe_type(line.rows, dtype, device))
    cells = LineCells(head, escape_unprintable(line.label), times, line.arrow, type_word)
    cells.low, cells.high = format_range(line.rows)
    cells.trend = format_std_trend(line.ends)
    remarks = [line.repeats, "" if line.anomaly else join_notes(line.rows)]
    cells.tail = escape_unprintable(", ".join(word for word in remarks if word))
    if line.anomaly:
        cells.where, cells.body = (
            escape_unprintable(line.where),
            _anomaly_body(escape_unprintable(line.anomaly), cells),
        )
    return cells


def _anomaly_body(anomaly: str, cells: LineCells) -> str:
    numbers = f"{cells.low} .. {cells.high}" if cells.high else cells.low
    words = (f"{anomaly}, {numbers}" if numbers else anomaly, cells.trend, cells.tail)
    return "  ".join(word for word in words if word)


class ColumnWidths(NamedTuple):
    """The width of each column; a longer type shifts only its own line."""

    type: int
    low: int
    high: int
    trend: int

    def format_type(self, cells: LineCells) -> str:
        return f"{cells.arrow:2} {cells.type:<{self.type}}"

    def format_numbers(self, cells: LineCells) -> str:
        if cells.high:
            return f"{cells.low:>{self.low}} .. {cells.high:<{self.high}}"
        return cells.low.rjust(self.low).ljust(self.low + self.high + (4 if self.high else 0))


def column_widths(rows_of_cells: Sequence[LineCells]) -> ColumnWidths:
    plain = [cells for cells in rows_of_cells if not cells.body]
    return ColumnWidths(
        min(_MAX_TYPE_WIDTH, max((len(cells.type) for cells in plain), default=0)),
        max((len(cells.low) for cells in plain if cells.high), default=0),
        max((len(cells.high) for cells in plain), default=0),
        max((len(cells.trend) for cells in plain), default=0),
    )


def summary_lines(rows: Sequence[ValueRow], fold: FoldedTree, title: str) -> list[str]:
    """The first lines: how many values, the usual dtype and device, and the first anomaly."""
    if not rows:
        return [escape_unprintable(f"{title}: nothing was captured" if title else "nothing was captured")]
    usual = f"{short_dtype(fold.dtype)} on {fold.device}" if fold.dtype and fold.device else fold.dtype
    words = ", ".join(word for word in (pluralize(len(rows), "value"), fold.repeats, usual) if word)
    lines = [f"{title}  {words}" if title else words]
    if fold.nonfinite:
        lines.append(f"! {len(fold.nonfinite):,} with NaN or Inf, first {fold.nonfinite[0].name}")
    return [escape_unprintable(line) for line in lines]


def missing_lines(missing: MissingValues) -> list[str]:
    """What was selected but never captured, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing:
        by_reason.setdefault(reason, []).append(name)
    entries = [(name, reason) for reason, names in by_reason.items() for name in fold_numbered_names(names)]
    lines = [escape_unprintable(f"missing: {name} - {reason}") for name, reason in entries[:_MAX_MISSING]]
    hidden = len(entries) - len(lines)
    return [*lines, f"missing: ... {hidden:,} more"] if hidden else lines
