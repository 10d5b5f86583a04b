"""Histograms as SVG: with labels for a card, or as small as a word for a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensortap.render.html import SMALL_LABELS, Html, element, svg

_COLOUR = "#4c8bf5"


def histogram_svg(counts: Sequence[int], low: str, high: str) -> Html:
    """Bars between the labels of both ends; counts on a logarithmic scale, so that one tall bar does not hide
    the tails."""
    heights = [math.log1p(count) for count in counts]
    tallest, width = max(heights) or 1.0, 240 / len(heights)
    bars = [
        _bar_svg(position * width, max(width - 1, 0.5), 50 * height / tallest)
        for position, height in enumerate(heights)
    ]
    ends = (element("text", low, x=0, y=63), element("text", high, x=240, y=63, text_anchor="end"))
    content = (element("g", *bars, fill=_COLOUR), *ends)
    return svg("histogram, counts on a logarithmic scale", (240, 66), *content, **SMALL_LABELS)


def small_histogram_svg(counts: Sequence[int]) -> Html:
    """The bars as one path without labels, a unit wide each, for a line of text; "" if all are zero."""
    largest = max(counts, default=0)
    if not largest:
        return Html("")
    heights = ((at, max(0.4, round(10 * count / largest, 1))) for at, count in enumerate(counts) if count)
    bars = "".join(f"M{at} 10v-{height:g}h.8V10" for at, height in heights)
    size = f"0 0 {len(counts)} 10"
    path = element("path", d=bars)
    return element("svg", path, viewBox=size, preserveAspectRatio="none", aria_hidden="true")


def _bar_svg(left: float, width: float, height: float) -> Html:
    return element(
        "rect", x=f"{left:.1f}", y=f"{50 - height:.1f}", width=f"{width:.1f}", height=f"{height:.1f}"
    )
