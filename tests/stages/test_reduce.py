"""Callbacks that make one value of many, or less of each: shapes, types, and what is left alone."""

from collections import namedtuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tensortap.core.record import Series
from tensortap.frameworks.base import framework_of
from tensortap.stages.reduce import (
    cast,
    histogram,
    mean,
    norm,
    slice_of,
    stack_padded_tensors,
    stack_tensors,
)

NAN = float("nan")
LIBRARIES = {"torch": torch.tensor, "numpy": np.array, "jax": jnp.array}


def apply(callback, *values):
    held = list(values)
    callback("x", held, list(range(len(held))), [0] * len(held))
    return held


@pytest.fixture(params=LIBRARIES)
def make(request):
    def make(numbers, dtype="float32"):
        made = LIBRARIES[request.param](numbers)
        return made.to(getattr(torch, dtype)) if request.param == "torch" else made.astype(dtype)

    make.name = request.param
    return make


# Stacking


def test_equal_shapes_are_stacked_along_a_new_first_dimension(make):
    for stack in (stack_tensors, stack_padded_tensors):
        (one,) = apply(stack, make([[1, 2], [3, 4]]), make([[5, 6], [7, 8]]))
        assert framework_of(one).name == make.name
        assert one.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_smaller_ones_are_padded_at_their_ends(make):
    (one,) = apply(stack_padded_tensors, make([[1, 2, 3]]), make([[4], [5]]))
    assert framework_of(one).name == make.name
    assert one.tolist() == [[[1, 2, 3], [0, 0, 0]], [[4, 0, 0], [5, 0, 0]]]


def test_the_padding_may_be_chosen():
    values = [torch.ones(1), torch.ones(2)]
    stack_padded_tensors("x", values, [1, 2], [0, 0], padding=NAN)
    assert torch.equal(values[0].isnan(), torch.tensor([[False, True], [False, False]]))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint16", "int64", "float16", "bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2"],
)
def test_every_type_keeps_its_bits(dtype):
    draw = torch.Generator().manual_seed(0)
    size = getattr(torch, dtype).itemsize
    words = torch.randint(0, 2, (2, 4 * size), generator=draw, dtype=torch.uint8)
    short, long = words[0, : 3 * size].view(getattr(torch, dtype)), words[1].view(getattr(torch, dtype))
    (one,) = apply(stack_padded_tensors, short, long)
    assert one.dtype == long.dtype
    assert one.shape == (2, 4)
    assert torch.equal(one[0, :3].view(torch.uint8), words[0, : 3 * size])
    assert torch.equal(one[1].view(torch.uint8), words[1])


def test_types_that_differ_meet_in_the_wider_one():
    (one,) = apply(stack_tensors, torch.ones(2, dtype=torch.bfloat16), torch.ones(2))
    assert one.dtype == torch.float32
    (one,) = apply(stack_padded_tensors, np.ones(2, np.float32), np.ones(3))
    assert one.dtype == np.float64


def test_one_value_is_stacked_too_and_numbers_without_dimensions(make):
    (one,) = apply(stack_padded_tensors, make([1, 2]))
    assert one.shape == (1, 2)
    (one,) = apply(stack_padded_tensors, make(1), make(2))
    assert one.tolist() == [1, 2]


def test_iterations_and_ranks_become_one_entry_however_often():
    series = Series("x", [torch.ones(2), torch.ones(2)], [1, 2], [0, 1])
    stack_padded_tensors("x", series)
    assert (series.iterations, series.ranks) == ([(1, 2)], [(0, 1)])
    stack_tensors("x", series)
    assert (series.values[0].shape, series.iterations, series.ranks) == ((1, 2, 2), [((1, 2),)], [((0, 1),)])


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1, 2.0],
        ["a"],
        [None, None],
        [torch.ones(2), None],
        [torch.ones(2), np.ones(2)],
        [[torch.ones(2)]],
    ],
    ids=["nothing", "numbers", "text", "None", "some", "two libraries", "lists"],
)
def test_what_is_not_all_arrays_is_left_as_it_is(values):
    before, iterations = list(values), list(range(len(values)))
    for stack in (stack_tensors, stack_padded_tensors):
        stack("x", values, iterations, iterations[:])
        assert all(now is then for now, then in zip(values, before, strict=True))
        assert iterations == list(range(len(values)))


