"""Tensors without one block of bytes, tensors without values, and programs with modes of their own."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.torch import FRAMEWORK


class Watcher(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class FunctionWatcher(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def quietly(make):
    """Torch announces prototypes and removals when such a tensor is made; reading one must stay silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def quantized():
    return quietly(lambda: torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8))


def nested(layout):
    pieces = [torch.ones(2, 3), torch.ones(4, 3)]
    return quietly(lambda: torch.nested.nested_tensor(pieces, layout=layout))


def ask_everything(value):
    FRAMEWORK.describe(value)
    FRAMEWORK.bits(value)
    FRAMEWORK.to_numpy(value)
    FRAMEWORK.snapshot(value)
    assert FRAMEWORK.mark(value)(value)


@pytest.mark.parametrize(
    ("make", "layout", "dtype", "shape", "nbytes"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo", "float32", (3, 3), 3 * 4 + 6 * 8),
        (
            lambda: quietly(lambda: torch.eye(3).to_sparse_csr()),
            "sparse_csr",
            "float32",
            (3, 3),
            3 * 4 + 7 * 8,
        ),
        (quantized, "quantized", "qint8", (2,), 2),
        (lambda: nested(torch.strided), "nested", "float32", (2, -1, 3), 72),
        (lambda: nested(torch.jagged), "nested", "float32", (2, -1, 3), 72 + 24),
        (lambda: torch.ones(2, 2).to_mkldnn(), "mkldnn", "float32", (2, 2), 16),
    ],
    ids=["coo", "csr", "quantized", "nested", "jagged", "mkldnn"],
)
def test_other_layouts_are_described_and_refused_as_bits(make, layout, dtype, shape, nbytes):
    value = make()
    description = FRAMEWORK.describe(value)
    assert (description.layout, description.dtype) == (layout, dtype)
    assert (description.shape, description.nbytes) == (shape, nbytes)
    with pytest.raises(
        UnsupportedValueError, match=f"a {layout} tensor of shape .* is not one block of bytes"
    ):
        FRAMEWORK.bits(value)
    assert FRAMEWORK.describe(FRAMEWORK.snapshot(value)).layout == layout
    assert FRAMEWORK.mark(value)(value)


def test_sparse_and_quantized_numbers_are_dense():
    assert FRAMEWORK.to_numpy(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert FRAMEWORK.to_numpy(torch.eye(2).bfloat16().to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert FRAMEWORK.to_numpy(quantized()).tolist() == [1, 2]


def test_a_sparse_tensor_changed_inside_is_seen():
    value = torch.eye(2).to_sparse()
    is_same = FRAMEWORK.mark(value)
    value._values().data.numpy()[0] = 7
    assert not is_same(value)


def test_a_meta_tensor_is_named_and_refused():
    with pytest.raises(UnsupportedValueError) as caught:
        FRAMEWORK.bits(torch.empty(3, 4, device="meta"))
    assert str(caught.value) == (
        "a meta tensor of shape [3, 4] has no values; "
        "materialise it first (e.g. model.to_empty(device='cpu'))"
    )


def test_a_fake_tensor_is_named_and_refused_inside_and_outside_its_mode():
    with FakeTensorMode():
        value = torch.empty(3)
        with pytest.raises(UnsupportedValueError, match=r"a fake tensor of shape \[3\] has no values"):
            FRAMEWORK.bits(value)
    with pytest.raises(UnsupportedValueError, match="a fake tensor"):
        FRAMEWORK.to_numpy(value)
    assert FRAMEWORK.describe(value).shape == (3,)
    assert FRAMEWORK.mark(value)(value)


def test_a_functional_tensor_is_refused_instead_of_read_from_stray_memory():
    with pytest.raises(UnsupportedValueError, match="a fake tensor"):
        FRAMEWORK.bits(torch._to_functional_tensor(torch.ones(3)))


def test_a_tensor_inside_vmap_is_refused_and_others_are_read():
    outside = torch.ones(2)

    def function(value):
        for ask in (FRAMEWORK.bits, FRAMEWORK.to_numpy, FRAMEWORK.snapshot):
            with pytest.raises(
                UnsupportedValueError, match=r"a tensor inside vmap of shape \[2\] has no values"
            ):
                ask(value)
        assert FRAMEWORK.mark(value)(value)
        ask_everything(outside)
        return value.sum()

    torch.vmap(function)(torch.ones(3, 2))
    with pytest.raises(UnsupportedValueError, match="a tensor inside vmap"):
        torch.func.grad(lambda x: torch.vmap(lambda y: FRAMEWORK.bits(y * 2))(x))(torch.ones(3))


def test_a_tensor_inside_grad_has_its_values():
    outside, seen = torch.ones(2), []

    def function(value):
        seen.extend((FRAMEWORK.bits(value), FRAMEWORK.snapshot(value * 2)))
        ask_everything(value)
        ask_everything(outside)
        return value.sum()

    assert torch.func.grad(torch.func.grad(function))(torch.tensor(3.0)).item() == 0
    assert [float(value) for value in seen] == [3, 6]
    assert not torch._C._functorch.is_functorch_wrapped_tensor(seen[1])


@pytest.mark.parametrize("size", [0, 8])
def test_a_tensor_whose_storage_was_freed_is_refused(size):
    value = torch.ones(10)[2:]
    value.untyped_storage().resize_(size)
    for ask in (FRAMEWORK.bits, FRAMEWORK.to_numpy, FRAMEWORK.snapshot):
        with pytest.raises(UnsupportedValueError, match=r"the storage of a tensor of shape \[8\] was freed"):
            ask(value)
    assert FRAMEWORK.mark(value)(value)


def test_a_wrapper_without_bytes_of_its_own_is_refused_by_name_and_copied_by_its_rules():
    value = TwoTensor(torch.ones(2), torch.zeros(2))
    with pytest.raises(UnsupportedValueError, match=r"a TwoTensor of shape \[2\] has no bytes of its own"):
        FRAMEWORK.bits(value)
    assert type(FRAMEWORK.snapshot(value)) is TwoTensor
    assert FRAMEWORK.describe(value).type == "TwoTensor"


def test_an_uninitialised_parameter_is_described_as_empty():
    description = FRAMEWORK.describe(torch.nn.UninitializedParameter())
    assert (description.type, description.shape) == ("UninitializedParameter", (0,))


@pytest.mark.parametrize("mode", [Watcher, FunctionWatcher])
@pytest.mark.parametrize(
    "value", [torch.ones(3), torch.ones(3).bfloat16(), torch.nn.Parameter(torch.ones(2))]
)
def test_the_programs_modes_see_nothing_of_us(mode, value):
    with mode() as watching:
        ask_everything(value)
        assert watching.seen == []
        torch.add(torch.ones(1), 1)
    assert watching.seen != []


def test_real_tensors_can_be_read_under_a_fake_mode():
    value = torch.ones(3)
    with FakeTensorMode():
        ask_everything(value)
        assert type(FRAMEWORK.snapshot(value)) is torch.Tensor


def test_neither_graph_nor_generator_nor_settings_are_touched():
    value = torch.ones(3, requires_grad=True) * 2
    before = torch.get_rng_state(), value.grad_fn, value._version
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autocast("cpu"):
            ask_everything(value)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (value.grad_fn, value._version) == before[1:]
    value.sum().backward()
