"""Values as cards for a notebook: static HTML, no scripts, small whatever the value is."""

from __future__ import annotations

import math
from base64 import b64encode
from html import escape
from typing import Any

import numpy as np

from tensortap.core.dtypes import NUMBER_TYPES
from tensortap.core.record import Record, Series, Site
from tensortap.formats.short_words import ShortWords, cut
from tensortap.formats.table import size_words
from tensortap.frameworks.base import framework_of
from tensortap.kernels.blocks import numbers
from tensortap.kernels.statistics import statistics
from tensortap.readers.picture import cells, coloured, enlarged, plane, png
from tensortap.readers.portrait import Portrait, portrait
from tensortap.readers.stored import Stored

Array = np.ndarray[Any, Any]
_SAMPLE = 1 << 19  # numbers that are looked at; of a larger value, every n-th
_SIDE, _BARS, _LONGEST = 96, 48, 160
STYLE = (
    ".tt-card{font:13px/1.45 system-ui,sans-serif;display:inline-block;border:1px solid #8886;"
    "border-radius:8px;padding:10px 14px;margin:2px 6px 6px 0;color-scheme:light dark;max-width:60em}"
    ".tt-card h4{margin:0 0 2px;font:600 13px ui-monospace,monospace;overflow-wrap:anywhere}"
    ".tt-card p{margin:0 0 6px;opacity:.75}"
    ".tt-card .tt-parts{display:flex;gap:16px;align-items:flex-start;flex-wrap:wrap}"
    ".tt-card{vertical-align:top}.tt-card svg{display:block}.tt-card table{font-size:13px}"
    ".tt-card img{image-rendering:pixelated;border-radius:4px;display:block}"
    ".tt-card td{padding:0 0 0 14px;text-align:right;font-variant-numeric:tabular-nums}"
    ".tt-card th{text-align:left;font-weight:400;opacity:.75}"
    ".tt-card .tt-bad{color:#e8263e;font-weight:600;opacity:1}"
)


def value_card(one: Record | Stored) -> str:
    """One value: a picture, a histogram, its numbers, where and when it was seen."""
    bits, dtype = _bits_of(one)
    return _framed(one.name, _moment(one), _body(bits, dtype) if bits is not None else _plain(one))


def series_card(series: Series) -> str:
    """All values of one name: how their mean and range go over the steps, and the latest as a picture."""
    rows = [_numbers_of(value) for value in _some(series.values, 400)]
    told = f"{len(series):,} values, steps {_range(series.steps)}, ranks {_range(series.ranks)}"
    latest = value_card(Record(series.name, series.values[-1])) if series.values else ""
    return _framed(series.name, told, _ribbon([row for row in rows if row is not None])) + latest


def _bits_of(one: Record | Stored) -> tuple[Array | None, str]:
    """The numbers as they lie in memory or in the file; None for what is not a plain array."""
    if isinstance(one, Stored):
        return (one.bits, one.dtype) if one.dtype in NUMBER_TYPES else (None, "")
    framework = framework_of(one.value)
    told = framework.describe(one.value)
    if told.layout != "strided" or told.dtype not in NUMBER_TYPES or told.device == "meta":
        return None, ""
    return framework.bits(one.value), told.dtype


