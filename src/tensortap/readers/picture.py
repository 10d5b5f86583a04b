"""Numbers as pictures, in text and PNG: planes as cells and colours, counts as bars, steps as a sparkline."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensortap.kernels.blocks import numbers

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
_PARTS = " ▏▎▍▌▋▊▉█"
_GREY, _GREYS, _CUBE = 232, 24, 16
_BAND = 1 << 20  # numbers that are decoded at once


@dataclass(frozen=True, slots=True)
class Cells:
    """A plane made smaller: the lowest and the highest number of each cell, NaN where it holds one."""

    low: Array
    high: Array

    @property
    def peak(self) -> Array:
        """Of both the one farther from zero: what is rare and large is not averaged away."""
        return np.where(np.abs(self.low) > np.abs(self.high), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Scale:
    """Which numbers the ends of the colours stand for; around zero where there are both signs."""

    low: float
    high: float
    is_signed: bool

    def share(self, values: Array) -> Array:
        """Where each number lies between the ends, from 0 to 1; halved first, for the width may overflow."""
        width = self.high / 2 - self.low / 2
        with np.errstate(all="ignore"):
            found = (values / 2 - self.low / 2) / width if width else np.full(np.shape(values), 0.5)
        return np.clip(found, 0.0, 1.0)


def plane(bits: Array) -> Array:
    """Two dimensions of any number: the last two, at the start of all others; a vector is one row."""
    return bits.reshape(1, -1) if bits.ndim < 2 else bits[(0,) * (bits.ndim - 2)]


def cells(bits: Array, dtype: str, rows: int, columns: int) -> Cells:
    """A plane of the storage type of `dtype` in at most that many cells, nothing left out."""
    bits = plane(bits)
    if not bits.size:
        return Cells(np.empty((0, 0)), np.empty((0, 0)))
    tops, lefts = _starts(bits.shape[0], rows), _starts(bits.shape[1], columns)
    ends = [*tops[1:], bits.shape[0]]
    pairs = [_row_of_cells(bits[top:end], dtype, lefts) for top, end in zip(tops, ends, strict=True)]
    return Cells(np.stack([low for low, _ in pairs]), np.stack([high for _, high in pairs]))


def scale_of(values: Array, *, signed: bool = True) -> Scale:
    """From the lowest finite number to the highest; `signed` puts zero in the middle where both signs are."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Scale(0.0, 0.0, False)
    low, high = float(finite.min()), float(finite.max())
    if signed and low < 0 < high:
        return Scale(-max(-low, high), max(-low, high), True)
    return Scale(low, high, False)


def coloured(values: Array, scale: Scale | None = None) -> Array:
    """Red, green and blue of each number; what is not finite has colours of its own."""
    scale = scale or scale_of(values)
    anchors = np.array(_SIGNED if scale.is_signed else _RISING, np.float64)
    at = np.nan_to_num(scale.share(values), nan=0.0) * (len(anchors) - 1)
    below = np.minimum(at.astype(np.intp), len(anchors) - 2)
    part = (at - below)[..., None]
    found: Array = (anchors[below] * (1 - part) + anchors[below + 1] * part).round().astype(np.uint8)
    found[np.isinf(values)] = INF_COLOUR
    found[np.isnan(values)] = NAN_COLOUR
    return found


def png(colours: Array) -> bytes:
    """The file: 8 bits for each of red, green and blue."""
    height, width = colours.shape[:2]
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with the number of its filter
    lines[:, 1:] = colours.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def enlarged(colours: Array, times: int) -> Array:
    """The same picture, each cell as a square of that many pixels."""
    return np.kron(colours, np.ones((times, times, 1), np.uint8))


def half_blocks(colours: Array, depth: Depth = "truecolor") -> list[str]:
    """Lines for a terminal, two rows of cells in each: the upper colours a letter, the lower lies behind."""
    lines = []
    for top in range(0, len(colours), 2):
        below = colours[top + 1] if top + 1 < len(colours) else None
        lines.append(_half_block_line(colours[top], below, depth))
    return lines


