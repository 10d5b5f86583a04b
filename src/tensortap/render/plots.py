"""Summaries and plots of arrays: heat maps and sparklines as text and PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensortap.kernels.decode import decode_block
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.render.histogram import Bins, bins_of_range, compute_histogram

Array = np.ndarray[Any, Any]
Depth = Literal["truecolor", "256"]

# Dark to light along one hue path each, so that they also read in grey and by every eye; evenly spaced.
_RISING = (
    (18, 15, 46),
    (40, 50, 110),
    (35, 96, 138),
    (44, 140, 140),
    (98, 180, 122),
    (190, 211, 96),
    (250, 238, 150),
)
_SIGNED = (
    (150, 205, 255),
    (60, 130, 225),
    (28, 66, 130),
    (16, 18, 26),
    (125, 74, 12),
    (226, 138, 26),
    (255, 214, 130),
)
NAN_COLOUR = (232, 38, 62)
INF_COLOUR = (255, 105, 205)
_SHADES, _ASCII_SHADES = " ░▒▓█", " .:-=+*#%@"
_TICKS, _ASCII_TICKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_GREY, _GREYS, _CUBE = 232, 24, 16
_BAND_ELEMENTS = 1 << 20  # decoded at once


@dataclass(frozen=True, slots=True)
class PooledPlane:
    """A plane after min- and max-pooling; NaN where a cell holds one."""

    low: Array
    high: Array

    @property
    def peak(self) -> Array:
        """Per cell the extreme farther from zero, so that rare large values are not averaged away."""
        return np.where(np.abs(self.low) > np.abs(self.high), self.low, self.high)


@dataclass(frozen=True, slots=True)
class ColourScale:
    """The numbers at the ends of the colour map; symmetric around zero if `is_signed`."""

    low: float
    high: float
    is_signed: bool

    def normalise(self, values: Array) -> Array:
        """Map to [0, 1] between the ends; halved first, since the width may overflow."""
        width = self.high / 2 - self.low / 2
        with np.errstate(all="ignore"):
            fractions = (values / 2 - self.low / 2) / width if width else np.full(np.shape(values), 0.5)
        return np.clip(fractions, 0.0, 1.0)


def last_plane(bits: Array) -> Array:
    """The last two axes at index 0 of all others; a vector becomes one row."""
    return bits.reshape(1, -1) if bits.ndim < 2 else bits[(0,) * (bits.ndim - 2)]


def pool_plane(bits: Array, dtype: str, rows: int, columns: int) -> PooledPlane:
    """Min/max-pool the last plane of an array in the storage type of `dtype` to at most that many cells."""
    bits = last_plane(bits)
    if not bits.size:
        return PooledPlane(np.empty((0, 0)), np.empty((0, 0)))
    tops, lefts = _block_starts(bits.shape[0], rows), _block_starts(bits.shape[1], columns)
    ends = [*tops[1:], bits.shape[0]]
    pairs = [_pool_rows(bits[top:end], dtype, lefts) for top, end in zip(tops, ends, strict=True)]
    return PooledPlane(np.stack([low for low, _ in pairs]), np.stack([high for _, high in pairs]))


def fit_colour_scale(values: Array, *, signed: bool = True) -> ColourScale:
    """The range of the finite numbers; with `signed`, symmetric around zero if both signs occur."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ColourScale(0.0, 0.0, False)
    low, high = float(finite.min()), float(finite.max())
    if signed and low < 0 < high:
        return ColourScale(-max(-low, high), max(-low, high), True)
    return ColourScale(low, high, False)


def apply_colours(values: Array, scale: ColourScale | None = None) -> Array:
    """RGB of each number; NaN and Inf have colours of their own."""
    scale = scale or fit_colour_scale(values)
    anchors = np.array(_SIGNED if scale.is_signed else _RISING, np.float64)
    position = np.nan_to_num(scale.normalise(values), nan=0.0) * (len(anchors) - 1)
    below = np.minimum(position.astype(np.intp), len(anchors) - 2)
    weight = (position - below)[..., None]
    colours: Array = (anchors[below] * (1 - weight) + anchors[below + 1] * weight).round().astype(np.uint8)
    colours[np.isinf(values)] = INF_COLOUR
    colours[np.isnan(values)] = NAN_COLOUR
    return colours