def _body(bits: Array, dtype: str) -> str:
    every = max(1, -(-bits.size // _SAMPLE))
    some = bits if every == 1 else _thinned(bits, every)
    look = portrait(some, dtype, bars=_BARS)
    sampled = f", sampled: one in {every:,}" if every > 1 else ""
    what = f"{dtype}{list(bits.shape)} {size_words(bits.nbytes)}{sampled}"
    parts = f"{_thumbnail(bits, dtype)}<div>{_histogram(look)}{_signs(some, dtype)}</div>{_table(look)}"
    return f'<p>{escape(what)}</p><div class="tt-parts">{parts}</div>'


def _thinned(bits: Array, every: int) -> Array:
    """Every n-th number along the longest axes, so that no more of a large file is read than is shown."""
    index = []
    for length in bits.shape:
        step = min(every, max(1, length))
        index.append(slice(None, None, step))
        every = -(-every // step)
    return np.ascontiguousarray(bits[tuple(index)])


def _thumbnail(bits: Array, dtype: str) -> str:
    flat = plane(bits)
    if not flat.size:
        return ""
    rows, columns = (max(1, length // (8 * _SIDE)) for length in flat.shape)
    small = coloured(cells(flat[::rows, ::columns], dtype, _SIDE, _SIDE).peak)
    small = small if len(small) > 1 else np.repeat(small, max(1, small.shape[1] // 8), axis=0)
    times = max(1, _SIDE // max(small.shape[:2]))
    data = b64encode(png(enlarged(small, times))).decode()
    size = f'width="{small.shape[1] * times}" height="{small.shape[0] * times}"'
    return f'<img alt="the last two axes as colours" {size} src="data:image/png;base64,{data}">'


def _histogram(look: Portrait) -> str:
    """Counts on a logarithmic scale, so that one tall bar does not hide the tails."""
    if not look.histogram:
        return ""
    heights = [math.log1p(count) for count in look.histogram]
    tallest, width = max(heights) or 1.0, 240 / len(heights)
    bars = "".join(
        _bar(at * width, max(width - 1, 0.5), 50 * height / tallest) for at, height in enumerate(heights)
    )
    low, high = _short(look.statistics.min), _short(look.statistics.max)
    ends = f'<text x="0" y="63">{low}</text><text x="240" y="63" text-anchor="end">{high}</text>'
    return _drawing(
        "histogram, counts on a logarithmic scale", 240, 66, f'<g fill="#4c8bf5">{bars}</g>{ends}'
    )


def _bar(left: float, width: float, height: float) -> str:
    return f'<rect x="{left:.1f}" y="{50 - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _drawing(label: str, width: int, height: int, inside: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg role="img" aria-label="{label}" {size} font-size="10" fill="currentColor">{inside}</svg>'


def _signs(some: Array, dtype: str) -> str:
    """Which share is below, at and above zero."""
    values = numbers(some, dtype)
    if values.dtype.kind not in "fi" or not values.size:
        return ""
    shares = [float(np.count_nonzero(test)) / values.size for test in (values < 0, values == 0, values > 0)]
    colours, at, drawn = ("#2f7fd6", "#8a8f98", "#e08a1e"), 0.0, []
    for share, colour in zip(shares, colours, strict=True):
        drawn.append(f'<rect x="{240 * at:.1f}" width="{240 * share:.1f}" height="6" fill="{colour}"/>')
        at += share
    told = zip(shares, ("negative", "zero", "positive"), strict=True)
    words = ", ".join(f"{share:.0%} {word}" for share, word in told)
    return _drawing(words, 240, 6, f"{''.join(drawn)}<title>{words}</title>")


def _table(look: Portrait) -> str:
    found = look.statistics
    pairs = [
        ("min", found.min),
        ("max", found.max),
        ("mean", found.mean),
        ("std", found.std),
        ("norm", found.norm),
    ]
    rows = [f"<tr><th>{name}</th><td>{_short(number)}</td></tr>" for name, number in pairs]
    bad = [("NaN", found.nan), ("Inf", found.inf)]
    rows += [
        f'<tr class="tt-bad"><th class="tt-bad">{name}</th><td>{count:,}</td></tr>'
        for name, count in bad
        if count
    ]
    return f"<table>{''.join(rows)}</table>"


def _plain(one: Record | Stored) -> str:
    """What is not an array, in words."""
    if isinstance(one, Stored):
        return f"<p>{escape(one.type)}, {size_words(one.nbytes)}</p>"
    return f"<p>{escape(ShortWords().of(one.value))}</p>"


def _moment(one: Record | Stored) -> str:
    told = [one.kind, f"step {one.step}", f"rank {one.rank}", *([f"call {one.call}"] if one.call else [])]
    return ", ".join([*told, *([_place(one.site)] if one.site else [])])


def _place(site: Site) -> str:
    return f"{site.file}:{site.line} in {site.function}"


def _numbers_of(value: Any) -> tuple[float, float, float] | None:
    """Lowest, mean and highest of one value; None where it has none."""
    bits, dtype = _bits_of(Record("", value))
    if bits is None:
        return None
    every = max(1, -(-bits.size // (_SAMPLE // 16)))
    found = statistics(bits if every == 1 else _thinned(bits, every), dtype)
    if found.min is None or found.max is None or found.mean is None:
        return None
    return float(found.min), found.mean, float(found.max)


def _ribbon(rows: list[tuple[float, float, float]]) -> str:
    """The range as a band and the mean as a line, from the first value to the last."""
    if len(rows) < 2:
        return ""
    low, high = min(row[0] for row in rows), max(row[2] for row in rows)
    span, step = high - low or 1.0, 480 / (len(rows) - 1)

    def points(which: int) -> list[str]:
        return [f"{at * step:.1f},{70 - 66 * (row[which] - low) / span:.1f}" for at, row in enumerate(rows)]

    band = " ".join([*points(0), *reversed(points(2))])
    ends = f'<text x="0" y="84">{_short(low)} .. {_short(high)}</text>'
    area = f'<polygon fill="#4c8bf5" fill-opacity=".25" points="{band}"/>'
    line = f'<polyline fill="none" stroke="#4c8bf5" stroke-width="1.5" points="{" ".join(points(1))}"/>'
    return _drawing("range and mean of each value, in order", 480, 88, f"{area}{line}{ends}")


def _some(values: list[Any], most: int) -> list[Any]:
    return values[:: max(1, -(-len(values) // most))]


def _range(numbers: list[Any]) -> str:
    flat = {part for one in numbers for part in (one if isinstance(one, tuple) else (one,))}
    ordered = sorted(flat)
    return (
        "none" if not ordered else str(ordered[0]) if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
    )


def _short(number: float | None) -> str:
    return "–" if number is None else f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _framed(name: str, told: str, body: str) -> str:
    title = escape(cut(name if name.isprintable() else repr(name), _LONGEST))
    head = f"<style>{STYLE}</style><h4>{title}</h4><p>{escape(cut(told, 400))}</p>"
    return f'<div class="tt-card">{head}{body}</div>'


# The pairs that the entry points name.
RECORD, STORED, SERIES = (Record, value_card), (Stored, value_card), (Series, series_card)
