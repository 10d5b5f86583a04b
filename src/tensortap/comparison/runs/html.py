"""A comparison of two runs as a static HTML page without scripts, of limited size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensortap.comparison.diagnosis.verdict import Finding
from tensortap.comparison.runs import text as text_report
from tensortap.comparison.runs.result import ComparisonResult
from tensortap.render.html import Html, element, join, page, style_sheet, svg, table
from tensortap.render.text import truncate

_MAX_ROWS, _MAX_BARS, _MAX_LENGTH = 300, 400, 120
_COLOURS = {
    "identical": "#8a8f98",
    "within noise": "#4c9f70",
    "healed": "#4c9f70",
    "drift": "#d9a441",
    "origin": "#d1495b",
    "flip": "#8e6bbf",
    "nonfinite": "#d1495b",
    "structure": "#d1495b",
}
_STYLE = """
.tt-runs{font:14px/1.5 system-ui,sans-serif;color-scheme:light dark;max-width:75em}
.tt-runs table{border-collapse:collapse;font-size:13px}
.tt-runs td,.tt-runs th{padding:2px 10px 2px 0;text-align:left;vertical-align:top}
.tt-runs h2{font-size:18px;margin:.6em 0}
.tt-runs code{font-family:ui-monospace,monospace;overflow-wrap:anywhere}
.tt-runs i{font-style:normal;display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.4em}
"""


def render_page(comparison: ComparisonResult) -> Html:
    return page(_truncate(f"{comparison.a} against {comparison.b}"), render_fragment(comparison))


def render_fragment(comparison: ComparisonResult) -> Html:
    """The comparison as an HTML fragment, for notebooks."""
    differing = [explanation.text for explanation in comparison.gate if explanation.state == "differs"]
    parts = [
        style_sheet(_STYLE),
        element("p", "A ", _code(comparison.a), element("br"), "B ", _code(comparison.b)),
        _list(differing),
        element("h2", _truncate(text_report.headline(comparison))),
        _origins_table(comparison),
        _ratio_chart(comparison.table),
    ]
    lines = [
        text_report.verdict_counts_line(comparison),
        *text_report.layout_lines(comparison),
        text_report.noise_line(comparison),
        *text_report.gap_lines(comparison.coverage),
    ]
    parts += [_list([*lines, *comparison.notes]), _pairs_table(comparison.table)]
    return element("div", *parts, class_="tt-runs")


def _origins_table(comparison: ComparisonResult) -> Html:
    rows = [
        (
            origin.where,
            origin.kind,
            origin.verdict,
            text_report.format_ratio(origin.ratio),
            origin.seen_at,
            origin.note,
        )
        for origin in comparison.origins[:20]
    ]
    return _table(("origin", "what", "verdict", "size", "seen at", ""), rows) if rows else Html("")


def _pairs_table(findings: Sequence[Finding]) -> Html:
    """A table of the differing pairs; if there are too many, those beyond noise first."""
    differing = [finding for finding in findings if finding.verdict != "identical"]
    shown = (
        differing
        if len(differing) <= _MAX_ROWS
        else sorted(differing, key=lambda finding: not finding.is_beyond)[:_MAX_ROWS]
    )
    rows = [
        (
            str(finding.pair.a),
            finding.verdict,
            f"{finding.ratio:.3g}",
            finding.axis,
            finding.source,
            finding.note,
        )
        for finding in shown
    ]
    if not rows:
        return Html("")
    hidden = len(differing) - len(shown)
    more = element("p", f"{hidden:,} more are not shown") if hidden else ""
    body = _table(("value", "verdict", "times its noise", "axis", "inherited from", ""), rows)
    summary = element("summary", f"{len(differing):,} pairs that are not identical")
    return element("details", summary, body, more, open=True)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    return table([head, *([_cell(text) for text in row] for row in rows)])


def _cell(text: str) -> Html:
    """The text, with a mark in its colour if it is a verdict."""
    colour = _COLOURS.get(text)
    mark = element("i", style=f"background:{colour}") if colour else ""
    return join(mark, _truncate(text))


def _ratio_chart(findings: Sequence[Finding]) -> Html:
    """A bar chart of the noise ratio of each value in execution order."""
    nonzero = [finding for finding in findings if finding.ratio > 0]
    if not nonzero:
        return Html("")
    stride = max(1, math.ceil(len(nonzero) / _MAX_BARS))
    bars = [
        max(nonzero[start : start + stride], key=lambda finding: finding.ratio)
        for start in range(0, len(nonzero), stride)
    ]
    label = "times its noise, value by value, on a logarithmic scale"
    return svg(
        label,
        (2 * len(bars), 60),
        *(_bar_svg(2 * index, finding) for index, finding in enumerate(bars)),
        width=min(900, 6 * len(bars)),
        preserveAspectRatio="none",
    )


def _bar_svg(left: int, finding: Finding) -> Html:
    height = _bar_height(finding.ratio)
    title = element("title", _truncate(finding.name))
    colour = _COLOURS.get(finding.verdict, "#8a8f98")
    return element("rect", title, x=left, y=60 - height, width=2, height=height, fill=colour)


def _bar_height(ratio: float) -> int:
    """Height in pixels on a log scale from 0.1 to 1e6 times the noise."""
    if math.isinf(ratio):
        return 60
    return round(min(max((math.log10(ratio) + 1) / 7, 0.02), 1.0) * 56)


def _list(lines: Sequence[str]) -> Html:
    shown = [element("li", _truncate(line, 400)) for line in lines[:30]]
    return element("ul", *shown) if shown else Html("")


def _code(text: str) -> Html:
    return element("code", _truncate(text))


def _truncate(text: str, longest: int = _MAX_LENGTH) -> str:
    return truncate(text, longest, "...")
