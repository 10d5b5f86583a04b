"""What numbers are like: percentiles, histograms, and the part that is drawn."""

import numpy as np
import pytest

from tensortap.render.plots import default_index, format_index, index_array, summarize_array


def test_percentiles_and_histogram_speak_of_the_finite_numbers():
    values = np.array([np.nan, np.inf, *range(101)], "f8")
    found = summarize_array(values, "float64", bins=4)
    assert found.percentiles == {1: 1, 5: 5, 25: 25, 50: 50, 75: 75, 95: 95, 99: 99}
    assert found.histogram == (25, 25, 25, 26)
    assert (found.statistics.nan, found.statistics.inf, found.stride) == (1, 1, 1)


def test_nothing_finite_has_neither():
    found = summarize_array(np.full(3, np.nan), "float64")
    assert (found.percentiles, found.histogram) == ({}, ())


def test_integers_of_a_narrow_range_get_a_bar_each():
    assert summarize_array(np.array([1, 1, 3]), "int64").histogram == (2, 0, 1)
    assert summarize_array(np.array([True, False, True]), "bool").histogram == (1, 2)
    assert len(summarize_array(np.arange(100), "int64", bins=7).histogram) == 7
    assert summarize_array(np.full(5, 2.5), "float64").histogram == (5,)


def test_a_large_array_is_sampled_for_percentiles_alone():
    values = np.zeros(9 << 20, "f4")
    values[::3] = 1
    found = summarize_array(values, "float32", bins=2)
    assert found.stride == 3
    assert sum(found.histogram) == values.size


@pytest.mark.parametrize(
    ("shape", "words"), [((), ""), ((3,), ":"), ((2, 3), ":,:"), ((4, 5, 2, 3), "0,0,:,:")]
)
def test_the_last_two_axes_are_drawn_unless_told_otherwise(shape, words):
    index = default_index(shape)
    assert format_index(index) == words
    assert index_array(np.zeros(shape), index).shape == shape[-2:]


def test_an_index_reads_as_it_is_typed():
    assert format_index((0, slice(1, 5), slice(None, None, 2), ..., -1)) == "0,1:5,::2,...,-1"


def test_a_part_that_is_not_there_is_told_with_the_shape():
    with pytest.raises(ValueError, match=r"\[7\] is no part of an array of shape \[3\]"):
        index_array(np.zeros(3), (7,))
