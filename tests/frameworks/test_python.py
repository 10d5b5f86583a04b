"""Plain Python values."""

import threading

import numpy as np
import pytest
import torch

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.python import FRAMEWORK


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, "bool"), (3, "int64"), (2.5, "float64"), (1j, "complex128"), (2**70, ""), ("x", "")],
)
def test_numbers_have_a_number_type_and_others_have_none(value, dtype):
    description = FRAMEWORK.describe(value)
    assert (description.type, description.dtype, description.layout) == (
        type(value).__name__,
        dtype,
        "python",
    )


def test_numbers_come_back_as_python_numbers():
    for value in (True, -5, 2**63 - 1, 2.5, 1 + 2j):
        back = FRAMEWORK.from_bits(FRAMEWORK.bits(value), FRAMEWORK.describe(value).dtype)
        assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize("value", [2**70, "text", None, [1, 2]])
def test_what_is_not_a_number_is_refused(value):
    with pytest.raises(UnsupportedValueError, match=f"a {type(value).__name__} is not a number"):
        FRAMEWORK.to_numpy(value)


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        (1, 1, True),
        (1, 1, 1.0),
        (float("nan"), float("nan"), 0.0),
        (0.0, 0.0, -0.0),
        ("a", "a", "b"),
        (None, None, 0),
        ((1, (2.0, "x")), (1, (2.0, "x")), (1, (2, "x"))),
    ],
)
def test_constants_are_the_same_when_they_are_exactly_equal(value, same, other):
    is_same = FRAMEWORK.mark(value)
    assert is_same(same)
    assert not is_same(other)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], lambda x: x.append(3)),
        ({"a": [1]}, lambda x: x["a"].__setitem__(0, 2)),
        ({"a": torch.ones(2)}, lambda x: x["a"].data.add_(1)),
        ([np.ones(2)], lambda x: x[0].__setitem__(0, 5)),
        ({1, 2}, lambda x: x.add(3)),
        (bytearray(b"ab"), lambda x: x.append(3)),
        ({"a": 1, "b": 2}, lambda x: x.update(b=x.pop("a"), c=1)),
    ],
)
def test_a_container_changed_in_place_is_seen(value, change):
    is_same = FRAMEWORK.mark(value)
    assert is_same(value)
    change(value)
    assert not is_same(value)


def test_an_equal_list_is_another_list():
    value = [1, 2]
    assert not FRAMEWORK.mark(value)([1, 2])


def test_a_snapshot_reaches_into_containers_and_objects():
    class Thing:
        items: list

    thing = Thing()
    thing.items = [1]
    value = {"t": [torch.zeros(2)], "o": thing}
    copy = framework_of(value).snapshot(value)
    value["t"][0].add_(1)
    thing.items.append(2)
    assert copy["t"][0].tolist() == [0, 0]
    assert copy["o"].items == [1]


def test_what_cannot_be_copied_is_kept():
    lock = threading.Lock()
    assert FRAMEWORK.snapshot(lock) is lock
    assert FRAMEWORK.snapshot([lock])[0] is lock
