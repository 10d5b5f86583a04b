"""Structures: every leaf with a readable path, and the same structure again."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.tokenization_utils_base import BatchEncoding

from tensortap.frameworks.pytree import MAX_DEPTH, Truncation, leaves, map_leaves, snapshot_leaves

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any


@dataclasses.dataclass
class Touchy:
    a: Any
    late: Any = dataclasses.field(init=False)

    def __post_init__(self):
        raise RuntimeError("never again")

    @property
    def broken(self):
        raise RuntimeError("a property was called")


def touchy(a):
    made = object.__new__(Touchy)
    made.a = a
    return made


class RaisingMapping(dict):
    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (1, [""]),
        ([1, (2, 3)], ["[0]", "[1][0]", "[1][1]"]),
        ({"k": [1], 3: 2, (1, "a"): 3, None: 4}, ["['k'][0]", "[3]", "[(1, 'a')]", "[None]"]),
        (Point(1, [2]), [".x", ".y[0]"]),
        (Frozen(1, {"k": 2}), [".a", ".b['k']"]),
        (touchy([1]), [".a[0]"]),
        (deque([1, 2]), ["[0]", "[1]"]),
        ({1, 2}, [""]),
        (UserDict(a=1), ["['a']"]),
        (MappingProxyType({"a": 1}), ["['a']"]),
        (BatchEncoding({"input_ids": [1, 2]}), ["['input_ids'][0]", "['input_ids'][1]"]),
        (CausalLMOutputWithPast(logits=torch.ones(1)), [".logits"]),
        (RaisingMapping(a=1), ["['a']"]),
        (torch.ones(2, 2), [""]),
        (np.ones(3), [""]),
        ([], []),
        (torch.max(torch.eye(2), 0), ["[0]", "[1]"]),
    ],
)
def test_every_leaf_has_a_readable_path(value, paths):
    assert [path for path, _ in leaves(value)] == paths


def test_a_key_without_a_repr_does_not_stop_the_walk():
    class Key:
        def __repr__(self):
            raise RuntimeError

    assert list(leaves({Key(): 1})) == [("[<Key>]", 1)]


def test_a_cycle_is_cut_and_said():
    value = [1]
    value.append({"self": value})
    assert list(leaves(value)) == [("[0]", 1), ("[1]['self']", Truncation("cycle"))]
    assert snapshot_leaves(value) == [1, {"self": Truncation("cycle")}]


def test_depth_is_bounded_without_a_crash():
    value: list = []
    for _ in range(10_000):
        value = [value]
    [(path, leaf)] = leaves(value)
    assert leaf == Truncation("depth")
    assert path == "[0]" * MAX_DEPTH
    assert snapshot_leaves(value) != []


def test_shared_references_stay_shared():
    tensor, inner = torch.ones(2), [1]
    copy = snapshot_leaves([tensor, tensor, inner, inner])
    assert copy[0] is copy[1]
    assert copy[0] is not tensor
    assert copy[2] is copy[3]


def test_a_doubling_structure_is_rebuilt_in_a_moment():
    value = [1]
    for _ in range(100):
        value = [value, value]
    copy = snapshot_leaves(value)
    assert copy[0] is copy[1]
    assert Truncation("shared") in (leaf for _, leaf in leaves(value))


def test_a_mapping_that_cannot_be_read_has_no_leaves():
    class Broken(UserDict):
        def __getattribute__(self, name):
            if name == "data":
                raise RuntimeError
            return super().__getattribute__(name)

    assert list(leaves([1, object.__new__(Broken)])) == [("[0]", 1)]


def test_an_ordered_dictionary_is_walked_in_its_own_order():
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    assert [path for path, _ in leaves(value)] == ["['b']", "['a']"]
    assert list(snapshot_leaves(value)) == ["b", "a"]


@pytest.mark.parametrize(
    "value",
    [
        [1, (2, 3)],
        OrderedDict(a=1),
        defaultdict(list, a=[1]),
        Point(1, [2]),
        Frozen(1, [2]),
        deque([1], maxlen=3),
        UserDict(a=1),
        torch.Size([2, 3]),
        {3: "x", None: [1.5]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rebuilt_structure_is_equal_and_of_the_same_class(value):
    copy = snapshot_leaves(value)
    assert type(copy) is type(value)
    assert copy == value
    assert copy is not value


def test_class_details_survive():
    assert snapshot_leaves(defaultdict(list, a=[1]))["new"] == []
    assert snapshot_leaves(deque([1], maxlen=3)).maxlen == 3
    assert snapshot_leaves(touchy([1])).a == [1]
    assert not hasattr(snapshot_leaves(touchy([1])), "late")


def test_a_model_output_is_rebuilt_with_fields_and_keys():
    value = CausalLMOutputWithPast(logits=torch.zeros(2), hidden_states=(torch.ones(1),))
    copy = snapshot_leaves(value)
    value.logits.add_(1)
    assert type(copy) is CausalLMOutputWithPast
    assert copy.logits.tolist() == copy["logits"].tolist() == copy[0].tolist() == [0, 0]
    assert copy.loss is None
    assert list(copy) == ["logits", "hidden_states"]
    assert isinstance(copy.hidden_states, tuple)


def test_a_class_that_cannot_be_made_again_becomes_a_plain_one():
    assert map_leaves(MappingProxyType({"a": 1}), str) == {"a": "1"}
    assert map_leaves(torch.Size([2]), str) == ("2",)


structures = st.recursive(
    st.integers() | st.text() | st.none(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
)


@given(structures)
def test_rebuilding_with_the_same_leaves_gives_an_equal_structure(value):
    assert map_leaves(value, lambda leaf: leaf) == value


@given(structures)
def test_no_two_leaves_have_the_same_path(value):
    paths = [path for path, _ in leaves(value)]
    assert len(set(paths)) == len(paths)
