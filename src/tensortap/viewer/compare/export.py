"""A comparison as a standalone HTML page without scripts: headline, divergence map, heat maps, code diff."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.verdict import Finding
from tensortap.comparison.runs.html import render_fragment
from tensortap.core.errors import TensortapError
from tensortap.render.html import PAGE_END, Html, element, image, join, page_start, png_data_url, svg
from tensortap.render.plots import ColourScale, apply_colours, encode_png, fit_colour_scale
from tensortap.viewer.compare.jobs import ComparisonJob
from tensortap.viewer.compare.pair_columns import divergence_columns, pair_of_first_origin
from tensortap.viewer.data import tiles
from tensortap.viewer.data.tensor import MappedTensor, TensorDifference

Array = np.ndarray[Any, Any]
_MAX_BYTES = 5 << 20  # bytes
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}
h1{font-size:20px} h2{font-size:16px;margin-top:2em} figure{display:inline-block;margin:0 1em 1em 0}
img,image{image-rendering:pixelated} img,svg{max-width:100%;height:auto} img{border:1px solid #8884}
svg text{font:11px ui-monospace,monospace;fill:currentColor;opacity:.8}
svg .first{font:600 12px system-ui,sans-serif;opacity:1}
svg .first{fill:#fff;stroke:#10151c;stroke-width:3;paint-order:stroke}
figcaption{font-size:12px;opacity:.8}
pre{overflow-x:auto;font-size:12px;max-height:40em}
"""
_MAX_LINES, _MAX_STEPS = 240, 500  # a larger map is max-pooled
_WIDTH, _GUTTER, _FOOTER = 780, 220, 22
_LABEL_HEIGHT, _MAX_LABEL_LENGTH, _MAX_TICKS = 13, 32, 12
# As on the page: dark means equal.
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


def render_comparison_page(job: ComparisonJob, facts: Mapping[str, Any], patch: bytes = b"") -> bytes:
    """At most five megabytes: images first, then as much of the code as fits. `facts` is
    `comparison_facts(job)`."""
    body = join(
        page_start(_page_title(job), _STYLE),
        element("h1", facts["sentence"]),
        *_growth_and_suspects(facts),
        *divergence_map_svg(job),
        *_first_difference(job),
        element("h2", "What was found"),
        render_fragment(job.comparison),
    )
    lines = [
        line
        for change in facts["changes"]
        for line in (f"{change['file']}, {change['where']}", *change["hunks"], "")
    ]
    for title, text in (
        ("Lines of code that differ", "\n".join(lines)),
        ("Changes of B that were not committed", patch.decode("utf-8", "replace")),
    ):
        room_bytes = _MAX_BYTES - len(body.encode("utf-8", "replace")) - 4096
        body = join(body, *_code_section(title, text, room_bytes))
    return join(body, PAGE_END).encode("utf-8", "replace")[:_MAX_BYTES]


def _page_title(job: ComparisonJob) -> str:
    names = [label.rstrip("/").rpartition("/")[2] for label in (job.comparison.a, job.comparison.b)]
    return f"{names[0]} against {names[1]}"


def _growth_and_suspects(facts: Mapping[str, Any]) -> Iterator[Html]:
    if facts["growth"]:
        yield element("p", facts["growth"]["text"])
    yield from (element("p", f"suspect: {suspect['text']}") for suspect in facts["suspects"])


def _first_difference(job: ComparisonJob) -> Iterator[Html]:
    number = pair_of_first_origin(job.comparison, job.pairs)
    if number is None:
        return
    finding = job.pairs.table[number]
    yield element("h2", str(finding.pair.a))
    try:
        yield from _heat_maps(finding)
    except (TensortapError, OSError, ValueError, LookupError) as error:
        yield element("p", str(error))


def _heat_maps(finding: Finding) -> Iterator[Html]:
    operands = [entry.operand() for entry in (finding.pair.a, finding.pair.b)]
    if operands[0] is None or operands[1] is None:
        return
    a, b = MappedTensor(operands[0]), MappedTensor(operands[1])
    index = _worst_slice(finding) if a.shape == b.shape else ""
    pictures = [_overview(a, index), _overview(b, index)]
    common = fit_colour_scale(np.concatenate([_finite_values(part) for part in pictures]))
    where = f" [{index.replace(',', ', ')}]" if index else ""
    for name, part in zip("AB", pictures, strict=True):
        yield _heat_map_figure(part, f"{name}{where}", common)
    if a.shape == b.shape:
        differences = _overview(TensorDifference(a, b, "value"), index)
        yield _heat_map_figure(differences, f"B - A{where}", fit_colour_scale(_finite_values(differences)))


def _worst_slice(finding: Finding) -> str:
    """Index of the slice (last two axes) with the largest difference, as the page shows it."""
    largest = None if finding.metrics is None else finding.metrics.absolute
    if largest is None or len(largest.index) < 3:
        return ""
    return ",".join([*map(str, largest.index[:-2]), ":", ":"])