def test_different_numbers_of_dimensions_are_refused():
    with pytest.raises(ValueError) as caught:
        apply(stack_padded_tensors, torch.ones(2), torch.ones(2, 3), torch.ones(2))
    assert str(caught.value) == (
        "'x' has values of different numbers of dimensions ((2,), (2, 3)), which padding cannot make equal; "
        "reduce them first, e.g. with mean()"
    )


def test_stacking_without_padding_needs_equal_shapes():
    with pytest.raises(ValueError) as caught:
        apply(stack_tensors, torch.ones(2), torch.ones(3))
    assert str(caught.value) == (
        "'x' has values of different shapes ((2,), (3,)), which cannot be stacked; "
        "stack_padded_tensors pads them"
    )


# Less of each


def test_a_mean_over_all_or_some_dimensions(make):
    value = make([[1, 2], [3, 6]])
    assert float(apply(mean(), value)[0]) == 3
    assert apply(mean(0), value)[0].tolist() == [2, 4]
    assert apply(mean(dim=(0, 1)), value)[0].shape == ()
    assert framework_of(apply(mean(0), value)[0]).name == make.name


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_whole_numbers_have_a_mean(make, dtype):
    assert float(apply(mean(), make([1, 0], dtype))[0]) == 0.5


def test_a_norm_is_the_root_of_the_sum_of_squares(make):
    found = apply(norm(), make([[3, 0], [0, 4]]), make([3, 4], "int32"), make([300, 400], "float16"))
    assert [float(value) for value in found] == [5, 5, 500]
    assert float(apply(norm(), make([60_000] * 4, "float16"))[0]) == pytest.approx(120_000, rel=1e-3)
    assert framework_of(found[0]).name == make.name


def test_a_histogram_counts_the_finite_numbers_in_the_range(make):
    value = make([0.0, 0.1, 0.6, 1.0, 5.0, NAN, float("inf")])
    counts = apply(histogram(2, (0, 1)), value)[0]
    assert counts.tolist() == [2, 2]
    assert framework_of(counts).name == make.name
    assert apply(histogram(5), value)[0].tolist() == [3, 1, 0, 0, 1]
    assert apply(histogram(3), make([]))[0].tolist() == [0, 0, 0]
    assert apply(histogram(2), make([1, 2], "int32"))[0].tolist() == [1, 1]


def test_a_histogram_without_bins_or_order_is_refused():
    with pytest.raises(ValueError, match=r"histogram\(0\) has no bins"):
        histogram(0)
    with pytest.raises(TypeError, match="complex numbers have no order"):
        apply(histogram(3), torch.ones(2, dtype=torch.complex64))


def test_a_slice_is_a_copy_of_its_own():
    value = torch.arange(10_000.0).reshape(100, 100)
    (part,) = apply(slice_of(0, slice(0, 4)), value)
    assert part.tolist() == [0, 1, 2, 3]
    assert part.untyped_storage().nbytes() == 16
    (part,) = apply(slice_of(..., 1), np.arange(4).reshape(2, 2))
    assert part.tolist() == [1, 3]
    assert part.base is None


@pytest.mark.parametrize(
    "dtype", [torch.float16, np.float16, np.dtype("float16"), "float16", "torch.float16"]
)
def test_a_type_may_be_given_in_any_way(make, dtype):
    (found,) = apply(cast(dtype), make([1, 2]))
    assert framework_of(found).describe(found).dtype == "float16"
    assert framework_of(found).name == make.name


def test_numpy_is_cast_to_types_it_lacks_where_they_are_installed():
    (found,) = apply(cast("bfloat16"), np.ones(2))
    assert str(found.dtype) == "bfloat16"


def test_a_type_that_there_is_not_is_refused():
    for wrong in ("float17", None, object):
        with pytest.raises(ValueError, match="names no type of numbers; there are bool, uint8"):
            cast(wrong)


def test_arrays_inside_structures_are_changed_and_the_rest_is_left():
    Pair = namedtuple("Pair", "a b")
    (found,) = apply(mean(), {"a": [torch.tensor([1.0, 3.0]), "text"], "b": Pair(np.ones(2), None)})
    assert found["a"] == [torch.tensor(2.0), "text"]
    assert found["b"] == Pair(1.0, None)


@pytest.mark.parametrize("callback", [mean(), norm(), histogram(2), slice_of(0), cast("float16")], ids=repr)
def test_results_are_taken_as_well_as_lists(callback):
    series = Series("x", [torch.ones(2)], [1], [0])
    callback("x", series)
    assert not torch.equal(series.values[0], torch.ones(2)) or series.values[0].dtype == torch.float16
    assert (series.iterations, series.ranks) == ([1], [0])
