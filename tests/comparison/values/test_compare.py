"""`compare` says whether two values are equal, whatever they are and wherever they come from."""

import math
import pickle
from collections import namedtuple
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples
from transformers.modeling_outputs import BaseModelOutput

from tensortap.comparison.values.compare import comparators, compare, difference, register_comparator
from tensortap.core.errors import UnknownFormatError, UnsupportedValueError, UntrustedFileError

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    left: Any
    right: Any


class Plain:
    def __init__(self, x):
        self.x = x
        self.tensor = torch.ones(2) * x


class Raising:
    def __eq__(self, other):
        raise RuntimeError("no comparison today")

    __hash__ = None


class Level(IntEnum):
    LOW = 1


EQUAL = {
    "tensor and array": (torch.ones(2, 3), np.ones((2, 3))),
    "float32 and float64": (np.float32([0.1, 0.2]), np.array([0.1, 0.2])),
    "bfloat16 and float32": (torch.ones(3, dtype=torch.bfloat16), torch.ones(3)),
    "float8 and float64": (torch.ones(3).to(torch.float8_e4m3fn), np.ones(3)),
    "jax and torch": (jnp.arange(3.0), torch.arange(3.0)),
    "parameter and tensor": (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    "transposed": (torch.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T),
    "sparse and dense": (torch.eye(3).to_sparse(), torch.eye(3)),
    "conjugated": (torch.tensor([1 + 1j]).conj(), np.array([1 - 1j])),
    "empty": (torch.zeros(0, 3), np.zeros((0, 3))),
    "number and 0-d": (2.5, torch.tensor(2.5)),
    "number and numpy scalar": (3, np.int64(3)),
    "bool and int": (True, 1),
    "IntEnum": (Level.LOW, 1),
    "beyond 64 bits": (2**100, 2**100),
    "largest uint64": (2**64 - 1, np.uint64(2**64 - 1)),
    "integers and bools": (np.array([1, 0]), torch.tensor([True, False])),
    "longdouble": (np.ones(2, np.longdouble), np.ones(2)),
    "strings": ("text", "text"),
    "numpy string": (np.str_("text"), "text"),
    "bytes": (b"x", b"x"),
    "none": (None, None),
    "sets": ({1, 2}, {2, 1}),
    "list and tuple": ([1, torch.ones(2)], (1, np.ones(2))),
    "nested": ({"a": [torch.ones(2), {"b": 1}]}, {"a": [np.ones(2), {"b": 1}]}),
    "named tuple": (Point(1, torch.ones(1)), Point(1, torch.ones(1))),
    "dataclass": (Pair(torch.ones(2), "x"), Pair(np.ones(2), "x")),
    "model output": (BaseModelOutput(torch.ones(2)), BaseModelOutput(np.ones(2))),
    "model output and dict": (BaseModelOutput(torch.ones(2)), {"last_hidden_state": torch.ones(2)}),
    "objects": (Plain(1), Plain(1)),
    "modules": (torch.nn.ReLU(), torch.nn.ReLU()),
    "empty containers": ([], ()),
    "text arrays": (np.array(["a", "b"]), np.array(["a", "b"])),
    "object arrays": (np.array([1, None], object), np.array([1, None], object)),
    "masked arrays": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 7], mask=[0, 1])),
    "objects and numbers": (np.array([[1, 2.5]], object), np.array([[1, 2.5]])),
    "fractions": (Fraction(1, 2), 0.5),
    "exceptions": (ValueError("x", 1), ValueError("x", 1)),
    "times": (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-01"], "M8[s]")),
}
DIFFERENT = {
    "numbers": (1.0, 1.1),
    "large integers": (2**60, 2**60 + 1),
    "large integer tensors": (torch.tensor(2**60), np.array(2**60 + 1)),
    "beyond 64 bits": (2**100, 2**100 + 1),
    "float against far beyond": (2**2000, 1.0),
    "shapes that would broadcast": (torch.ones(3), torch.ones(1, 3)),
    "number and one-element array": (1.0, np.ones(1)),
    "nan": (math.nan, math.nan),
    "infinities": (math.inf, -math.inf),
    "inf and finite": (np.array([1.0]), np.array([np.inf])),
    "string and number": ("1", 1),
    "string and array": ("1", np.ones(1)),
    "none and zero": (None, 0),
    "tensor and list": (torch.ones(2), [1.0, 1.0]),
    "array and list": (np.ones(2), [1.0, 1.0]),
    "array of objects and list": (np.array([1, None], object), [1, None]),
    "structured arrays and numbers": (np.zeros(1, [("n", "i4")]), np.zeros(1)),
    "number and exception": (1, ValueError("x")),
    "beyond float64 and infinity": (10**400, math.inf),
    "lengths": ([1, 2], [1, 2, 3]),
    "keys": ({"a": 1}, {"b": 1}),
    "more keys": ({"a": 1}, {"a": 1, "b": 2}),
    "empty list and dict": ([], {}),
    "sets": ({1}, {2}),
    "objects": (Plain(1), Plain(2)),
    "functions": (lambda: 1, lambda: 1),
    "classes": (int, float),
    "text arrays": (np.array(["a"]), np.array(["b"])),
    "text and numbers": (np.array(["1"]), np.array([1])),
    "masks": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[0, 0])),
    "weights": (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    "exceptions": (ValueError("x"), ValueError("y")),
    "objects and numbers": (np.array([[1, 2.5]], object), np.array([[1, 2.75]])),
    "raising ==": (Raising(), Raising()),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_values_are_equal_both_ways(case):
    a, b = EQUAL[case]
    assert compare(a, b) is True
    assert compare(b, a) is True
    assert difference(a, b).equal


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_values_are_different_both_ways(case):
    a, b = DIFFERENT[case]
    assert compare(a, b) is False
    assert compare(b, a) is False
    assert not difference(a, b).equal


def test_the_rule_measures_against_b():
    assert compare(1.0, 1.1, atol=0, rtol=0.095)
    assert not compare(1.1, 1.0, atol=0, rtol=0.095)


def test_the_documented_call_takes_the_tolerances_by_name_or_place():
    assert compare(torch.ones(2), torch.ones(2) + 5e-6, atol=1e-5, rtol=1e-5)
    assert compare(1.0, 1.5, 0.5, 0.0)


def test_nan_equals_nan_when_said_so():
    assert compare(torch.tensor([1.0, math.nan]), np.array([1.0, np.nan]), equal_nan=True)
    assert compare({"x": math.nan}, {"x": math.nan}, equal_nan=True)


def test_integers_differ_by_a_tolerance_of_ones_own():
    assert compare([5, torch.tensor([7])], [6, torch.tensor([8])], atol=1)
    assert compare(2**100, 2**100 + 1, rtol=1e-3)


PLAIN = st.floats() | st.integers() | st.booleans() | st.sampled_from([1.0, 1.0000001, 2**53, 2**53 + 1])


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(PLAIN, PLAIN, st.sampled_from([0.0, 1e-8, 1e-5, 2.0]), st.booleans())
def test_the_short_way_for_plain_numbers_answers_as_the_long_one(a, b, atol, equal_nan):
    options = {"atol": atol, "equal_nan": equal_nan}
    assert compare(a, b, **options) == difference(a, b, **options).equal


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(VALUES)
def test_every_value_equals_its_copy(value):
    copy = {"in": pickle.loads(pickle.dumps(value))}
    assert compare({"in": value}, copy, equal_nan=True)
    assert compare({"in": value}, copy) == difference({"in": value}, copy).equal


def test_an_object_whose_equality_raises_is_different_and_says_so():
    found = difference(Raising(), Raising())
    assert found.worst.reason == "== of Raising raised RuntimeError: no comparison today"


def test_an_equality_that_answers_with_an_array_must_be_true_everywhere():
    class Table:
        def __init__(self, *cells):
            self.cells = np.array(cells)

        def __eq__(self, other):
            return self.cells == other.cells

        __hash__ = None

    assert compare(Table(1, 2), Table(1, 2)) is True
    assert compare(Table(1, 2), Table(1, 3)) is False


def test_a_meta_tensor_is_refused():
    with pytest.raises(UnsupportedValueError, match=r"a meta tensor of shape \[2\]"):
        compare(torch.empty(2, device="meta"), torch.ones(2))


@pytest.fixture
def own_comparator(monkeypatch):
    monkeypatch.setattr(comparators, "_plugins", dict(comparators._plugins))


@pytest.mark.usefixtures("own_comparator")
def test_the_comparator_of_the_nearest_class_decides():
    class Base:
        size = 0.0

    class Child(Base):
        pass

    register_comparator(Base, lambda a, b, atol, rtol: abs(a.size - b.size) <= atol)
    a, b = Child(), Child()
    b.size = 0.5
    assert not compare([a], [b])
    assert compare([a], [b], atol=0.5)
    register_comparator((Child,), lambda a, b, atol, rtol: True)
    assert compare(a, b)


@pytest.fixture
def files(tmp_path):
    values = torch.arange(6.0).reshape(2, 3)
    torch.save(values, tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", values.numpy())
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"x": values.numpy(), "n": 3}))
    return tmp_path