def encode_png(colours: Array) -> bytes:
    """The bytes of a PNG file with 8 bits per channel."""
    height, width = colours.shape[:2]
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter type
    lines[:, 1:] = colours.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(name, data) for name, data in parts)


def enlarge(colours: Array, factor: int) -> Array:
    """The image with each cell as a square of that many pixels."""
    return np.kron(colours, np.ones((factor, factor, 1), np.uint8))


def render_half_blocks(colours: Array, depth: Depth = "truecolor") -> list[str]:
    """Terminal lines of two rows of cells each: the upper as foreground, the lower as background colour."""
    lines = []
    for top in range(0, len(colours), 2):
        below = colours[top + 1] if top + 1 < len(colours) else None
        lines.append(_half_block_line(colours[top], below, depth))
    return lines


def render_shades(values: Array, scale: ColourScale | None = None, *, ascii: bool = False) -> list[str]:
    """Lines of characters, darker for larger (farther from zero if both signs occur); NaN is `!`, Inf `^`."""
    scale = scale or fit_colour_scale(values)
    letters = _ASCII_SHADES if ascii else _SHADES
    fractions = scale.normalise(values)
    fractions = np.abs(fractions - 0.5) * 2 if scale.is_signed else fractions
    positions = np.minimum(np.nan_to_num(fractions, nan=0.0) * len(letters), len(letters) - 1).astype(np.intp)
    shaded = np.array(list(letters))[positions]
    shaded[np.isinf(values)] = "^"
    shaded[np.isnan(values)] = "!"
    return ["".join(row) for row in shaded.tolist()]


def sparkline(values: Sequence[float | None], width: int = 60, *, ascii: bool = False) -> str:
    """A character per number, the higher the larger; `!` if not finite, a blank for None. More numbers than
    characters: the maximum of each block."""
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    absent = np.array([value is None for value in values], bool)
    if not known.size:
        return ""
    starts = _block_starts(known.size, width)
    with np.errstate(all="ignore"):
        highest = np.maximum.reduceat(np.where(absent, -np.inf, known), starts)
    is_absent = np.logical_and.reduceat(absent, starts)
    letters = _ASCII_TICKS if ascii else _TICKS
    fractions = np.nan_to_num(fit_colour_scale(highest, signed=False).normalise(highest))
    ticks = np.array(list(letters))[np.minimum(fractions * len(letters), len(letters) - 1).astype(np.intp)]
    ticks[~np.isfinite(highest)] = "!"
    ticks[is_absent] = " "
    return "".join(ticks.tolist())


def _block_starts(length: int, limit: int) -> Array:
    count = max(1, min(length, limit))
    return np.arange(count, dtype=np.intp) * length // count


