"""A tolerance is a number of at least zero, and the default one is not for integers."""

import pytest

from tensortap.kernels.accumulator import DEFAULT_ATOL, DEFAULT_RTOL, Tolerance


@pytest.mark.parametrize("bad", [-1e-9, float("nan")])
def test_a_tolerance_below_zero_is_refused(bad):
    with pytest.raises(ValueError, match=f"atol must be a number of at least 0, not {bad!r}"):
        Tolerance(atol=bad)
    with pytest.raises(ValueError, match=f"rtol must be a number of at least 0, not {bad!r}"):
        Tolerance(rtol=bad)


def test_a_given_tolerance_counts_for_integers_and_the_default_does_not():
    assert Tolerance(DEFAULT_ATOL, DEFAULT_RTOL).for_integers() == (0.0, 0.0)
    assert Tolerance(2.0, DEFAULT_RTOL).for_integers() == (2.0, 0.0)
    assert Tolerance(DEFAULT_ATOL, 0.5).for_integers() == (0.0, 0.5)


def test_an_infinite_rtol_is_refused():
    with pytest.raises(ValueError, match="rtol must be finite; atol=inf takes all finite numbers as equal"):
        Tolerance(rtol=float("inf"))
