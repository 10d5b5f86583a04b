"""Arrays of jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.jax import FRAMEWORK


def test_a_jax_array_is_described_by_torchs_names():
    description = FRAMEWORK.describe(jnp.ones((2, 3), jnp.bfloat16))
    assert (description.dtype, description.shape, description.nbytes) == ("bfloat16", (2, 3), 12)
    assert (description.device, description.layout) == ("cpu", "strided")
    assert framework_of(jnp.ones(1)) is FRAMEWORK


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e5m2", "float16", "int32", "bool", "complex64", "uint8"]
)
def test_values_come_back_exactly(name):
    value = jnp.arange(5).astype(name)
    bits = FRAMEWORK.bits(value)
    back = FRAMEWORK.from_bits(bits.copy(), name)
    assert isinstance(back, jax.Array)
    assert back.dtype == value.dtype
    assert (np.asarray(back) == np.asarray(value)).all()
    assert FRAMEWORK.to_numpy(value).tolist() == [complex(x) for x in value.tolist()]


def test_bits_on_the_cpu_share_memory():
    value = jnp.arange(5.0)
    assert FRAMEWORK.bits(value).ctypes.data == value.unsafe_buffer_pointer()


@pytest.mark.parametrize("name", ["float64", "int64", "uint64", "complex128"])
def test_wide_numbers_are_never_cut(name):
    bits = np.array([2**40 + 1], name)
    back = FRAMEWORK.from_bits(bits, name)
    assert isinstance(back, np.ndarray)
    assert back.tolist() == [2**40 + 1]


def test_a_number_type_that_jax_lacks_is_refused():
    with pytest.raises(UnsupportedValueError, match="jax has no number type 'complex32'"):
        FRAMEWORK.from_bits(np.zeros(2, np.uint32), "complex32")


def test_a_tracer_is_named_and_refused():
    @jax.jit
    def function(x):
        assert framework_of(x) is FRAMEWORK
        assert FRAMEWORK.describe(x).shape == (3,)
        for ask in (FRAMEWORK.bits, FRAMEWORK.to_numpy, FRAMEWORK.snapshot):
            with pytest.raises(UnsupportedValueError, match=r"a jax tracer of shape \[3\] has no values"):
                ask(x)
        return x

    function(jnp.ones(3))


def test_deleted_arrays_and_keys_are_refused():
    value = jnp.ones(3)
    value.delete()
    with pytest.raises(UnsupportedValueError, match="was deleted or donated"):
        FRAMEWORK.bits(value)
    key = jax.random.key(0)
    assert FRAMEWORK.describe(key).layout == "key"
    with pytest.raises(UnsupportedValueError, match="a jax key array"):
        FRAMEWORK.bits(key)


def test_an_array_that_cannot_change_is_its_own_snapshot_and_mark():
    value = jnp.ones(3)
    assert FRAMEWORK.snapshot(value) is value
    assert FRAMEWORK.mark(value)(value)
    assert not FRAMEWORK.mark(value)(jnp.ones(3))
