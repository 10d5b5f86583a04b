"""A comparison as one page of its own: the sentence, the map, A, B and their difference, without a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.verdict import Finding
from tensortap.comparison.runs import html
from tensortap.core.errors import TensortapError
from tensortap.render.plots import ColourScale, apply_colours, fit_colour_scale
from tensortap.viewer import tiles
from tensortap.viewer.comparisons import ComparisonJob
from tensortap.viewer.divergence_map import pair_of_first_origin
from tensortap.viewer.export_map import divergence_map_svg, png_data_url
from tensortap.viewer.numbers import MappedTensor, TensorDifference

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


def render_comparison_page(job: ComparisonJob, facts: Mapping[str, Any], patch: bytes = b"") -> bytes:
    """At most five megabytes: pictures first, then as much of the code as there is room for. `facts` are what
    the page of the comparison is told."""
    comparison = job.comparison
    page_title = escape(_page_title(job))
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{page_title}</title>'
    parts = [
        f"<h1>{escape(facts['sentence'])}</h1>",
        *_growth_and_suspects(facts),
        *divergence_map_svg(job),
        *_first_difference(job),
    ]
    parts += [f"<h2>What was found</h2>{html.render_fragment(comparison)}"]
    body = f"{head}<style>{_STYLE}</style></head><body>{''.join(parts)}"
    lines = [
        line
        for change in facts["changes"]
        for line in (f"{change['file']}, {change['where']}", *change["hunks"], "")
    ]
    for title, text in (
        ("Lines of code that differ", "\n".join(lines)),
        ("Changes of B that were not committed", patch.decode("utf-8", "replace")),
    ):
        body += _code_section(title, text, _MAX_BYTES - len(body.encode("utf-8", "replace")) - 4096)
    return f"{body}</body></html>\n".encode("utf-8", "replace")[:_MAX_BYTES]


def _page_title(job: ComparisonJob) -> str:
    names = [label.rstrip("/").rpartition("/")[2] for label in (job.comparison.a, job.comparison.b)]
    return f"{names[0]} against {names[1]}"


def _growth_and_suspects(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["growth"]:
        yield f"<p>{escape(facts['growth']['text'])}</p>"
    yield from (f"<p>suspect: {escape(suspect['text'])}</p>" for suspect in facts["suspects"])


def _first_difference(job: ComparisonJob) -> Iterator[str]:
    number = pair_of_first_origin(job.comparison, job.pairs)
    if number is None:
        return
    finding = job.pairs.table[number]
    yield f"<h2>{escape(str(finding.pair.a))}</h2>"
    try:
        yield from _heat_maps(finding)
    except (TensortapError, OSError, ValueError, LookupError) as error:
        yield f"<p>{escape(str(error))}</p>"


def _heat_maps(finding: Finding) -> Iterator[str]:
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
    """Where they differ most, as on the page; the last two axes are seen."""
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


def _heat_map_figure(part: Array, name: str, scale: ColourScale) -> str:
    zoom = max(1, 360 // max(*part.shape, 1))
    caption = f"{name}, from {scale.low:.4g} to {scale.high:.4g}"
    return _image_figure(apply_colours(part, scale), caption, part.shape[1] * zoom, part.shape[0] * zoom)


def _image_figure(colours: Array, caption: str, width: int, height: int) -> str:
    picture = f'<img alt="{escape(caption)}" width="{width}" height="{height}" src="{png_data_url(colours)}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _code_section(title: str, text: str, room_bytes: int) -> str:
    if not text or room_bytes < 4096:
        return ""
    kept = escape(text[: room_bytes // 6])
    more = "\n..." if len(text) > room_bytes // 6 else ""
    return f"<h2>{title}</h2><pre>{kept}{more}</pre>"
