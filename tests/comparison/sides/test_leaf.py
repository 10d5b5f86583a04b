"""Leaves become numbers without losing any, or are left to ==."""

import numpy as np
import pytest
import torch

from tensortap.comparison.sides.leaf import are_equal, as_operand, numeric_shape


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (-5, "int64"),
        (2**63, "uint64"),
        (2**70, "float64"),
        (-(10**400), "float64"),
        (1.5, "float64"),
        (1j, "complex128"),
        (np.float32(1), "float32"),
        (torch.ones(2, dtype=torch.bfloat16), "bfloat16"),
        (np.ones(2, np.longdouble), "float64"),
        (np.ones(2, ">f4"), "float32"),
    ],
)
def test_numbers_keep_their_type(value, dtype):
    assert as_operand(value).dtype == dtype


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_numbers_are_those_they_stand_for():
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    assert as_operand(quantized).bits.tolist() == [1.0, 1.0]


def test_text_has_no_numbers():
    assert as_operand(np.array(["a"])) is None
    assert numeric_shape("a") is numeric_shape(np.str_("a")) is numeric_shape(None) is None


def test_a_repr_that_raises_does_not_hide_the_answer():
    class Silent:
        def __eq__(self, other):
            return False

        def __repr__(self):
            raise RuntimeError

        __hash__ = None

    assert are_equal(Silent(), "x") == (False, "<Silent> against 'x'")


def test_long_values_are_shown_cut():
    assert are_equal("a" * 100, "b")[1] == f"'{'a' * 56}... against 'b'"
