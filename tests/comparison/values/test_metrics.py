"""How far two values are apart."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensortap.comparison.values.metrics import measure


def noisy(shape, size=1e-6, seed=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(shape, generator=random)
    return a.to(dtype), (a + size * torch.randn(shape, generator=random)).to(dtype)


def test_the_same_numbers_are_identical():
    a, _ = noisy((4, 8))
    found = measure(a, a.clone())
    assert found.is_identical
    assert (found.relative_l2, found.row, found.column) == (0.0, 0.0, 0.0)


def test_the_relative_size_is_that_of_the_larger_side():
    found = measure(np.full((2, 4), 2.0), np.full((2, 4), 1.0))
    assert found.relative_l2 == pytest.approx(0.5)
    assert found.row == pytest.approx(0.5)


@given(
    arrays.arrays(np.float32, (5, 7), elements=st.floats(-1e3, 1e3, width=32)),
    arrays.arrays(np.float32, (5, 7), elements=st.floats(-1e3, 1e3, width=32)),
)
def test_it_is_the_same_seen_from_either_side(a, b):
    one, other = measure(a, b), measure(b, a)
    assert one.relative_l2 == pytest.approx(other.relative_l2, rel=1e-9, abs=1e-300)
    assert one.is_identical == other.is_identical
    if one.norms[0] != one.norms[1]:
        assert one.row == pytest.approx(other.row, rel=1e-9, abs=1e-300)
        assert one.column == pytest.approx(other.column, rel=1e-9, abs=1e-300)


@given(st.sampled_from([2.0**-20, 0.125, 3.0, 1e6]))
def test_a_common_scale_changes_nothing(scale):
    a, b = (one.double().numpy() for one in noisy((6, 8)))
    plain, scaled = measure(a, b), measure(a * scale, b * scale)
    assert scaled.relative_l2 == pytest.approx(plain.relative_l2, rel=1e-6)
    assert scaled.row == pytest.approx(plain.row, rel=1e-6)
    assert scaled.column == pytest.approx(plain.column, rel=1e-6)


def test_one_wrong_row_stands_out_among_many():
    a, _ = noisy((512, 16))
    b = a.clone()
    b[37] += 0.1
    found = measure(a, b)
    assert found.worst_row == 37
    assert found.row > 10 * found.relative_l2


def test_one_wrong_column_stands_out_in_every_leading_axis():
    a, _ = noisy((4, 8, 64))
    b = a.clone()
    b[..., 5] += 0.1
    found = measure(a, b)
    assert found.worst_column == 5
    assert found.column > 4 * found.relative_l2


def test_noise_of_a_row_of_nothing_says_nothing():
    a, _ = noisy((64, 16))
    a[3] = 0.0
    b = a.clone()
    b[3] = 1e-9
    assert measure(a, b).row < 1e-7


def test_where_most_rows_are_nothing_the_measure_stays_finite():
    a, b = torch.zeros(8, 4), torch.zeros(8, 4)
    b[2, 1] = 1.0
    found = measure(a, b)
    assert found.relative_l2 == 1.0
    assert found.row == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_nan_on_one_side_is_not_finite_and_the_rest_is_still_measured(dtype):
    a, b = noisy((4, 8), 1e-2, dtype=getattr(torch, dtype))
    b[1, 2] = float("nan")
    found = measure(a, b)
    assert found.is_nonfinite
    assert found.nan == (0, 1)
    assert 0 < found.relative_l2 < 0.1


def test_a_nan_in_the_same_place_on_both_sides_is_no_difference():
    a, _ = noisy((4, 8))
    a[0, 0] = float("nan")
    assert measure(a, a.clone()).is_identical


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_takes_no_more_memory(odd):
    a = np.ones((2048, 1024), np.float32)
    b = a.copy()
    b[7, 7] = odd
    tracemalloc.start()
    try:
        assert measure(a, b).disagreeing == 1
        assert tracemalloc.get_traced_memory()[1] < a.nbytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_mask_may_be_written_as_the_lowest_number_or_as_infinity(dtype):
    dtype = getattr(torch, dtype)
    above = torch.ones(4, 4).triu(1) > 0
    lowest = torch.zeros(4, 4, dtype=dtype).masked_fill(above, torch.finfo(dtype).min)
    infinite = torch.zeros(4, 4, dtype=dtype).masked_fill(above, -math.inf)
    assert measure(lowest, infinite).is_identical
    assert measure(infinite, lowest).is_identical


def test_a_mask_may_be_written_in_truth_values():
    seen = torch.ones(4, 4).tril() > 0
    mask = torch.zeros(4, 4).masked_fill(~seen, torch.finfo(torch.float32).min)
    assert measure(mask, seen).is_identical
    assert measure(seen, mask).is_identical
    assert measure(mask, ~seen).masked == 16
    assert not measure(mask + torch.eye(4), seen).is_identical


def test_masked_scores_are_measured_where_they_are_not_masked():
    a, b = noisy((8, 8), 1e-2)
    above = torch.ones(8, 8).triu(1) > 0
    lowest = torch.finfo(torch.float32).min
    found = measure(a.masked_fill(above, lowest), b.masked_fill(above, lowest))
    assert found.relative_l2 > 1e-3
    assert not found.is_nonfinite


def test_another_mask_is_told_from_a_nan():
    a = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)
    b = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(2) > 0, -math.inf)
    found = measure(a, b)
    assert (found.disagreeing, found.masked, found.is_nonfinite) == (3, 3, False)


def test_decisions_are_counted_not_subtracted():
    found = measure(torch.tensor([[1, 5], [2, 3]]), torch.tensor([[1, 5], [2, 4]]))
    assert found.is_discrete
    assert found.mismatches == 1
    assert measure(torch.tensor([True]), torch.tensor([False])).mismatches == 1


def test_other_shapes_and_types_of_structure_have_a_reason():
    assert measure(torch.zeros(2), torch.zeros(3)).reason == "shapes differ: [2] against [3]"
    assert measure({"a": torch.zeros(2)}, {"b": torch.zeros(2)}).reason == "only in a"
    assert measure(torch.zeros(2), "text").reason


def test_of_a_nested_value_the_part_that_differs_most_counts():
    a, b = noisy((4, 8))
    found = measure({"x": a, "y": (a, a)}, {"x": a, "y": (a, b)})
    assert found.part == "['y'][1]"
    assert found.count == 3 * a.numel()
    assert not found.is_identical


def test_objects_without_numbers_say_nothing():
    assert measure(print, len).is_opaque
    assert measure(print, print).is_identical
    assert measure("eager", "sdpa").mismatches == 1


def test_arrays_of_text_and_of_times_are_decisions():
    texts = np.array(["a", "b"]), np.array(["a", "c"])
    times = np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-02", "NaT"], "M8[D]")
    for a, b in (texts, times):
        found = measure(a, b)
        assert (found.is_discrete, found.count, found.mismatches, found.is_opaque) == (True, 2, 1, False)
        assert measure(a, a.copy()).is_identical


def test_arrays_of_several_fields_are_compared_field_by_field():
    a = np.zeros(4, [("step", "i4"), ("loss", "f4")])
    b = a.copy()
    assert measure(a, b).is_identical
    b["loss"][1] = 1.0
    found = measure(a, b)
    assert (found.part, found.relative_l2, found.is_opaque) == ("['loss']", 1.0, False)


def test_types_of_different_precision_are_measured_against_each_other():
    a, _ = noisy((16, 16))
    found = measure(a, a.bfloat16())
    assert 1e-4 < found.relative_l2 < 1e-2


def test_an_empty_array_is_identical_to_itself():
    assert measure(torch.zeros(0, 4), torch.zeros(0, 4)).is_identical


def test_it_takes_strided_views_as_they_are():
    a, b = noisy((8, 16))
    assert measure(a.T, b.T).row == pytest.approx(measure(a, b).column)
