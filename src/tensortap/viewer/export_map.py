"""The divergence map of a saved page: one drawing, with the names of its lines and its steps."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from tensortap.render.plots import encode_png
from tensortap.viewer.comparisons import ComparisonJob
from tensortap.viewer.divergence_map import divergence_columns

Array = np.ndarray[Any, Any]
_MAX_LINES, _MAX_STEPS = 240, 500  # of a larger map, the worst of each part is shown
_WIDTH, _GUTTER, _FOOTER = 780, 220, 22
_LABEL_HEIGHT, _MAX_LABEL_LENGTH, _MAX_TICKS = 13, 32, 12
# As on the page: dark is equal.
_COLOUR_MAP = np.array(
    [
        (22, 27, 34),
        (45, 31, 79),
        (93, 42, 120),
        (150, 55, 124),
        (207, 74, 108),
        (242, 114, 79),
        (251, 166, 92),
        (253, 233, 169),
    ],
    np.float64,
)
_NO_PAIR_COLOUR = (74, 82, 94)
_BLOCK_PREFIX = re.compile(r"^(?:[^.]*\.)*?\d+(?=\.)")
_CAPTION = (
    "{:,} tensors in the order of execution, from top to bottom, against {:,} steps; the brighter, the "
    "larger the relative difference, on a logarithmic scale; grey where there is no pair"
)


def divergence_map_svg(job: ComparisonJob) -> Iterator[str]:
    """Of the rank that the first difference is on."""
    first = job.comparison.first
    rank = None if first is None else first.rank
    columns, facts = divergence_columns(job.comparison, job.pairs, "relative_l2", rank, "")
    if not columns["error"].size:
        return
    count, steps = columns["error"].shape
    height = min(480, max(120, _LABEL_HEIGHT * count))
    colours = _log_colours(
        _max_pool(columns["error"], _bin_starts(count, _MAX_LINES), _bin_starts(steps, _MAX_STEPS))
    )
    parts = [
        f'<image href="{png_data_url(colours)}" x="{_GUTTER}" width="{_WIDTH}" height="{height}" '
        'preserveAspectRatio="none"/>',
        *_tensor_labels(facts["names"], facts["name_kinds"], height),
        *_step_labels(facts["steps"], height),
        *_first_difference_marker(facts["first"], count, steps, height),
    ]
    caption = escape(_CAPTION.format(count, steps))
    wide, high = _GUTTER + _WIDTH, height + _FOOTER
    yield (
        f'<h2>Where they part</h2><figure><svg role="img" aria-label="{caption}" width="{wide}" '
        f'height="{high}" viewBox="0 0 {wide} {high}">{"".join(parts)}</svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def png_data_url(colours: Array) -> str:
    return f"data:image/png;base64,{base64.b64encode(encode_png(colours)).decode()}"


def _tensor_labels(names: Sequence[str], kinds: Sequence[str], height: int) -> Iterator[str]:
    """Of all lines where there is room, else of those that a block begins with."""
    each = height / len(names)
    blocks = [
        (name if each >= _LABEL_HEIGHT else _block_prefix(name)) + (" ∇" if kind.startswith("grad") else "")
        for name, kind in zip(names, kinds, strict=True)
    ]
    free = 0.0
    for line, block in enumerate(blocks):
        y = max((line + 0.5) * each, 6)
        is_new = each >= _LABEL_HEIGHT or not line or block != blocks[line - 1]
        if is_new and y >= free:
            free = y + _LABEL_HEIGHT
            yield _svg_text(_GUTTER - 8, y + 4, "end", block)


def _block_prefix(name: str) -> str:
    match = _BLOCK_PREFIX.match(name)
    return match[0] if match else name


def _step_labels(steps: Sequence[int], height: int) -> Iterator[str]:
    each = -(-len(steps) // _MAX_TICKS)
    for at in range(0, len(steps), each):
        x = _GUTTER + (at + 0.5) / len(steps) * _WIDTH
        yield _svg_text(x, height + 16, "middle", str(steps[at]))


def _first_difference_marker(
    first_cell: dict[str, int] | None, count: int, steps: int, height: int
) -> Iterator[str]:
    if first_cell is None:
        return
    x = _GUTTER + (first_cell["step"] + 0.5) / steps * _WIDTH
    y = (first_cell["tensor"] + 0.5) / count * height
    for colour, width in (("#10151c", 4), ("#fff", 2)):
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
    is_left = x - _GUTTER > 140
    yield (
        f'<text x="{x + (-14 if is_left else 14):.1f}" y="{y + 4:.1f}" class="first" '
        f'text-anchor="{"end" if is_left else "start"}">first difference</text>'
    )


def _svg_text(x: float, y: float, anchor: str, text: str) -> str:
    short = text if len(text) <= _MAX_LABEL_LENGTH else f"{text[:9]}…{text[10 - _MAX_LABEL_LENGTH :]}"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(short)}</text>'


def _max_pool(errors: Array, tops: Array, lefts: Array) -> Array:
    """The largest error of each part; NaN only where there is none at all."""
    known = np.where(np.isnan(errors), -1.0, errors)
    pooled = np.maximum.reduceat(np.maximum.reduceat(known, tops, axis=0), lefts, axis=1)
    return np.where(pooled < 0, np.nan, pooled)


def _log_colours(errors: Array) -> Array:
    with np.errstate(all="ignore"):
        sizes = np.log10(np.where(errors > 0, errors, np.nan))
    finite = sizes[np.isfinite(sizes)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    low = min(low, high - 2)  # what differs a little does not look far apart
    low -= 0.14 * (high - low)  # and the least difference can be told from what is equal
    shares = np.where(errors > 0, np.clip((np.where(errors > 0, sizes, low) - low) / (high - low), 0, 1), 0)
    places = np.linspace(0, 1, len(_COLOUR_MAP))
    colours = np.stack([np.interp(shares, places, channel) for channel in _COLOUR_MAP.T], -1)
    colours[np.isnan(errors)] = _NO_PAIR_COLOUR
    return colours.round().astype(np.uint8)


def _bin_starts(length: int, most: int) -> Array:
    count = max(1, min(length, most))
    return np.arange(count) * length // count