def _pool_rows(rows: Array, dtype: str, lefts: Array) -> tuple[Array, Array]:
    """Minimum and maximum of each block of columns; numpy's minimum and maximum propagate NaN."""
    step = max(1, _BAND_ELEMENTS // max(1, rows.shape[1]))
    low = high = None
    with np.errstate(all="ignore"):
        for top in range(0, len(rows), step):
            band = _to_real(decode_block(rows[top : top + step], dtype))
            band_low, band_high = band.min(axis=0), band.max(axis=0)
            low = band_low if low is None else np.minimum(low, band_low)
            high = band_high if high is None else np.maximum(high, band_high)
        assert low is not None
        assert high is not None
        return np.minimum.reduceat(low, lefts), np.maximum.reduceat(high, lefts)


def _to_real(values: Array) -> Array:
    return np.abs(values).astype(np.float64) if values.dtype.kind == "c" else values.astype(np.float64)


def _png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _half_block_line(above: Array, below: Array | None, depth: Depth) -> str:
    fore, back = "", ""
    parts = []
    lower = above if below is None else below
    for upper_colour, lower_colour in zip(above.tolist(), lower.tolist(), strict=True):
        next_fore = _ansi_code(upper_colour, depth, 38)
        next_back = _ansi_code(lower_colour, depth, 48) if below is not None else ""
        parts += [next_fore if next_fore != fore else "", next_back if next_back != back else "", "▀"]
        fore, back = next_fore, next_back
    return "".join(parts) + "\x1b[0m"


def _ansi_code(colour: Sequence[int], depth: Depth, layer: int) -> str:
    if depth == "truecolor":
        return f"\x1b[{layer};2;{colour[0]};{colour[1]};{colour[2]}m"
    return f"\x1b[{layer};5;{_nearest_ansi_256(colour)}m"


def _nearest_ansi_256(colour: Sequence[int]) -> int:
    """The index in the 6x6x6 colour cube, or in the grey ramp for a grey."""
    if max(colour) - min(colour) < 10:
        return _GREY + min(_GREYS - 1, max(0, (sum(colour) // 3 - 3) // 10))
    red, green, blue = (
        0 if channel < 48 else 1 if channel < 115 else (channel - 35) // 40 for channel in colour
    )
    return _CUBE + 36 * red + 6 * green + blue


Index = tuple[Any, ...]
PERCENTS = (1, 5, 25, 50, 75, 95, 99)
_MAX_SORTED = 1 << 22


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """`percentiles` of the finite elements by percent, from a sample with that `stride`; `histogram` counts
    them in equal bins from the minimum to the maximum."""

    shape: tuple[int, ...]
    dtype: str
    statistics: Statistics
    percentiles: dict[int, float]
    histogram: tuple[int, ...]
    stride: int = 1

    @property
    def bins(self) -> Bins | None:
        """The bins of the histogram; None without finite elements."""
        low, high = self.statistics.min, self.statistics.max
        return None if low is None or high is None else Bins(low, high, len(self.histogram))


def summarize_array(
    bits: Array, dtype: str, *, bins: int = 12, known: Statistics | None = None
) -> ArraySummary:
    """Summarize an array in the storage type of `dtype`; `known` statistics are not computed again."""
    stats = known if known is not None else statistics(bits, dtype)
    if stats.min is None or stats.max is None:
        return ArraySummary(bits.shape, dtype, stats, {}, ())
    stride = -(-bits.size // _MAX_SORTED)
    histogram = compute_histogram(bits, dtype, bins_of_range(stats.min, stats.max, bins))
    return ArraySummary(bits.shape, dtype, stats, _percentiles(bits, dtype, stride), histogram, stride)


def default_index(shape: tuple[int, ...]) -> Index:
    """The last two axes at index 0 of all others."""
    return (0,) * max(0, len(shape) - 2) + (slice(None),) * min(2, len(shape))


def index_array(bits: Array, index: Index) -> Array:
    """`bits[index]`; raises a ValueError that names the shape if out of range."""
    try:
        selected: Array = np.asarray(bits[index])
    except IndexError:
        raise ValueError(
            f"[{format_index(index)}] is no part of an array of shape {list(bits.shape)}"
        ) from None
    return selected


def format_index(index: Index) -> str:
    """The index as it is typed: `0,3,:,1:5`."""
    return ",".join(map(_format_index_part, index))


def _format_index_part(part: Any) -> str:
    if not isinstance(part, slice):
        return "..." if part is ... else str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends) + ("" if part.step is None else f":{part.step}")


def _percentiles(bits: Array, dtype: str, stride: int) -> dict[int, float]:
    sample = np.ascontiguousarray(bits).reshape(-1)[::stride]
    values = decode_block(sample, dtype)
    real = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)
    finite = real[np.isfinite(real)]
    if not finite.size:
        return {}
    # Halved meanwhile: the interpolation between two numbers may overflow.
    percentiles = np.percentile(finite / 2, PERCENTS) * 2
    return dict(zip(PERCENTS, percentiles.tolist(), strict=True))
