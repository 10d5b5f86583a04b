"""One value on a terminal: its numbers as words, a histogram, a heat map, a sparkline."""

import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensortap.cli.output import wants_colours, width
from tensortap.kernels.decode import decode
from tensortap.render import plots
from tensortap.render.plots import ArraySummary, Index, format_index, index_array
from tensortap.render.words import format_number

_LINES, _COLUMNS, _WIDEST = 24, 64, 120
_BAR = 40
_SIDE, _ENLARGED = 1024, 256  # pixels of a picture: at most, and at least


def statistics_lines(found: ArraySummary) -> Iterator[str]:
    told = found.statistics
    if not told.count:
        yield "no numbers"
        return
    if told.min is None:
        yield f"{told.count:,} numbers, none of them finite: {told.nan:,} NaN, {told.inf:,} Inf"
        return
    words = ("min", "max", "mean", "std", "norm")
    numbers = "  ".join(f"{word} {_number(getattr(told, word))}" for word in words)
    of = "  (absolute values)" if found.dtype.startswith("complex") else ""
    yield f"{numbers}  NaN {told.nan:,}  Inf {told.inf:,}{of}"
    if found.percentiles and told.count > 1:
        of = f"  (of every {found.stride}th number)" if found.stride > 1 else ""
        parts = (f"{percent}% {_number(value)}" for percent, value in found.percentiles.items())
        yield "  ".join(parts) + of


def histogram_lines(found: ArraySummary) -> Iterator[str]:
    """A line for each part, with where it begins and how many it holds."""
    low, high = found.statistics.min, found.statistics.max
    if low is None or high is None or len(found.histogram) < 2:
        return
    starts = list(map(_number, _starts(low, high, len(found.histogram))))
    drawn = plots.render_bars(found.histogram, _BAR, ascii=not takes_blocks())
    wide = max(map(len, starts))
    for start, bar, count in zip(starts, drawn, found.histogram, strict=True):
        yield f"{start:>{wide}}  {bar} {count:,}" if count else f"{start:>{wide}}"


def _starts(low: int | float, high: int | float, parts: int) -> list[int | float]:
    """Where each part begins; weighted, for the width may overflow. A bar for each integer begins at it."""
    if isinstance(low, int) and high - low + 1 == parts:
        return [low + part for part in range(parts)]
    return [float(low) * (1 - part / parts) + float(high) * (part / parts) for part in range(parts)]


def heat_map_lines(bits: Any, dtype: str, index: Index) -> Iterator[str]:
    """The plane that the index leaves, as blocks of colour or as shades; a single row as a sparkline."""
    plane = plots.last_plane(index_array(bits, index))
    if plane.size < 2:
        return
    wide = min(_WIDEST, max(8, (width() or _COLUMNS) - 2))
    if len(plane) == 1:
        cells = plots.pool_plane(plane, dtype, 1, wide)
        yield f"[{format_index(index)}] from the first to the last of {plane.size:,}"
        yield plots.sparkline(cells.peak[0].tolist(), wide, ascii=not takes_blocks())
        return
    depth = colour_depth()
    cells = plots.pool_plane(plane, dtype, _LINES * (2 if depth else 1), wide)
    scale = plots.fit_colour_scale(cells.peak)
    ends = f"{_number(scale.low)} .. {_number(scale.high)}"
    told = f"[{format_index(index)}] {plane.shape[0]:,} x {plane.shape[1]:,}"
    told += ", of each cell the number farthest from zero" if cells.peak.size < plane.size else ""
    yield f"{told}, {ends}{_odd_marks(cells, depth)}"
    if depth:
        yield from plots.render_half_blocks(plots.apply_colours(cells.peak, scale), depth)
    else:
        yield from plots.render_shades(cells.peak, scale, ascii=not takes_blocks())


def sparkline_lines(history: list[dict[str, Any]]) -> Iterator[str]:
    """The mean over the steps."""
    means = [one["mean"] for one in history]
    if len(means) < 2:
        return
    steps = f"steps {history[0]['step']} to {history[-1]['step']}"
    yield f"mean of {len(means):,} records, {steps}, {_number(means[0])} -> {_number(means[-1])}"
    yield plots.sparkline(means, ascii=not takes_blocks())


def image(bits: Any, dtype: str, index: Index) -> bytes:
    """The same plane as a PNG file."""
    plane = plots.last_plane(index_array(bits, index))
    if not plane.size:
        raise ValueError(f"there is nothing to draw: [{format_index(index)}] has no numbers")
    colours = plots.apply_colours(plots.pool_plane(plane, dtype, _SIDE, _SIDE).peak)
    times = max(1, _ENLARGED // max(colours.shape[:2]))
    return plots.encode_png(plots.enlarge(colours, times) if times > 1 else colours)


def value_lines(bits: Any, dtype: str) -> Iterator[str]:
    """Every number, a line for each row of the last axis, behind the index of the row."""
    values = decode(bits, dtype)
    if values.ndim < 2:
        yield " ".join(map(_exact, np.atleast_1d(values)))
        return
    for place in np.ndindex(values.shape[:-1]):
        yield f"[{','.join(map(str, place))},:] " + " ".join(map(_exact, values[place]))


def colour_depth() -> plots.Depth | None:
    """How many colours the terminal has, as far as it says so; None where none are wanted."""
    if not wants_colours() or not takes_blocks():
        return None
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in os.environ.get("TERM", "") else None


def takes_blocks() -> bool:
    """Whether stdout can say the letters that pictures are made of."""
    try:
        "▁█░▀".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _odd_marks(cells: plots.PooledPlane, depth: plots.Depth | None) -> str:
    nan, inf = "red" if depth else "!", "pink" if depth else "^"
    there = ((np.isnan(cells.peak).any(), f"NaN {nan}"), (np.isinf(cells.peak).any(), f"Inf {inf}"))
    return "".join(f", {word}" for is_there, word in there if is_there)


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return format_number(value) if math.isfinite(value) else str(value)


def _exact(value: Any) -> str:
    return str(value.item()) if value.dtype.kind in "bui" else str(value)
