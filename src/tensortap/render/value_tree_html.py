"""Captured values as the same folded tree for a notebook: nested details, small histograms, no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensortap.render.histogram import Bins, merge_histograms
from tensortap.render.histogram_svg import small_histogram_svg
from tensortap.render.html import Html, element, join, style_sheet
from tensortap.render.value_rows import HISTOGRAM_BINS, ValueRow
from tensortap.render.value_tree import (
    MAX_LINES,
    ColumnWidths,
    LineCells,
    MissingValues,
    column_widths,
    line_cells,
    missing_lines,
    summary_lines,
)
from tensortap.render.value_tree_fold import FoldedTree, TreeLine
from tensortap.render.words import pluralize

_INDENT = 2
_MAX_LABEL_WIDTH = 48
_NO_HISTOGRAM = " " * 6
# Orange with black on it can be told apart by everyone, on white and on black.
_STYLE = """
.tt-tree{font-family:monospace;font-size:90%;line-height:1.45;color:inherit;white-space:pre;overflow-x:auto}
.tt-tree p{margin:0;white-space:pre}
.tt-tree details details,.tt-tree details>div{margin-left:2ch}
.tt-tree summary{list-style:none;cursor:pointer}
.tt-tree summary::-webkit-details-marker{display:none}
.tt-tree summary::before{content:"\\25b8";display:inline-block;width:2ch}
.tt-tree details[open]>summary::before{content:"\\25be"}
.tt-tree div::before{content:"";display:inline-block;width:2ch}
.tt-tree svg{width:5ch;height:1em;margin-right:1ch;vertical-align:-.1em;fill:currentColor;opacity:.65}
.tt-tree b{background:#e69f00;color:#000;border-radius:2px}
.tt-tree i{font-style:normal;opacity:.65}
"""
_SIGN = element("b", "!")


def render_value_tree_html(
    rows: Sequence[ValueRow],
    title: str = "",
    missing: MissingValues = (),
    *,
    classes: Mapping[str, str] | None = None,
) -> Html:
    """The tree as self-contained HTML. Paths to anomalies are open, other nested lines closed."""
    fold = FoldedTree(rows, classes)
    flat = _flatten(fold.lines)
    page = _HtmlTree(fold, flat[:MAX_LINES])
    hidden = len(flat) - MAX_LINES
    more = [f"... {pluralize(hidden, 'more line')}"] if hidden > 0 else []
    first, *trouble = summary_lines(rows, fold, title)
    above = [element("p", first), *map(_anomaly_paragraph, trouble)]
    below = [element("p", line) for line in (*more, *missing_lines(missing))]
    parts = (style_sheet(_STYLE), *above, *map(page.html, fold.lines), *below)
    return element("div", *parts, class_="tt-tree")


def _flatten(lines: Sequence[TreeLine], depth: int = 0) -> list[tuple[int, TreeLine]]:
    return [entry for line in lines for entry in ((depth, line), *_flatten(line.children, depth + 1))]


def _anomaly_paragraph(text: str) -> Html:
    """The sign coloured; it is readable without the colour too."""
    return element("p", _SIGN, text.removeprefix("!"))


class _HtmlTree:
    """The displayed lines, with the widths of their columns."""

    def __init__(self, fold: FoldedTree, visible: list[tuple[int, TreeLine]]) -> None:
        self._cells = {
            id(line): (depth, line_cells(line, fold.dtype, fold.device)) for depth, line in visible
        }
        labels = [_INDENT * depth + len(_full_label(cells)) for depth, cells in self._cells.values()]
        self._left = min(_MAX_LABEL_WIDTH, max(labels, default=0))
        self._columns: ColumnWidths = column_widths([cells for _, cells in self._cells.values()])

    def html(self, line: TreeLine) -> Html:
        if id(line) not in self._cells:
            return Html("")
        depth, cells = self._cells[id(line)]
        label = _full_label(cells).ljust(self._left - _INDENT * depth)
        value = self._anomalous_cells(line, cells) if cells.body else self._ordinary_cells(line, cells)
        content = Html(join(label, " ", *value).rstrip())
        if not line.children:
            return element("div", content)
        is_open = depth == 0 or (not line.brief and _contains_anomaly(line))
        inside = map(self.html, line.children)
        return element("details", element("summary", content), *inside, open=is_open)

    def _ordinary_cells(self, line: TreeLine, cells: LineCells) -> tuple[str, ...]:
        words = f"{self._columns.format_numbers(cells)}  {cells.trend:<{self._columns.trend}}"
        tail = ("  ", element("i", cells.tail)) if cells.tail else ()
        return "  ", self._columns.format_type(cells), "  ", _histogram_svg(line.rows), words, *tail

    def _anomalous_cells(self, line: TreeLine, cells: LineCells) -> tuple[str, ...]:
        where = f"{cells.where}: " if cells.where else ""
        start = (self._columns.format_type(cells), "  ", _histogram_svg(line.rows)) if cells.arrow else ()
        return _SIGN, " ", *start, where + cells.body


def _full_label(cells: LineCells) -> str:
    return cells.label + cells.times


def _contains_anomaly(line: TreeLine) -> bool:
    return bool(line.anomaly) or any(map(_contains_anomaly, line.children))


def _histogram_svg(rows: Sequence[ValueRow]) -> str:
    """The bars of all rows together."""
    histograms = [
        (Bins(row.low, row.high, len(row.histogram)), row.histogram)
        for row in rows
        if row.histogram and row.low is not None and row.high is not None
    ]
    return small_histogram_svg(merge_histograms(histograms, HISTOGRAM_BINS)) or _NO_HISTOGRAM
