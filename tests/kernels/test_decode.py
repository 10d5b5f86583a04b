"""Bytes of every type of the table become the numbers torch reads in them."""

import numpy as np
import pytest
import torch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.kernels.decode import decode

FLOAT8 = [name for name in DTYPE_TABLE if name.startswith("float8")]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_all_256_codes_of_an_eight_bit_float_mean_what_torch_says(dtype):
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(getattr(torch, dtype)).to(torch.float32).numpy()
    decoded = decode(codes, dtype)
    assert np.array_equal(decoded, expected, equal_nan=True)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(decoded)[is_number], np.signbit(expected)[is_number])


def test_every_bfloat16_means_what_torch_says():
    codes = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(codes).view(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(decode(codes, "bfloat16").view(np.uint32), codes.astype(np.uint32) << 16)
    assert np.array_equal(decode(codes, "bfloat16"), expected, equal_nan=True)


def test_complex32_becomes_complex64():
    values = torch.tensor([1 + 2j, -0.5 + 0j, complex("inf")], dtype=torch.complex64)
    halves = torch.view_as_real(values).to(torch.float16).numpy()
    bits = halves.copy().view(np.uint32).reshape(3)
    assert np.array_equal(decode(bits, "complex32"), values.numpy())


@pytest.mark.parametrize("dtype", [name for name, row in DTYPE_TABLE.items() if row.native])
def test_a_type_numpy_has_is_handed_back_as_it_is(dtype):
    bits = np.zeros(3, DTYPE_TABLE[dtype].storage)
    assert decode(bits, dtype) is bits


@pytest.mark.parametrize("dtype", [name for name, row in DTYPE_TABLE.items() if not row.native])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_the_shape_stays(dtype, shape):
    decoded = decode(np.zeros(shape, DTYPE_TABLE[dtype].storage), dtype)
    assert isinstance(decoded, np.ndarray)
    assert decoded.shape == shape


@pytest.mark.parametrize("dtype", [name for name, row in DTYPE_TABLE.items() if not row.native])
def test_steps_through_memory_do_not_matter(dtype):
    bits = np.arange(24).reshape(4, 6).astype(DTYPE_TABLE[dtype].storage)
    assert np.array_equal(decode(bits.T[::2], dtype), decode(bits, dtype).T[::2])


def test_a_type_outside_the_table_is_refused_with_the_known_ones():
    with pytest.raises(
        UnsupportedValueError, match=r"no number type 'float7'; known are bool, uint8, .*complex32"
    ):
        decode(np.zeros(1), "float7")
