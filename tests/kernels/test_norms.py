"""Norms neither overflow nor vanish, and products do not depend on how they are cut."""

import math

import numpy as np
import pytest

from tensortap.kernels.norms import RunningNorm, ScaledSum, dot, norm, sum_float64


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 50_000])
def test_products_and_sums_are_those_of_numpy(size):
    x = np.random.default_rng(size).standard_normal(size)
    assert dot(x, x) == pytest.approx(float(np.sum(x * x)), rel=1e-13)
    assert sum_float64(x) == pytest.approx(float(np.sum(x)), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_a_norm_scales_with_its_numbers(scale):
    with np.errstate(all="ignore"):
        assert norm(np.array([3.0, 4.0]) * scale) == pytest.approx(5 * scale, rel=1e-14)


def test_a_norm_of_parts_is_the_norm_of_the_whole():
    whole = RunningNorm()
    for part in (3e-200, 3.0, 4.0, 0.0):
        whole.add(part)
    assert whole.value == pytest.approx(5.0)


def test_large_parts_do_not_overflow():
    whole = RunningNorm()
    whole.add(3e200)
    whole.add(4e200)
    assert math.isclose(whole.value, 5e200)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, 1, 1, 1), (1, -1, 1)])
def test_a_sum_of_the_largest_numbers_does_not_overflow(signs):
    largest = float(np.finfo(np.float64).max)
    total = ScaledSum()
    for sign in signs:
        total.add(sign * largest)
    assert total.divided_by(len(signs)) == pytest.approx(sum(signs) / len(signs) * largest)
