"""Along an axis: the relative distance of each row, column or head, as of the slices themselves."""

import numpy as np
import pytest

from tensortap.kernels.differences import measure_differences
from tensortap.kernels.per_axis import relative_l2_per_index, worst_row_and_column

pytestmark = pytest.mark.usefixtures("way")


def along(a, b, axis):
    return relative_l2_per_index(a, a.dtype.name, b, b.dtype.name, axis)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64", "int64"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_index_is_as_far_apart_as_its_slices(dtype, axis, order):
    draw = np.random.default_rng(0)
    b = (100 * draw.standard_normal((5, 300, 7))).astype(dtype, order=order)
    a = (b + 10 * draw.standard_normal(b.shape)).astype(dtype, order=order)
    found = along(a, b, axis)
    for index in range(b.shape[axis]):
        x, y = a.take(index, axis), b.take(index, axis)
        assert found[index] == pytest.approx(measure_differences(x, dtype, y, dtype).relative_l2, rel=1e-12)


def test_the_one_bad_row_is_the_worst():
    b = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    a = b.copy()
    a[17] *= np.float32(1.01)
    found = along(a, b, 0)
    assert (found.argmax(), np.count_nonzero(found)) == (17, 1)
    assert found[17] == pytest.approx(0.01, rel=1e-4)


def test_what_is_not_finite_does_not_count_and_nothing_is_far_from_nothing():
    a, b = (
        np.array([[1.0, np.nan], [2.0, 0.0], [0.0, 0.0]]),
        np.array([[1.0, 5.0], [0.0, 0.0], [0.0, np.inf]]),
    )
    assert along(a, b, 0).tolist() == [0.0, np.inf, 0.0]


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_neither_overflow_nor_vanish(scale):
    a, b = scale * np.array([[3.0, 0.0], [1.0, 1.0]]), scale * np.array([[1.0, 0.0], [1.0, 1.0]])
    assert along(a, b, 0).tolist() == [2.0, 0.0]


def test_an_empty_array_has_no_distances():
    assert along(np.zeros((0, 3)), np.zeros((0, 3)), 1).tolist() == [0.0, 0.0, 0.0]
    assert along(np.zeros((0, 3)), np.zeros((0, 3)), 0).tolist() == []


def test_a_wrong_axis_and_shapes_that_differ_are_refused():
    with pytest.raises(np.exceptions.AxisError, match="axis 2 is out of bounds"):
        along(np.zeros((2, 2)), np.zeros((2, 2)), 2)
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) against \(3,\)"):
        along(np.zeros(2), np.zeros(3), 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_far_smaller_than_others_is_measured_by_a_share_of_them(axis):
    b = np.ones((20, 16), np.float32)
    row = [slice(None), slice(None)]
    row[axis] = 3
    b[tuple(row)] = 1e-3
    a = b.copy()
    a[tuple(row)] += np.float32(0.01)
    size, at = worst_row_and_column(a, "float32", b, "float32")[axis]
    assert at == 3
    assert size == pytest.approx(0.01 / 0.3, rel=1e-3)
