"""Two structures are walked side by side, and what does not fit is named."""

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tensortap.comparison.values.structure import ABSENT, walk_leaf_pairs

Point = namedtuple("Point", "x y")


@dataclass
class Output:
    logits: Any
    loss: Any = None


def walk(a, b):
    return list(walk_leaf_pairs(a, b, lambda a, b: False))


def test_leaves_meet_at_their_paths():
    found = walk({"a": [1, (2,)], "p": Point(3, 4)}, {"p": Point(5, 6), "a": [7, (8,)]})
    assert [(pair.path, pair.a, pair.b) for pair in found] == [
        ("['a'][0]", 1, 7),
        ("['a'][1][0]", 2, 8),
        ("['p'].x", 3, 5),
        ("['p'].y", 4, 6),
    ]


@pytest.mark.parametrize("other", [(1, 2), deque([1, 2]), Point(1, 2)])
def test_sequences_of_any_kind_fit(other):
    assert all(pair.reason is None for pair in walk([1, 2], other))


@pytest.mark.parametrize("other", [OrderedDict(logits=1, loss=None), Output(1)])
def test_fields_fit_keys_of_the_same_name(other):
    assert [pair.path for pair in walk(Output(1), other)] == [".logits", ".loss"]


def test_keys_that_one_side_lacks_are_named():
    found = walk({"a": 1, "b": 2}, {"a": 1, "c": 3})
    assert [(pair.path, pair.reason) for pair in found] == [
        ("['a']", None),
        ("['b']", "only in a"),
        ("['c']", "only in b"),
    ]
    assert found[1].b is ABSENT


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([1], [1, 2], "lengths differ: 1 against 2"),
        ([1], {"0": 1}, "list of 1 against dict of 1"),
        ([1], 1, "list of 1 against int"),
        (Output(1), 5.0, "Output against float"),
        (np.array([None]), np.array([None, None]), "lengths differ: [1] against [2]"),
    ],
)
def test_what_does_not_fit_says_why(a, b, reason):
    assert [pair.reason for pair in walk(a, b)] == [reason]


def test_a_structure_that_contains_itself_ends():
    a, b = [1], [1]
    a.append(a)
    b.append(b)
    assert len(walk(a, b)) == 1


def test_a_structure_of_great_depth_is_walked():
    a = b = 1
    for _ in range(5000):
        a, b = [a], [b]
    assert len(walk(a, b)) == 1


def test_objects_without_an_equality_are_walked_by_what_they_hold():
    class Slotted:
        __slots__ = ("x",)

    class Plain(Slotted):
        pass

    def made():
        value = Plain()
        value.x, value.y = 1, [2]
        return value

    assert [(pair.path, pair.a) for pair in walk(made(), made())] == [(".x", 1), (".y[0]", 2)]


@pytest.mark.parametrize("value", [len, int, np.sum, object(), lambda: 1, pytest, 1.5, None, {1}])
def test_what_has_no_parts_is_a_leaf(value):
    assert walk(value, value) == [("", value, value, None)]


def test_structured_arrays_come_apart_by_field():
    array = np.zeros(3, [("n", "i4"), ("x", "f4")])
    assert [pair.path for pair in walk(array, array)] == ["['n']", "['x']"]
