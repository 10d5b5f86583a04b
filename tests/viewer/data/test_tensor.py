"""The numbers of a tensor: which part a view shows, and what is said of them."""

import numpy as np
import pytest

from tensortap.comparison.sides.leaf import Operand
from tensortap.viewer.data import tensor_stats
from tensortap.viewer.data.tensor import MappedTensor, TensorDifference
from tensortap.viewer.web.responses import NotFoundError, TooLargeError

ARRAY = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def tensor(array, dtype=None):
    return MappedTensor(Operand(array, dtype or str(array.dtype)))


def read(grid):
    return grid.read(slice(0, grid.shape[0]), slice(0, grid.shape[1]))


@pytest.mark.parametrize(
    ("axes", "index", "expected"),
    [
        ("", "", ARRAY[0, 0]),
        ("", "1,2,:,:", ARRAY[1, 2]),
        ("0,3", ":,1,2,:", ARRAY[:, 1, 2]),
        ("3,0", ":,1,2,:", ARRAY[:, 1, 2].T),
        ("2", "1,0,:,4", ARRAY[1, 0, :, 4][None]),
        ("", "mean,1,:,:", ARRAY[:, 1].mean(0)),
        ("3,1", "absmax,:,2,:", np.abs(ARRAY[:, :, 2]).max(0).T),
        ("", "max,min,:,:", ARRAY.min(1).max(0)),
        ("", "-1,0,:,:", ARRAY[-1, 0]),
    ],
)
def test_a_view_shows_what_its_axes_and_index_say(axes, index, expected):
    np.testing.assert_allclose(read(tensor(ARRAY).grid(axes, index)), expected)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (0, 4)])
def test_every_number_of_axes_has_a_view(shape):
    array = np.ones(shape, np.float32)
    assert read(tensor(array).grid("", "")).size == array.size


@pytest.mark.parametrize(
    ("axes", "index"), [("9", ""), ("0,0", ""), ("0,1,2", ""), ("", "0,0"), ("", "9,0,:,:"), ("", "x,0,:,:")]
)
def test_a_view_that_does_not_fit_is_refused_in_words(axes, index):
    with pytest.raises(ValueError, match=r"axis|axes|index"):
        tensor(ARRAY).grid(axes, index)


def test_reducing_a_tensor_that_is_too_large_is_refused():
    huge = np.broadcast_to(np.float32(0), (1 << 10, 1 << 10, 1 << 10))
    with pytest.raises(TooLargeError, match="fix more axes"):
        tensor(huge).grid("", "mean,:,:")


def test_bfloat16_needs_no_framework():
    bits = np.array([[0x3F80, 0xC000], [0x7FC0, 0x7F80]], np.uint16)
    found = read(tensor(bits, "bfloat16").grid("", ""))
    np.testing.assert_array_equal(found, [[1.0, -2.0], [np.nan, np.inf]])


def test_a_difference_speaks_in_five_ways():
    a, b = np.array([1.0, -2.0, 0.0, np.inf, np.nan], "f4"), np.array([1.5, -2.0, 0.0, np.inf, np.nan], "f4")
    said = {
        how: TensorDifference(tensor(a), tensor(b), how).flat(0, 5).tolist()
        for how in ("value", "abs", "rel", "sign")
    }
    assert said["value"] == [0.5, 0, 0, 0, 0]
    assert said["abs"] == [0.5, 0, 0, 0, 0]
    assert said["rel"][0] == pytest.approx(1 / 3)
    assert said["sign"] == [1, 0, 0, 0, 0]
    near = np.nextafter(a, np.float32(9), dtype="f4")
    assert TensorDifference(tensor(a), tensor(near), "ulp").flat(0, 3).tolist() == [1, 1, 1]


def test_shapes_that_differ_have_no_difference():
    with pytest.raises(NotFoundError, match="there is no difference to show"):
        TensorDifference(tensor(np.zeros(2)), tensor(np.zeros(3)), "value")


@pytest.mark.parametrize("scale", tensor_stats.SCALES)
def test_a_histogram_counts_every_number_once(scale):
    array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    array[:4] = [np.nan, np.inf, -np.inf, 0.0]
    found = tensor_stats.histogram(tensor(array), 16, scale)
    assert (found["nan"], found["pos_inf"], found["neg_inf"], found["zero"]) == (1, 1, 1, 1)
    counted = int(found["counts"].sum())
    # On a logarithmic scale zero has no place of its own.
    assert counted == (996 if scale == "log" else 997)
    assert (np.diff(found["edges"]) > 0).all()


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 0.0], [np.nan], [1e-300, 1e300], [-3.4e38, 3.4e38]])
@pytest.mark.parametrize("scale", tensor_stats.SCALES)
def test_a_histogram_of_odd_numbers_is_still_one(values, scale):
    found = tensor_stats.histogram(tensor(np.array(values)), 8, scale)
    assert np.isfinite(found["edges"]).all()
    assert tensor_stats.value_range(tensor(np.array(values)))["exact"]


def test_a_large_tensor_is_sampled_evenly_and_says_so():
    array = np.broadcast_to(np.arange(1 << 13, dtype=np.float32), (1 << 12, 1 << 13))
    found, is_exact = tensor_stats.sample_values(tensor(array).grid("", ""))
    assert not is_exact
    assert found.size <= 1 << 21
    assert abs(found.mean() - array[0].mean()) < 50


def test_the_largest_come_first_and_what_is_odd_before_all():
    array = np.zeros((4, 5), np.float32)
    array[1, 2], array[3, 4], array[0, 1] = -7, 3, np.nan
    assert [at for at, _ in tensor_stats.top_elements(tensor(array), 3, "abs")] == [1, 7, 19]
    assert tensor_stats.top_elements(tensor(array), 1, "min") == [(7, -7.0)]
    assert [at for at, _ in tensor_stats.top_elements(tensor(array), 9, "odd")] == [1]


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_a_profile_goes_along_its_axis(axis):
    found = tensor_stats.profile(tensor(ARRAY), axis)
    others = tuple(one for one in range(4) if one != axis)
    np.testing.assert_allclose(found["mean"], ARRAY.mean(axis=others))
    np.testing.assert_allclose(found["max"], ARRAY.max(axis=others))
    assert found["length"] == ARRAY.shape[axis]


def test_a_long_axis_is_told_in_groups():
    found = tensor_stats.profile(tensor(np.arange(5000, dtype=np.float32)), 0)
    assert len(found["at"]) <= 1024
    assert found["mean"][0] == pytest.approx((found["width"] - 1) / 2)


def test_small_numbers_count_as_they_are_held_when_axes_are_reduced():
    bits = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (3, 1 << 15, 1 << 10), (0, 0, 0))
    tensor = MappedTensor(Operand(bits, "float8_e5m2"))
    with pytest.raises(TooLargeError, match="384 MB would be held"):
        tensor.grid("1,2", "mean,:,:")
    assert tensor.grid("1,2", "0,:,:").shape == (1 << 15, 1 << 10)
