"""Values as cards for a notebook: static HTML, no scripts, small whatever the value is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.record import Record, Series, Site
from tensortap.frameworks.base import framework_of
from tensortap.kernels.decode import decode_block
from tensortap.kernels.statistics import statistics
from tensortap.readers.stored_record import StoredRecord
from tensortap.render.histogram_svg import histogram_svg
from tensortap.render.html import SMALL_LABELS, Html, element, image, join, style_sheet, svg
from tensortap.render.plots import (
    ArraySummary,
    apply_colours,
    encode_png,
    enlarge,
    last_plane,
    pool_plane,
    summarize_array,
)
from tensortap.render.text import ShortRepr, format_nbytes, truncate

Array = np.ndarray[Any, Any]
_MAX_SAMPLED = 1 << 19  # elements; a larger array is subsampled with a stride
_SIDE, _BARS, _MAX_TITLE = 96, 48, 160
_COLOUR = "#4c8bf5"
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


def value_card(record: Record | StoredRecord) -> Html:
    """HTML of one value: heat map, histogram, statistics, and where and when it was captured."""
    bits, dtype = _bits_and_dtype(record)
    return _card_html(
        record.name,
        _describe_occurrence(record),
        _array_html(bits, dtype) if bits is not None else _opaque_html(record),
    )


def series_card(series: Series) -> Html:
    """HTML of all values of one name: mean and range over the steps, and the card of the latest."""
    rows = [_min_mean_max(value) for value in _at_most(series.values, 400)]
    steps, ranks = _describe_range(series.steps), _describe_range(series.ranks)
    description = f"{len(series):,} values, steps {steps}, ranks {ranks}"
    latest = value_card(Record(series.name, series.values[-1])) if series.values else ""
    body = _range_svg([row for row in rows if row is not None])
    return join(_card_html(series.name, description, body), latest)


def _bits_and_dtype(record: Record | StoredRecord) -> tuple[Array | None, str]:
    """The array in the storage type of its dtype, and the dtype; (None, "") for what is not a dense array."""
    if isinstance(record, StoredRecord):
        return (record.bits, record.dtype) if record.dtype in DTYPE_TABLE else (None, "")
    framework = framework_of(record.value)
    description = framework.describe(record.value)
    if (
        description.layout != "strided"
        or description.dtype not in DTYPE_TABLE
        or description.device == "meta"
    ):
        return None, ""
    return framework.bits(record.value), description.dtype


def _array_html(bits: Array, dtype: str) -> Html:
    stride = max(1, -(-bits.size // _MAX_SAMPLED))
    sample = bits if stride == 1 else _subsample(bits, stride)
    summary = summarize_array(sample, dtype, bins=_BARS)
    sampled = f", sampled: one in {stride:,}" if stride > 1 else ""
    description = f"{dtype}{list(bits.shape)} {format_nbytes(bits.nbytes)}{sampled}"
    plots = element("div", _histogram_svg(summary), _sign_shares_svg(sample, dtype))
    parts = (_thumbnail(bits, dtype), plots, _statistics_table(summary))
    return join(element("p", description), element("div", *parts, class_="tt-parts"))


def _subsample(bits: Array, stride: int) -> Array:
    """Every n-th element, strided along the first axes, so that little of a large mapped file is read."""
    index = []
    for length in bits.shape:
        step = min(stride, max(1, length))
        index.append(slice(None, None, step))
        stride = -(-stride // step)
    return np.ascontiguousarray(bits[tuple(index)])


def _thumbnail(bits: Array, dtype: str) -> Html:
    matrix = last_plane(bits)
    if not matrix.size:
        return Html("")
    row_stride, column_stride = (max(1, length // (8 * _SIDE)) for length in matrix.shape)
    pixels = apply_colours(pool_plane(matrix[::row_stride, ::column_stride], dtype, _SIDE, _SIDE).peak)
    pixels = pixels if len(pixels) > 1 else np.repeat(pixels, max(1, pixels.shape[1] // 8), axis=0)
    magnification = max(1, _SIDE // max(pixels.shape[:2]))
    height, width = (length * magnification for length in pixels.shape[:2])
    png = encode_png(enlarge(pixels, magnification))
    return image(png, "the last two axes as colours", width, height)


def _histogram_svg(summary: ArraySummary) -> Html:
    bins = summary.bins
    if bins is None:
        return Html("")
    return histogram_svg(summary.histogram, _format_number(bins.low), _format_number(bins.high))


def _sign_shares_svg(sample: Array, dtype: str) -> Html:
    """A bar with the shares of negative, zero and positive elements."""
    values = decode_block(sample, dtype)
    if values.dtype.kind not in "fi" or not values.size:
        return Html("")
    shares = [float(np.count_nonzero(test)) / values.size for test in (values < 0, values == 0, values > 0)]
    colours, offset, rectangles = ("#2f7fd6", "#8a8f98", "#e08a1e"), 0.0, []
    for share, colour in zip(shares, colours, strict=True):
        left, width = f"{240 * offset:.1f}", f"{240 * share:.1f}"
        rectangles.append(element("rect", x=left, width=width, height=6, fill=colour))
        offset += share
    labelled = zip(shares, ("negative", "zero", "positive"), strict=True)
    label = ", ".join(f"{share:.0%} {word}" for share, word in labelled)
    return svg(label, (240, 6), *rectangles, element("title", label), **SMALL_LABELS)


def _statistics_table(summary: ArraySummary) -> Html:
    stats = summary.statistics
    pairs = [
        ("min", stats.min),
        ("max", stats.max),
        ("mean", stats.mean),
        ("std", stats.std),
        ("norm", stats.norm),
    ]
    rows = [_statistics_row(name, _format_number(number)) for name, number in pairs]
    nonfinite = [("NaN", stats.nan), ("Inf", stats.inf)]
    rows += [_statistics_row(name, f"{count:,}", class_="tt-bad") for name, count in nonfinite if count]
    return element("table", *rows)


def _statistics_row(name: str, number: str, **attributes: str) -> Html:
    return element("tr", element("th", name, **attributes), element("td", number), **attributes)


def _opaque_html(record: Record | StoredRecord) -> Html:
    """HTML of a value that is not a dense array: its type or short repr."""
    if isinstance(record, StoredRecord):
        return element("p", f"{record.type}, {format_nbytes(record.nbytes)}")
    return element("p", ShortRepr().format(record.value))


def _describe_occurrence(record: Record | StoredRecord) -> str:
    parts = [
        record.kind,
        f"step {record.step}",
        f"rank {record.rank}",
        *([f"call {record.call}"] if record.call else []),
    ]
    return ", ".join([*parts, *([_describe_site(record.site)] if record.site else [])])


def _describe_site(site: Site) -> str:
    return f"{site.file}:{site.line} in {site.function}"


def _min_mean_max(value: Any) -> tuple[float, float, float] | None:
    """Minimum, mean and maximum; None for a value without finite elements."""
    bits, dtype = _bits_and_dtype(Record("", value))
    if bits is None:
        return None
    stride = max(1, -(-bits.size // (_MAX_SAMPLED // 16)))
    stats = statistics(bits if stride == 1 else _subsample(bits, stride), dtype)
    if stats.min is None or stats.max is None or stats.mean is None:
        return None
    return float(stats.min), stats.mean, float(stats.max)


def _range_svg(rows: list[tuple[float, float, float]]) -> Html:
    """The range as a band and the mean as a line over the values, in order."""
    if len(rows) < 2:
        return Html("")
    low, high = min(row[0] for row in rows), max(row[2] for row in rows)
    span, step = high - low or 1.0, 480 / (len(rows) - 1)

    def points(column: int) -> list[str]:
        return [
            f"{position * step:.1f},{70 - 66 * (row[column] - low) / span:.1f}"
            for position, row in enumerate(rows)
        ]

    band = " ".join([*points(0), *reversed(points(2))])
    ends = element("text", f"{_format_number(low)} .. {_format_number(high)}", x=0, y=84)
    area = element("polygon", fill=_COLOUR, fill_opacity=".25", points=band)
    line = element("polyline", fill="none", stroke=_COLOUR, stroke_width=1.5, points=" ".join(points(1)))
    return svg("range and mean of each value, in order", (480, 88), area, line, ends, **SMALL_LABELS)


def _at_most(values: list[Any], limit: int) -> list[Any]:
    return values[:: max(1, -(-len(values) // limit))]


def _describe_range(numbers: list[Any]) -> str:
    flat = {number for entry in numbers for number in (entry if isinstance(entry, tuple) else (entry,))}
    ordered = sorted(flat)
    return (
        "none" if not ordered else str(ordered[0]) if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
    )


def _format_number(number: float | None) -> str:
    return "–" if number is None else f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _card_html(name: str, subtitle: str, body: Html) -> Html:
    title = truncate(name if name.isprintable() else repr(name), _MAX_TITLE)
    head = (style_sheet(STYLE), element("h4", title), element("p", truncate(subtitle, 400)))
    return element("div", *head, body, class_="tt-card")


# The pairs that the entry points name.
RECORD, STORED, SERIES = (Record, value_card), (StoredRecord, value_card), (Series, series_card)