def _overview(numbers: MappedTensor | TensorDifference, index: str) -> Array:
    grid = numbers.grid("", index)
    level = tiles.count_levels(grid.shape) - 1
    if not level:
        return tiles.read_elements(grid, 0, 0).astype(np.float64)
    tile = tiles.compute_tile(grid, level, 0, 0)
    return np.where(np.abs(tile.low) > np.abs(tile.high), tile.low, tile.high).astype(np.float64)


def _finite_values(part: Array) -> Array:
    return part[np.isfinite(part)]


def _heat_map_figure(part: Array, name: str, scale: ColourScale) -> Html:
    zoom = max(1, 360 // max(*part.shape, 1))
    caption = f"{name}, from {scale.low:.4g} to {scale.high:.4g}"
    png = encode_png(apply_colours(part, scale))
    return _figure(image(png, caption, part.shape[1] * zoom, part.shape[0] * zoom), caption)


def _figure(picture: Html, caption: str) -> Html:
    return element("figure", picture, element("figcaption", caption))


def _code_section(title: str, text: str, room_bytes: int) -> Iterator[Html]:
    if not text or room_bytes < 4096:
        return
    more = "\n..." if len(text) > room_bytes // 6 else ""
    yield element("h2", title)
    yield element("pre", text[: room_bytes // 6], more)


def divergence_map_svg(job: ComparisonJob) -> Iterator[Html]:
    """The map of the rank with the first difference; nothing if it is empty."""
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
    href = png_data_url(encode_png(colours))
    parts = [
        element("image", href=href, x=_GUTTER, width=_WIDTH, height=height, preserveAspectRatio="none"),
        *_tensor_labels(facts["names"], facts["name_kinds"], height),
        *_step_labels(facts["steps"], height),
        *_first_difference_marker(facts["first"], count, steps, height),
    ]
    caption = _CAPTION.format(count, steps)
    yield element("h2", "Where they part")
    yield _figure(svg(caption, (_GUTTER + _WIDTH, height + _FOOTER), *parts), caption)


def _tensor_labels(names: Sequence[str], kinds: Sequence[str], height: int) -> Iterator[Html]:
    """Labels of all lines if they fit, else of the first line of each block."""
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


def _step_labels(steps: Sequence[int], height: int) -> Iterator[Html]:
    each = -(-len(steps) // _MAX_TICKS)
    for at in range(0, len(steps), each):
        x = _GUTTER + (at + 0.5) / len(steps) * _WIDTH
        yield _svg_text(x, height + 16, "middle", str(steps[at]))


def _first_difference_marker(
    first_cell: dict[str, int] | None, count: int, steps: int, height: int
) -> Iterator[Html]:
    if first_cell is None:
        return
    x = _GUTTER + (first_cell["step"] + 0.5) / steps * _WIDTH
    y = (first_cell["tensor"] + 0.5) / count * height
    for colour, width in (("#10151c", 4), ("#fff", 2)):
        centre = {"cx": f"{x:.1f}", "cy": f"{y:.1f}"}
        yield element("circle", **centre, r=8, fill="none", stroke=colour, stroke_width=width)
    is_left = x - _GUTTER > 140
    anchor = "end" if is_left else "start"
    yield _svg_text(x + (-14 if is_left else 14), y + 4, anchor, "first difference", class_="first")


def _svg_text(x: float, y: float, anchor: str, text: str, **attributes: str) -> Html:
    label = text if len(text) <= _MAX_LABEL_LENGTH else f"{text[:9]}…{text[10 - _MAX_LABEL_LENGTH :]}"
    return element("text", label, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, **attributes)


def _max_pool(errors: Array, tops: Array, lefts: Array) -> Array:
    """The largest error per bin; NaN only where a bin has no pair."""
    filled = np.where(np.isnan(errors), -1.0, errors)
    pooled = np.maximum.reduceat(np.maximum.reduceat(filled, tops, axis=0), lefts, axis=1)
    return np.where(pooled < 0, np.nan, pooled)


def _log_colours(errors: Array) -> Array:
    with np.errstate(all="ignore"):
        sizes = np.log10(np.where(errors > 0, errors, np.nan))
    finite = sizes[np.isfinite(sizes)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    low = min(low, high - 2)  # at least two decades, so that small differences look small
    low -= 0.14 * (high - low)  # and the smallest difference is distinguishable from equal
    shares = np.where(errors > 0, np.clip((np.where(errors > 0, sizes, low) - low) / (high - low), 0, 1), 0)
    stops = np.linspace(0, 1, len(_COLOUR_MAP))
    colours = np.stack([np.interp(shares, stops, channel) for channel in _COLOUR_MAP.T], -1)
    colours[np.isnan(errors)] = _NO_PAIR_COLOUR
    return colours.round().astype(np.uint8)


def _bin_starts(length: int, max_bins: int) -> Array:
    count = max(1, min(length, max_bins))
    return np.arange(count) * length // count
