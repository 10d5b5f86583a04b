"""Values are compared by content, without asking the program's own code and without keeping arrays."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensortap.frameworks.equality import (
    change_token,
    contents_equal,
    names_with_new_version,
    shallow_change_token,
    share_memory,
    tensor_version,
)
from tensortap.frameworks.torch_summary import differ_in_prefix

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@pytest.mark.parametrize("size", [2, 5000])
@pytest.mark.parametrize(
    ("before", "now"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", b"1"), (1, 2), (1.0, 2.0), (0, None)],
    ids=str,
)
def test_a_long_list_of_plain_values_is_told_from_another(before, now, size):
    one, other = [before] * size, [before] * (size - 1) + [now]
    assert change_token(one) != change_token(other)
    assert change_token(one) == change_token(list(one))


def test_a_list_of_nan_is_what_it_was():
    assert change_token([float("nan")] * 3) == change_token([float("nan"), float("nan"), float("nan")])


@given(VALUES)
def test_a_value_is_the_same_as_its_copy(value):
    import copy

    other = copy.deepcopy(value)
    assert contents_equal(value, other)
    assert change_token(value) == change_token(other)


@given(VALUES, VALUES)
def test_a_state_tells_apart_what_is_not_the_same(one, other):
    assert (change_token(one) == change_token(other)) == contents_equal(one, other)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[:, 1:],
    "stepped": lambda x: x[::2, ::2],
    "expanded": lambda x: x[:1].expand(8, 8),
    "flipped": lambda x: x.flip(0),
    "negated": lambda x: torch.view_as_complex(x.reshape(-1, 2)).conj().imag,
    "conjugated": lambda x: torch.view_as_complex(x.reshape(-1, 2)).conj(),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "empty": lambda x: x[:0],
    "of one": lambda x: x[0, 0],
    "boolean": lambda x: x > 0,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_first_sight_never_tells_apart_what_is_equal(layout):
    x = torch.arange(64.0).reshape(8, 8) - 30
    one, other = LAYOUTS[layout](x.clone()), LAYOUTS[layout](x.clone())
    assert not differ_in_prefix(one, other)
    dense = layout not in ("sparse", "sparse rows", "quantized")
    if dense:
        assert contents_equal(one, other)
        assert not differ_in_prefix(one, one.resolve_conj().resolve_neg().contiguous())


def test_a_first_sight_sees_shape_type_and_first_numbers():
    x = torch.ones(8, 8)
    for other in (torch.ones(8), x.double(), x + 1, (x + 1).t(), x.index_fill(1, torch.tensor([7]), 2)):
        assert differ_in_prefix(x, other)
    assert not differ_in_prefix(x, x.index_fill(0, torch.tensor([7]), 2))
    assert not contents_equal(x, x.index_fill(0, torch.tensor([7]), 2))


def test_a_freed_storage_is_not_read():
    x, other = torch.ones(100), torch.zeros(100)
    x.untyped_storage().resize_(0)
    assert not differ_in_prefix(x, other)
    assert not contents_equal(x, other)


def test_a_state_keeps_no_array_alive():
    values = [torch.ones(3), np.ones(3), {1}, [torch.ones(2)]]
    found = [weakref.ref(value) for value in (values[0], values[1], values[3][0])]
    kept = (
        [change_token(value) for value in values],
        [shallow_change_token(value) for value in values],
        change_token(values, deep=True),
    )
    del values
    gc.collect()
    assert [one() for one in found] == [None] * 3
    assert kept


def test_an_object_at_the_address_of_a_dead_one_is_another():
    class Thing:
        pass

    thing = Thing()
    before, address = change_token([thing]), id(thing)
    del thing
    others = [Thing() for _ in range(100)]
    reused = [other for other in others if id(other) == address]
    assert all(change_token([other]) != before for other in reused or others)


def test_versions_are_counted_where_torch_counts():
    x, y = torch.zeros(2), torch.zeros(2)
    with torch.inference_mode():
        assert tensor_version(torch.zeros(2)) is None
    assert tensor_version(np.zeros(2)) is None
    versions = {"x": tensor_version(x), "y": tensor_version(y)}
    y.add_(1)
    assert names_with_new_version(versions, {"x": x, "y": y}) == ["y"]
    assert names_with_new_version(versions, {"x": x, "y": y}) == []


def test_memory_is_shared_between_libraries():
    array = np.arange(10.0)
    tensor = torch.from_numpy(array)
    assert share_memory(array, tensor)
    assert share_memory(array[::-2], tensor)
    assert not share_memory(array[:5], array[5:])
    assert not share_memory(array, np.arange(10.0))
    assert not share_memory(array, "text")
    assert not share_memory(np.empty(0), array)
