"""Round trips that hold for every array."""

import ast
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.proof import examples

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.frameworks.base import framework_named, framework_of, frameworks, register_framework

storages = st.sampled_from(list(DTYPE_TABLE.values()))
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@st.composite
def bits_and_types(draw):
    number_type = draw(storages)
    shape = draw(shapes)
    size = int(np.prod(shape)) * number_type.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    block = np.frombuffer(data, np.uint8)
    if number_type.name == "bool":
        block = block & 1
    return block.copy().view(number_type.storage).reshape(shape), number_type.name


@pytest.mark.law
@settings(max_examples=examples(150), deadline=None)
@given(bits_and_types(), st.sampled_from(["torch", "numpy"]))
def test_bits_to_value_to_bits_changes_nothing(drawn, name):
    bits, dtype = drawn
    if (name, dtype) == ("numpy", "complex32"):
        return
    framework = framework_named(name)
    value = framework.from_bits(bits, dtype)
    again = framework.bits(value)
    assert framework.describe(value).dtype == dtype
    assert again.dtype == bits.dtype
    assert again.shape == bits.shape
    assert again.tobytes() == bits.tobytes()
    assert bits.size == 0 or np.shares_memory(again, bits)


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(bits_and_types())
def test_the_numbers_of_torch_are_those_of_to_numpy(drawn):
    bits, dtype = drawn
    value = framework_named("torch").from_bits(bits, dtype)
    numbers = framework_of(value).to_numpy(value)
    wide = {"float": torch.float64, "complex": torch.complex128}.get(DTYPE_TABLE[dtype].family)
    expected = value if wide is None else value.to(wide)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN says so
        np.testing.assert_array_equal(numbers.astype(expected.numpy().dtype), expected.numpy())


@pytest.mark.law
@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_any_slice_of_a_tensor_has_the_bits_of_its_clone(data):
    base = torch.arange(120, dtype=torch.bfloat16).reshape(2, 3, 4, 5)
    view = base.permute(data.draw(st.permutations(range(4))))
    index = data.draw(arrays.basic_indices(tuple(view.shape), allow_newaxis=True))
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in index):
        return
    view = view[index]
    assert framework_of(view).bits(view).tolist() == view.clone().view(torch.uint16).tolist()


def loaded_after(code):
    script = (
        f"{code}\nimport sys; print([m for m in ('torch', 'jax', 'ml_dtypes', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


@pytest.mark.process
def test_describing_a_numpy_array_imports_neither_torch_nor_jax():
    code = """
import numpy
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves, snapshot_leaves
for value in (numpy.ones(3), 3, [1, {"a": numpy.ones(2)}], None):
    framework = framework_of(value)
    framework.describe(value), framework.snapshot(value), framework.mark(value)(value), list(leaves(value))
"""
    assert loaded_after(code) == ["numpy"]


@pytest.mark.process
def test_reading_a_tensor_does_not_import_the_distributed_tensor():
    code = """
import torch, sys
before = "torch.distributed.tensor" in sys.modules
from tensortap.frameworks.base import framework_of
value = torch.nn.Parameter(torch.ones(3))
framework = framework_of(value)
framework.describe(value), framework.bits(value), framework.snapshot(value), framework.placement(value)
assert ("torch.distributed.tensor" in sys.modules) == before
"""
    assert "torch" in loaded_after(code)


@pytest.mark.process
def test_importing_the_questions_imports_no_array_library():
    assert loaded_after("import tensortap.frameworks.base") == []


class Money:
    pass


class Bank:
    name, suffix = "bank", ".money"

    def owns(self, kind):
        return issubclass(kind, Money)


@pytest.fixture
def bank():
    bank = Bank()
    assert framework_of(Money()).name == "python"
    register_framework(bank)
    yield bank
    frameworks._plugins.pop("bank")
    register_framework(framework_named("python"))
    frameworks._plugins.pop("python")


def test_a_registered_framework_answers_for_what_it_owns(bank):
    assert framework_of(Money()) is bank
    assert framework_named("bank") is bank
    assert framework_of(1).name == "python"
    assert framework_of(torch.ones(1)).name == "torch"
