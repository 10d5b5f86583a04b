"""The bytes of a tensor: exact, shared, and only its own."""

import numpy as np
import pytest
import torch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.frameworks.torch import FRAMEWORK

EIGHT_BIT_FLOATS = [name for name in DTYPE_TABLE if name.startswith("float8")]


class Tagged(torch.Tensor):
    """A subclass that would answer every question itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was asked of the subclass")


def can_learn(value):
    return value.is_floating_point() or value.is_complex()


def every_byte(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("name", DTYPE_TABLE)
def test_every_number_type_comes_back_exactly(name):
    value = every_byte(torch.bool if name == "bool" else getattr(torch, name))
    if name == "bool":
        value = torch.tensor([True, False])
    bits = FRAMEWORK.bits(value)
    back = FRAMEWORK.from_bits(bits, name)
    assert back.dtype == value.dtype
    assert back.view(torch.uint8).tolist() == value.view(torch.uint8).tolist()
    assert back.data_ptr() == value.data_ptr()
    assert FRAMEWORK.describe(value).dtype == name


@pytest.mark.parametrize("name", [*EIGHT_BIT_FLOATS, "bfloat16"])
def test_small_floats_widen_to_exactly_what_torch_says(name):
    value = every_byte(getattr(torch, name))
    numbers = FRAMEWORK.to_numpy(value)
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers, value.to(torch.float32).numpy())


def test_half_complex_numbers_widen_to_complex64():
    value = torch.tensor([1.5, -2.0, 3.0, 0.25], dtype=torch.float16).view(torch.complex32)
    assert FRAMEWORK.to_numpy(value).tolist() == [1.5 - 2j, 3 + 0.25j]
    assert FRAMEWORK.to_numpy(value.conj()).tolist() == [1.5 + 2j, 3 - 0.25j]
    assert FRAMEWORK.to_numpy(FRAMEWORK.snapshot(value)).tolist() == [1.5 - 2j, 3 + 0.25j]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[2],
        lambda x: x[1, 2],
        lambda x: x[:0],
        lambda x: x[:1].expand(5, 6),
        lambda x: x.detach().requires_grad_(can_learn(x)),
        lambda x: torch.nn.Parameter(x, can_learn(x)),
        lambda x: torch.nn.Buffer(x),
        lambda x: x.as_subclass(Tagged),
    ],
    ids=[
        "plain",
        "transposed",
        "sliced",
        "row",
        "scalar",
        "empty",
        "expanded",
        "grad",
        "parameter",
        "buffer",
        "subclass",
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.complex64]
)
def test_every_kind_of_view_shares_its_memory_and_is_exact(view, dtype):
    base = torch.arange(24).reshape(4, 6).to(dtype)
    value = view(base)
    bits = FRAMEWORK.bits(value)
    with torch._C.DisableTorchFunction():
        plain = value.detach().as_subclass(torch.Tensor)
    assert bits.shape == tuple(plain.shape)
    assert bits.size == 0 or bits.ctypes.data == plain.data_ptr()
    assert torch.equal(
        FRAMEWORK.from_bits(bits, str(dtype)[6:]).to(torch.complex128), plain.to(torch.complex128)
    )


def test_a_view_counts_only_its_own_bytes():
    view = torch.zeros(10_000_000)[:4]
    assert FRAMEWORK.describe(view).nbytes == 16
    assert FRAMEWORK.snapshot(view).untyped_storage().nbytes() == 16


def test_conjugated_and_negated_views_are_resolved():
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert FRAMEWORK.bits(value.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert FRAMEWORK.bits(value.conj().imag).tolist() == [-2, 4]


def test_zeros_that_autograd_never_stored_are_zeros():
    value = torch._efficientzerotensor(3)
    assert FRAMEWORK.bits(value).tolist() == [0, 0, 0]
    assert FRAMEWORK.snapshot(value).tolist() == [0, 0, 0]


def test_inference_tensors_are_read_and_their_snapshot_can_be_written():
    with torch.inference_mode():
        value = torch.ones(3)
        copy = FRAMEWORK.snapshot(value)
        assert np.shares_memory(FRAMEWORK.bits(value), value.numpy())
    copy.add_(1)
    assert copy.tolist() == [2, 2, 2]
    assert value.tolist() == [1, 1, 1]


def test_a_snapshot_is_plain_detached_and_independent():
    value = torch.nn.Parameter(torch.ones(2))
    copy = FRAMEWORK.snapshot(value)
    value.data.add_(1)
    assert type(copy) is torch.Tensor
    assert not copy.requires_grad
    assert copy.tolist() == [1, 1]


def test_a_read_only_array_becomes_a_tensor_without_a_warning():
    bits = np.frombuffer(b"\0\0\x80?", np.float32)
    assert FRAMEWORK.from_bits(bits, "float32").tolist() == [1.0]


@pytest.mark.parametrize(
    "bits", [np.arange(6.0)[::-1], np.arange(6.0).astype(">f8"), np.zeros(3, "u1,f8")["f1"]]
)
def test_arrays_that_torch_cannot_step_through_are_copied(bits):
    assert FRAMEWORK.from_bits(bits, "float64").tolist() == bits.tolist()


def test_zero_dimensional_and_empty_shapes_survive():
    for shape in [(), (0,), (3, 0, 2)]:
        bits = FRAMEWORK.bits(torch.zeros(shape, dtype=torch.bfloat16))
        assert FRAMEWORK.from_bits(bits, "bfloat16").shape == shape


def test_an_unknown_number_type_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match="torch has no number type 'float7'; it has bool, uint8"):
        FRAMEWORK.from_bits(np.zeros(1), "float7")


def test_packed_types_give_their_bytes_and_come_back():
    value = torch.arange(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    bits = FRAMEWORK.bits(value)
    assert bits.tolist() == [0, 1, 2]
    assert FRAMEWORK.from_bits(bits, FRAMEWORK.describe(value).dtype).dtype == value.dtype
    with pytest.raises(TypeError, match=r"numpy cannot hold the numbers of torch\.float4_e2m1fn_x2"):
        FRAMEWORK.to_numpy(value)
