"""A slice as text means what Python means by it, and nothing else is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.live.protocol import parse_slice

ARRAY = np.arange(4 * 5 * 6).reshape(4, 5, 6)


@pytest.mark.parametrize(
    "text", ["[0]", "[0, :3]", "[..., -1]", "[1:3, ::2, 4]", "[None, 0]", "[ :, 1: , : ]", "[0,]"]
)
def test_a_slice_is_what_python_takes_it_for(text):
    np.testing.assert_array_equal(ARRAY[parse_slice(text)], eval(f"ARRAY{text}"))


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "[",
        "[]",
        "[x]",
        "[0:1:2:3]",
        "[::-1]",
        "[0 1]",
        "[__import__('os')]",
        "[...,...]",
        "[0.5]",
        "[[0]]",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="slice"):
        parse_slice(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    try:
        parse_slice(f"[{text}]")
    except ValueError:
        pass
