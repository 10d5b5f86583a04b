"""One value on a terminal: statistics, a histogram, a heat map, a sparkline."""

import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensortap.cli.output import terminal_width, wants_colours
from tensortap.kernels.decode import decode
from tensortap.render import histogram, plots
from tensortap.render.plots import ArraySummary, Index, format_index, index_array
from tensortap.render.words import format_number

_MAX_LINES, _DEFAULT_WIDTH, _MAX_WIDTH = 24, 64, 120
_MAX_SIDE, _MIN_SIDE = 1024, 256  # pixels of an image


def statistics_lines(summary: ArraySummary) -> Iterator[str]:
    stats = summary.statistics
    if not stats.count:
        yield "no numbers"
        return
    if stats.min is None:
        yield f"{stats.count:,} numbers, none of them finite: {stats.nan:,} NaN, {stats.inf:,} Inf"
        return
    words = ("min", "max", "mean", "std", "norm")
    numbers = "  ".join(f"{word} {_format_number(getattr(stats, word))}" for word in words)
    suffix = "  (absolute values)" if summary.dtype.startswith("complex") else ""
    yield f"{numbers}  NaN {stats.nan:,}  Inf {stats.inf:,}{suffix}"
    if summary.percentiles and stats.count > 1:
        suffix = f"  (of every {summary.stride}th number)" if summary.stride > 1 else ""
        parts = (f"{percent}% {_format_number(value)}" for percent, value in summary.percentiles.items())
        yield "  ".join(parts) + suffix


def histogram_lines(summary: ArraySummary) -> Iterator[str]:
    """A line for each bin, with where it begins and how many it holds; none for a single bin."""
    bins = summary.bins
    if bins is not None and bins.count > 1:
        is_ascii = not supports_blocks()
        yield from histogram.histogram_lines(bins, summary.histogram, _format_number, ascii=is_ascii)


def heat_map_lines(bits: Any, dtype: str, index: Index) -> Iterator[str]:
    """The indexed plane as coloured blocks or shades; a single row as a sparkline."""
    plane = plots.last_plane(index_array(bits, index))
    if plane.size < 2:
        return
    line_width = min(_MAX_WIDTH, max(8, (terminal_width() or _DEFAULT_WIDTH) - 2))
    if len(plane) == 1:
        cells = plots.pool_plane(plane, dtype, 1, line_width)
        yield f"[{format_index(index)}] from the first to the last of {plane.size:,}"
        yield plots.sparkline(cells.peak[0].tolist(), line_width, ascii=not supports_blocks())
        return
    depth = colour_depth()
    cells = plots.pool_plane(plane, dtype, _MAX_LINES * (2 if depth else 1), line_width)
    scale = plots.fit_colour_scale(cells.peak)
    ends = f"{_format_number(scale.low)} .. {_format_number(scale.high)}"
    description = f"[{format_index(index)}] {plane.shape[0]:,} x {plane.shape[1]:,}"
    description += ", of each cell the number farthest from zero" if cells.peak.size < plane.size else ""
    yield f"{description}, {ends}{_nonfinite_legend(cells, depth)}"
    if depth:
        yield from plots.render_half_blocks(plots.apply_colours(cells.peak, scale), depth)
    else:
        yield from plots.render_shades(cells.peak, scale, ascii=not supports_blocks())


def sparkline_lines(history: list[dict[str, Any]]) -> Iterator[str]:
    """The mean over the steps."""
    means = [entry["mean"] for entry in history]
    if len(means) < 2:
        return
    steps = f"steps {history[0]['step']} to {history[-1]['step']}"
    first, last = _format_number(means[0]), _format_number(means[-1])
    yield f"mean of {len(means):,} records, {steps}, {first} -> {last}"
    yield plots.sparkline(means, ascii=not supports_blocks())


def heat_map_png(bits: Any, dtype: str, index: Index) -> bytes:
    """The indexed plane as a PNG file."""
    plane = plots.last_plane(index_array(bits, index))
    if not plane.size:
        raise ValueError(f"there is nothing to draw: [{format_index(index)}] has no numbers")
    colours = plots.apply_colours(plots.pool_plane(plane, dtype, _MAX_SIDE, _MAX_SIDE).peak)
    factor = max(1, _MIN_SIDE // max(colours.shape[:2]))
    return plots.encode_png(plots.enlarge(colours, factor) if factor > 1 else colours)


def value_lines(bits: Any, dtype: str) -> Iterator[str]:
    """Every element, a line per row of the last axis, after the index of the row."""
    values = decode(bits, dtype)
    if values.ndim < 2:
        yield " ".join(map(_format_exact, np.atleast_1d(values)))
        return
    for row_index in np.ndindex(values.shape[:-1]):
        yield f"[{','.join(map(str, row_index))},:] " + " ".join(map(_format_exact, values[row_index]))


def colour_depth() -> plots.Depth | None:
    """The colours that the terminal declares; None if none are wanted."""
    if not wants_colours() or not supports_blocks():
        return None
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in os.environ.get("TERM", "") else None


def supports_blocks() -> bool:
    """Whether stdout can encode the block characters of plots."""
    try:
        "▁█░▀".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _nonfinite_legend(cells: plots.PooledPlane, depth: plots.Depth | None) -> str:
    nan, inf = "red" if depth else "!", "pink" if depth else "^"
    marks = ((np.isnan(cells.peak).any(), f"NaN {nan}"), (np.isinf(cells.peak).any(), f"Inf {inf}"))
    return "".join(f", {word}" for is_present, word in marks if is_present)


def _format_number(value: Any) -> str:
    if value is None:
        return "-"
    return format_number(value) if math.isfinite(value) else str(value)


def _format_exact(value: Any) -> str:
    return str(value.item()) if value.dtype.kind in "bui" else str(value)