def test_files_of_different_formats_are_compared(files):
    assert compare(str(files / "x.pt"), str(files / "x.npy")) is True
    assert compare(files / "x.npy", files / "x.pt") is True


def test_a_file_is_compared_with_a_value(files):
    assert compare(files / "x.pt", np.arange(6.0).reshape(2, 3))
    assert compare({"x": torch.arange(6.0).reshape(2, 3), "n": 3}, str(files / "x.pkl"))
    assert not compare(str(files / "x.npy"), np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["missing.pt", "missing.NPY", Path("missing"), Path("missing.txt")])
def test_a_file_that_is_not_there_is_said_in_one_sentence(name):
    with pytest.raises(FileNotFoundError, match=f"^{name} does not exist; give the path of a dumped value"):
        compare(name, 1)


def test_a_folder_is_called_a_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file in it, or a value"):
        compare(tmp_path, 1)


def test_a_file_of_unknown_suffix_is_refused(tmp_path):
    (tmp_path / "x.foo").write_text("x")
    with pytest.raises(UnknownFormatError, match=r"\.foo"):
        compare(str(tmp_path / "x.foo"), 1)


def test_text_that_names_no_file_is_a_value():
    assert compare("layer one", "layer one")
    assert not compare("layer one", "layer two")
    assert compare(["x.pt"], ["x.pt"])


def test_a_pickle_of_unknown_origin_needs_trust(tmp_path):
    path = tmp_path / "plain.pkl"
    path.write_bytes(pickle.dumps(Level.LOW))
    with pytest.raises(UntrustedFileError):
        compare(path, 1)
    assert compare(path, 1, trust=True)
