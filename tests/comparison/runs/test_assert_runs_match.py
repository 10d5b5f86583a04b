"""A test asserts that two runs are the same, and reads the whole report when they are not."""

import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensortap as tt


def values(**numbers):
    return {name: np.full((3, 3), number) + np.eye(3) for name, number in numbers.items()}


def test_runs_that_match_give_their_comparison():
    found = tt.assert_runs_match(values(x=1), values(x=1))
    assert found.is_green


def test_runs_that_differ_raise_the_report():
    with pytest.raises(AssertionError, match="DIFFERENT from y on"):
        tt.assert_runs_match(values(x=1, y=2), values(x=1, y=3))


def test_a_gap_fails_unless_it_is_accepted():
    with pytest.raises(AssertionError, match="gap: 1 only in A: y"):
        tt.assert_runs_match(values(x=1, y=2), values(x=1))
    assert tt.assert_runs_match(values(x=1, y=2), values(x=1), gaps=True).coverage.only_a


def test_two_sides_without_anything_in_common_never_match():
    with pytest.raises(AssertionError, match="NOTHING TO COMPARE"):
        tt.assert_runs_match({"a": np.ones(2)}, {"b": np.ones(3)}, gaps=True)


def test_the_arguments_of_a_comparison_are_passed_on():
    a, b = values(x=1, y=2), values(z=1, y=3)
    tt.assert_runs_match(a, b, map={"x": "z"}, only=["x", "z"])
    tt.assert_runs_match(a, values(x=1, y=2.02), floor=values(x=1, y=2.01))


def test_it_takes_whatever_a_comparison_takes():
    compared, asserted = (
        inspect.signature(function).parameters for function in (tt.compare_runs, tt.assert_runs_match)
    )
    assert asserted.keys() - compared.keys() == {"gaps"}
    assert compared.keys() <= asserted.keys()
    with ThreadPoolExecutor(1) as threads:
        assert tt.assert_runs_match({"x": 1.0}, {"x": 1.0}, executor=threads).is_green


def test_objects_without_numbers_alone_are_no_match_whatever_is_accepted():
    with pytest.raises(AssertionError, match="nothing of it could be compared"):
        tt.assert_runs_match({"f": print}, {"f": len}, gaps=True)
