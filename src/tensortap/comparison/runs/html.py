"""A comparison of two runs as a static HTML page without scripts, of limited size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tensortap.comparison.diagnosis.verdict import Finding
from tensortap.comparison.runs import text as text_report
from tensortap.comparison.runs.result import ComparisonResult

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


def render_page(comparison: ComparisonResult) -> str:
    title = escape(_truncate(f"{comparison.a} against {comparison.b}"))
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
    return f"{head}<body>{render_fragment(comparison)}</body></html>\n"


def render_fragment(comparison: ComparisonResult) -> str:
    """The comparison as an HTML fragment, for notebooks."""
    parts = [
        f"<style>{_STYLE}</style>",
        f"<p>A {_html_code(comparison.a)}<br>B {_html_code(comparison.b)}</p>",
    ]
    parts += [
        _html_list([explanation.text for explanation in comparison.gate if explanation.state == "differs"])
    ]
    parts += [
        f"<h2>{escape(_truncate(text_report.headline(comparison)))}</h2>",
        _origins_table(comparison),
        _ratio_chart(comparison.table),
    ]
    lines = [
        text_report.verdict_counts_line(comparison),
        *text_report.layout_lines(comparison),
        text_report.noise_line(comparison),
        *text_report.gap_lines(comparison.coverage),
    ]
    parts += [_html_list([*lines, *comparison.notes]), _pairs_table(comparison.table)]
    return f'<div class="tt-runs">{"".join(parts)}</div>'


def _origins_table(comparison: ComparisonResult) -> str:
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
    return _html_table(("origin", "what", "verdict", "size", "seen at", ""), rows) if rows else ""


def _pairs_table(table: Sequence[Finding]) -> str:
    """A table of the differing pairs; if there are too many, those beyond noise first."""
    differing = [finding for finding in table if finding.verdict != "identical"]
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
        return ""
    more = f"<p>{len(differing) - len(shown):,} more are not shown</p>" if len(differing) > len(shown) else ""
    body = _html_table(("value", "verdict", "times its noise", "axis", "inherited from", ""), rows)
    summary = f"<summary>{len(differing):,} pairs that are not identical</summary>"
    return f"<details open>{summary}{body}{more}</details>"


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(label)}</th>" for label in head)
    body = "".join(f"<tr>{''.join(_html_cell(text) for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _html_cell(text: str) -> str:
    colour = _COLOURS.get(text)
    mark = f'<i style="background:{colour}"></i>' if colour else ""
    return f"<td>{mark}{escape(_truncate(text))}</td>"


def _ratio_chart(table: Sequence[Finding]) -> str:
    """A bar chart of the noise ratio of each value in execution order."""
    nonzero = [finding for finding in table if finding.ratio > 0]
    if not nonzero:
        return ""
    stride = max(1, math.ceil(len(nonzero) / _MAX_BARS))
    bars = [
        max(nonzero[start : start + stride], key=lambda finding: finding.ratio)
        for start in range(0, len(nonzero), stride)
    ]
    heights = [_bar_height(finding.ratio) for finding in bars]
    rects = "".join(
        f'<rect x="{2 * index}" y="{60 - height}" width="2" height="{height}" '
        f'fill="{_COLOURS.get(finding.verdict, "#8a8f98")}">'
        f"<title>{escape(_truncate(finding.name))}</title></rect>"
        for index, (finding, height) in enumerate(zip(bars, heights, strict=True))
    )
    label = "times its noise, value by value, on a logarithmic scale"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {2 * len(bars)} 60" '
        f'width="{min(900, 6 * len(bars))}" height="60" preserveAspectRatio="none">{rects}</svg>'
    )


def _bar_height(ratio: float) -> int:
    """Height in pixels on a log scale from 0.1 to 1e6 times the noise."""
    if math.isinf(ratio):
        return 60
    return round(min(max((math.log10(ratio) + 1) / 7, 0.02), 1.0) * 56)


def _html_list(lines: Sequence[str]) -> str:
    return (
        f"<ul>{''.join(f'<li>{escape(_truncate(line, 400))}</li>' for line in lines[:30])}</ul>"
        if lines
        else ""
    )


def _html_code(text: str) -> str:
    return f"<code>{escape(_truncate(text))}</code>"


def _truncate(text: str, longest: int = _MAX_LENGTH) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
