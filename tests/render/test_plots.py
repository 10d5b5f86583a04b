"""Pictures of numbers: nothing is lost on the way down, NaN is seen from afar, files are what they say."""

import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.kernels.decode import decode
from tensortap.render import plots
from tensortap.render.histogram import render_bars
from tensortap.render.plots import (
    ColourScale,
    apply_colours,
    encode_png,
    fit_colour_scale,
    pool_plane,
    render_half_blocks,
    render_shades,
    sparkline,
)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_every_number_is_in_exactly_one_cell(height, width, rows, columns):
    plane = np.random.default_rng(0).normal(size=(height, width))
    found = pool_plane(plane, "float64", rows, columns)
    assert found.low.shape == (min(height, rows), min(width, columns))
    assert found.low.min() == plane.min()
    assert found.high.max() == plane.max()
    assert (found.low <= found.high).all()
    if (height, width) == found.low.shape:
        assert (found.peak == plane).all()


def test_one_nan_among_millions_is_seen():
    plane = np.zeros((2000, 1500), "f4")
    plane[1234, 567] = np.nan
    found = pool_plane(plane, "float32", 20, 15).peak
    assert np.argwhere(np.isnan(found)).tolist() == [[12, 5]]


def test_the_peak_keeps_its_sign():
    found = pool_plane(np.array([[-5.0, 3.0, 0.0, 4.0]]), "float64", 1, 2)
    assert found.peak.tolist() == [[-5.0, 4.0]]


def test_any_number_of_axes_gives_a_plane():
    assert plots.last_plane(np.float64(3).reshape(())).shape == (1, 1)
    assert plots.last_plane(np.arange(5)).shape == (1, 5)
    assert plots.last_plane(np.zeros((2, 3, 4, 5))).shape == (4, 5)
    assert pool_plane(np.empty((0, 3)), "float64", 5, 5).peak.size == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"])
def test_every_number_type_is_drawn(dtype):
    bits = {
        "bfloat16": np.array([[0x3F80, 0xC000]], "<u2"),
        "float8_e4m3fn": np.array([[0x38, 0xC0]], "u1"),
        "int64": np.array([[1, -2]]),
        "bool": np.array([[True, False]]),
        "complex64": np.array([[3 + 4j, 0]], "c8"),
    }[dtype]
    values = decode(bits, dtype)
    expected = np.abs(values) if dtype == "complex64" else values
    assert pool_plane(bits, dtype, 1, 2).peak.tolist() == expected.astype(float).tolist()


def test_a_scale_with_both_signs_has_zero_in_the_middle():
    scale = fit_colour_scale(np.array([-1.0, 3.0, np.nan, np.inf]))
    assert scale == ColourScale(-3.0, 3.0, True)
    assert scale.normalise(np.array([0.0])).tolist() == [0.5]
    assert fit_colour_scale(np.array([2.0, 5.0])) == ColourScale(2.0, 5.0, False)
    assert fit_colour_scale(np.array([np.nan])) == ColourScale(0.0, 0.0, False)


def test_a_width_that_overflows_is_still_a_scale():
    share = fit_colour_scale(np.array([-1.7e308, 1.7e308])).normalise(np.array([-1.7e308, 0.0, 1.7e308]))
    assert share.tolist() == [0.0, 0.5, 1.0]


def test_brighter_means_more_and_odd_numbers_have_colours_of_their_own():
    light = apply_colours(np.linspace(0, 1, 50)[None]).astype(int).sum(axis=2)[0]
    assert (np.diff(light) >= 0).all()
    odd = apply_colours(np.array([[0.0, 1.0, np.nan, np.inf, -np.inf]]))[0].tolist()
    assert tuple(odd[2]) == plots.NAN_COLOUR
    assert tuple(odd[3]) == tuple(odd[4]) == plots.INF_COLOUR
    minus, plus = apply_colours(np.array([[-1.0, 1.0]]))[0].tolist()
    assert minus[2] > minus[0]
    assert plus[0] > plus[2]


def chunks(data):
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        yield name, body
        at += 12 + length


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_png_holds_the_pixels_it_was_given(height, width):
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = dict(chunks(encode_png(pixels)))
    assert struct.unpack(">IIBBBBB", found[b"IHDR"]) == (width, height, 8, 2, 0, 0, 0)
    lines = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all()
    assert (lines[:, 1:].reshape(height, width, 3) == pixels).all()


def test_enlarged_cells_are_squares():
    big = plots.enlarge(np.arange(12, dtype=np.uint8).reshape(2, 2, 3), 3)
    assert big.shape == (6, 6, 3)
    assert (big[:3, 3:] == np.array([3, 4, 5])).all()


def test_half_blocks_put_two_rows_into_a_line():
    pixels = np.array([[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]]], np.uint8)
    assert render_half_blocks(pixels) == [
        "\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m▀\x1b[0m",
        "\x1b[38;2;7;8;9m▀\x1b[0m",
    ]
    same = np.zeros((2, 50, 3), np.uint8)
    assert render_half_blocks(same)[0].count("\x1b") == 3


@pytest.mark.parametrize(
    ("colour", "code"), [((255, 0, 0), 196), ((0, 0, 255), 21), ((0, 0, 0), 232), ((255, 255, 255), 255)]
)
def test_a_terminal_of_256_colours_gets_the_nearest(colour, code):
    (line,) = render_half_blocks(np.array([[colour]], np.uint8), "256")
    assert line == f"\x1b[38;5;{code}m▀\x1b[0m"


def test_shades_are_darker_for_more_and_mark_what_is_not_finite():
    assert render_shades(np.array([[0.0, 1, 2, 3, 4]])) == [" ░▒▓█"]
    assert render_shades(np.array([[-4.0, 0, 4]])) == ["█ █"]
    assert render_shades(np.array([[0.0, np.nan, np.inf, 1]]), ascii=True) == [" !^@"]


def test_a_sparkline_has_a_letter_for_each_number():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([-1, 0, 1]) == "▁▅█"
    assert sparkline([1, None, math.nan, 2]) == "▁ !█"
    assert sparkline([]) == ""
    assert sparkline([5, 5]) == "▅▅"
    assert sparkline([0, 7], ascii=True) == "_@"


def test_a_long_sparkline_keeps_the_peaks():
    values = [0.0] * 1000
    values[777] = 1.0
    line = sparkline(values, 50)
    assert len(line) == 50
    assert line.index("█") == 38
    values[100] = math.nan
    assert sparkline(values, 50)[5] == "!"


def test_a_bar_that_is_not_empty_shows():
    assert render_bars([0, 1, 1000], 10) == ["", "▏", "█" * 10]
    assert render_bars([0, 1, 1000], 10, ascii=True) == ["", "#", "#" * 10]
    assert render_bars([]) == []
    assert render_bars([3, 6], 4) == ["██", "████"]