def shades(values: Array, scale: Scale | None = None, *, ascii: bool = False) -> list[str]:
    """Lines of letters, darker for larger (farther from zero where there are both signs); NaN is `!`."""
    scale = scale or scale_of(values)
    letters = _ASCII_SHADES if ascii else _SHADES
    share = scale.share(values)
    share = np.abs(share - 0.5) * 2 if scale.is_signed else share
    at = np.minimum(np.nan_to_num(share, nan=0.0) * len(letters), len(letters) - 1).astype(np.intp)
    drawn = np.array(list(letters))[at]
    drawn[np.isinf(values)] = "^"
    drawn[np.isnan(values)] = "!"
    return ["".join(row) for row in drawn.tolist()]


def sparkline(values: Sequence[float | None], most: int = 60, *, ascii: bool = False) -> str:
    """A letter for each number, the higher the larger; `!` where it is not finite, a blank where there is
    none. More numbers than letters: the highest of each part."""
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    absent = np.array([value is None for value in values], bool)
    if not known.size:
        return ""
    starts = _starts(known.size, most)
    with np.errstate(all="ignore"):
        highest = np.maximum.reduceat(np.where(absent, -np.inf, known), starts)
    gone = np.logical_and.reduceat(absent, starts)
    letters = _ASCII_TICKS if ascii else _TICKS
    at = np.nan_to_num(scale_of(highest, signed=False).share(highest))
    ticks = np.array(list(letters))[np.minimum(at * len(letters), len(letters) - 1).astype(np.intp)]
    ticks[~np.isfinite(highest)] = "!"
    ticks[gone] = " "
    return "".join(ticks.tolist())


def bars(counts: Sequence[int], width: int = 40, *, ascii: bool = False) -> list[str]:
    """A bar for each count, the longest as wide as allowed; one that is not empty shows at least a mark."""
    most = max(counts, default=0) or 1
    return [_bar(count / most * width, bool(count), ascii) for count in counts]


def _starts(length: int, most: int) -> Array:
    count = max(1, min(length, most))
    return np.arange(count, dtype=np.intp) * length // count


def _row_of_cells(rows: Array, dtype: str, lefts: Array) -> tuple[Array, Array]:
    """Lowest and highest below each other; minimum and maximum of numpy keep NaN."""
    step = max(1, _BAND // max(1, rows.shape[1]))
    low = high = None
    with np.errstate(all="ignore"):
        for top in range(0, len(rows), step):
            part = _real(numbers(rows[top : top + step], dtype))
            least, most = part.min(axis=0), part.max(axis=0)
            low = least if low is None else np.minimum(low, least)
            high = most if high is None else np.maximum(high, most)
        assert low is not None
        assert high is not None
        return np.minimum.reduceat(low, lefts), np.maximum.reduceat(high, lefts)


def _real(values: Array) -> Array:
    return np.abs(values).astype(np.float64) if values.dtype.kind == "c" else values.astype(np.float64)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _half_block_line(above: Array, below: Array | None, depth: Depth) -> str:
    fore, back = "", ""
    parts = []
    lower = above if below is None else below
    for one, other in zip(above.tolist(), lower.tolist(), strict=True):
        wanted_fore = _code(one, depth, 38)
        wanted_back = _code(other, depth, 48) if below is not None else ""
        parts += [wanted_fore if wanted_fore != fore else "", wanted_back if wanted_back != back else "", "▀"]
        fore, back = wanted_fore, wanted_back
    return "".join(parts) + "\x1b[0m"


def _code(colour: Sequence[int], depth: Depth, layer: int) -> str:
    if depth == "truecolor":
        return f"\x1b[{layer};2;{colour[0]};{colour[1]};{colour[2]}m"
    return f"\x1b[{layer};5;{_nearest_of_256(colour)}m"


def _nearest_of_256(colour: Sequence[int]) -> int:
    """Of the cube of 6 x 6 x 6 colours, or of the greys where it is one."""
    if max(colour) - min(colour) < 10:
        return _GREY + min(_GREYS - 1, max(0, (sum(colour) // 3 - 3) // 10))
    red, green, blue = (0 if part < 48 else 1 if part < 115 else (part - 35) // 40 for part in colour)
    return _CUBE + 36 * red + 6 * green + blue


def _bar(length: float, is_something: bool, ascii: bool) -> str:
    if ascii:
        return "#" * max(round(length), int(is_something))
    eighths = max(round(length * 8), int(is_something))
    return "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")
