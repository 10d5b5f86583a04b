"""A comparison as one page of its own: the sentence, the map, A, B and their difference, without a script."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from tensortap.comparison import runs_html
from tensortap.comparison.findings import Finding
from tensortap.core.errors import TensortapError
from tensortap.readers.picture import Scale, coloured, png, scale_of
from tensortap.viewer import sentences, tiles
from tensortap.viewer.comparisons import Job
from tensortap.viewer.divergence_map import divergence, first_pair
from tensortap.viewer.numbers import Apart, Tensor

Array = np.ndarray[Any, Any]
_MOST = 5 << 20  # bytes
_LINES, _STEPS = 240, 500  # of the map; of a larger one, the worst of each part is shown
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color-scheme:light dark;max-width:75em;margin:2em auto;padding:0 1em}
h1{font-size:20px} h2{font-size:16px;margin-top:2em} figure{display:inline-block;margin:0 1em 1em 0}
img,image{image-rendering:pixelated} img,svg{max-width:100%;border:1px solid #8884}
figcaption{font-size:12px;opacity:.8}
pre{overflow-x:auto;font-size:12px;max-height:40em}
"""


def page(job: Job, changes: Sequence[Mapping[str, Any]] = (), patch: bytes = b"") -> bytes:
    """At most five megabytes: pictures first, then as much of the code as there is room for."""
    found = job.comparison
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(_title(job))}</title>'
    parts = [f"<h1>{escape(sentences.sentence(found))}</h1>", *_growth(job), *_map(job), *_first(job)]
    parts += [f"<h2>What was found</h2>{runs_html.fragment(found)}"]
    body = f"{head}<style>{_STYLE}</style></head><body>{''.join(parts)}"
    lines = [line for one in changes for line in (f"{one['file']}, {one['where']}", *one["hunks"], "")]
    for title, text in (
        ("Lines of code that differ", "\n".join(lines)),
        ("Changes of B that were not committed", patch.decode("utf-8", "replace")),
    ):
        body += _code(title, text, _MOST - len(body.encode("utf-8", "replace")) - 4096)
    return f"{body}</body></html>\n".encode("utf-8", "replace")[:_MOST]


def _title(job: Job) -> str:
    names = [label.rstrip("/").rpartition("/")[2] for label in (job.comparison.a, job.comparison.b)]
    return f"{names[0]} against {names[1]}"


def _growth(job: Job) -> list[str]:
    told = sentences.growth(job.comparison)
    return [f"<p>{escape(told['text'])}</p>"] if told else []


def _map(job: Job) -> Iterator[str]:
    columns, facts = divergence(job.comparison, job.pairs, "relative_l2", None, "")
    if not columns["error"].size:
        return
    count, steps = columns["error"].shape
    tops, lefts = _starts(count, _LINES), _starts(steps, _STEPS)
    colours = _map_colours(_worst(columns["error"], tops, lefts))
    width, height = 1000, min(480, max(120, 12 * len(tops)))
    ring = ""
    if facts["first"] is not None:
        x = (facts["first"]["step"] + 0.5) / steps * width
        y = (facts["first"]["tensor"] + 0.5) / count * height
        ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="#ff4d5e" stroke-width="3"/>'
    caption = (
        f"{count:,} tensors in the order of execution, from top to bottom, against {steps:,} steps; the "
        "brighter, the larger the relative difference, on a logarithmic scale; grey where there is no pair"
    )
    picture = f'<image href="{_data(colours)}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
    yield (
        f'<h2>Where they part</h2><figure><svg role="img" aria-label="{escape(caption)}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">{picture}{ring}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _worst(errors: Array, tops: Array, lefts: Array) -> Array:
    """The largest error of each part; NaN only where there is none at all."""
    known = np.where(np.isnan(errors), -1.0, errors)
    found = np.maximum.reduceat(np.maximum.reduceat(known, tops, axis=0), lefts, axis=1)
    return np.where(found < 0, np.nan, found)


def _map_colours(errors: Array) -> Array:
    with np.errstate(all="ignore"):
        sizes = np.log10(np.where(errors > 0, errors, np.nan))
    finite = sizes[np.isfinite(sizes)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    # What is identical is as dark as it can be, and the least difference already lighter.
    scale = Scale(low - max(1.0, 0.5 * (high - low)), high if high > low else low + 0.5, False)
    colours = coloured(np.where(errors > 0, sizes, scale.low), scale)
    colours[np.isinf(errors)] = coloured(np.array([np.inf]))[0]
    colours[np.isnan(errors)] = (128, 128, 128)
    return colours


def _starts(length: int, most: int) -> Array:
    count = max(1, min(length, most))
    return np.arange(count) * length // count


def _first(job: Job) -> Iterator[str]:
    number = first_pair(job.comparison, job.pairs)
    if number is None:
        return
    one = job.pairs.table[number]
    yield f"<h2>{escape(str(one.pair.a))}</h2>"
    try:
        yield from _sides(one)
    except (TensortapError, OSError, ValueError, LookupError) as error:
        yield f"<p>{escape(str(error))}</p>"


def _sides(one: Finding) -> Iterator[str]:
    operands = [entry.operand() for entry in (one.pair.a, one.pair.b)]
    if operands[0] is None or operands[1] is None:
        return
    a, b = Tensor(operands[0]), Tensor(operands[1])
    pictures = [_picture(a), _picture(b)]
    common = scale_of(np.concatenate([_finite(part) for part in pictures]))
    for name, part in zip("AB", pictures, strict=True):
        yield _tensor(part, name, common)
    if a.shape == b.shape:
        gap = _picture(Apart(a, b, "value"))
        yield _tensor(gap, "B - A", scale_of(_finite(gap)))


def _picture(numbers: Tensor | Apart) -> Array:
    grid = numbers.grid("", "")
    level = tiles.levels(grid.shape) - 1
    if not level:
        return tiles.values(grid, 0, 0).astype(np.float64)
    made = tiles.tile(grid, level, 0, 0)
    return np.where(np.abs(made.low) > np.abs(made.high), made.low, made.high).astype(np.float64)


def _finite(part: Array) -> Array:
    return part[np.isfinite(part)]


def _tensor(part: Array, name: str, scale: Scale) -> str:
    times = max(1, 360 // max(*part.shape, 1))
    caption = f"{name}, from {scale.low:.4g} to {scale.high:.4g}"
    return _figure(coloured(part, scale), caption, part.shape[1] * times, part.shape[0] * times)


def _figure(colours: Array, caption: str, width: int, height: int) -> str:
    picture = f'<img alt="{escape(caption)}" width="{width}" height="{height}" src="{_data(colours)}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _data(colours: Array) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(colours)).decode()}"


def _code(title: str, text: str, room: int) -> str:
    if not text or room < 4096:
        return ""
    kept = escape(text[: room // 6])
    more = "\n..." if len(text) > room // 6 else ""
    return f"<h2>{title}</h2><pre>{kept}{more}</pre>"
