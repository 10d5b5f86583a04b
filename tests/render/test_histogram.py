"""Histograms: every scale counts as numpy does, and one value lies in the middle."""

import numpy as np
import pytest

from tensortap.render.histogram import (
    SCALES,
    Bins,
    bins_of_range,
    bins_of_values,
    histogram_lines,
    merge_histograms,
)
from tensortap.render.histogram_svg import small_histogram_svg


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_counts_what_lies_between_its_edges(scale):
    values = np.random.default_rng(0).standard_normal(5000)
    bins = bins_of_values(values, 16, scale)
    counted = bins.count_values(np.split(values, 5))
    sizes = np.abs(values) if scale == "log" else values
    assert counted.tolist() == np.histogram(sizes, bins.edges())[0].tolist()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("value", [5.0, -5.0, 1.7e308])
def test_the_edges_around_a_single_value_are_finite_and_hold_it(scale, value):
    bins = bins_of_values(np.full(3, value), 4, scale)
    counts, edges = bins.count_values([np.full(3, value)]), bins.edges()
    at = int(np.argmax(counts))
    assert counts[at] == 3
    assert np.isfinite(edges).all()
    assert edges[at] <= (abs(value) if scale == "log" else value) <= edges[at + 1]


def test_what_is_not_finite_is_in_no_bin():
    values = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0])
    assert all(bins_of_values(values[3:], 4, scale).count_values([values]).sum() == 2 for scale in SCALES)


def test_a_bin_for_each_integer_begins_at_it():
    bins = bins_of_range(-1, 2, 12)
    assert bins.starts() == [-1, 0, 1, 2]
    assert list(histogram_lines(bins, (1, 0, 2, 4), str, ascii=True)) == [
        "-1  ########## 1",
        " 0",
        " 1  #################### 2",
        " 2  ######################################## 4",
    ]


def test_histograms_merge_over_the_range_of_all():
    parts = [(Bins(0.0, 1.0, 2), (3, 4)), (Bins(3.0, 4.0, 2), (5, 6)), (Bins(4.0, 4.0, 2), (0, 7))]
    assert merge_histograms(parts, 4) == [7, 0, 0, 18]
    assert merge_histograms([], 4) == [0, 0, 0, 0]


def test_no_counts_draw_nothing():
    assert not small_histogram_svg([0, 0])
    assert small_histogram_svg([0, 2]).count("M") == 1
