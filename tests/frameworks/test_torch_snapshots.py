"""Snapshots that share memory: whatever is written to the original later, by whatever way, they keep."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks import torch_snapshots
from tensortap.frameworks.torch_snapshots import (
    copy_tensor,
    copy_tensor_to_host,
    share_copy_on_write,
    supports_copy_on_write,
)

is_shared = torch._C._is_cow_tensor


def optimizer_step(tensor):
    tensor.grad = torch.ones_like(tensor)
    torch.optim.Adam([tensor], lr=0.1, foreach=True).step()


WRITES = {
    "in place": lambda x: x.add_(1),
    "activation": lambda x: torch.nn.functional.relu(x.neg_(), inplace=True),
    "out": lambda x: torch.add(torch.ones(4), 1, out=x),
    "cat out": lambda x: torch.cat([torch.ones(2), torch.ones(2)], out=x),
    "copy_": lambda x: x.copy_(torch.full((4,), 9.0)),
    "data": lambda x: x.data.mul_(3).add_(1),
    "new data": lambda x: setattr(x, "data", torch.full((4,), 4.0)),
    "detached": lambda x: x.detach().fill_(7),
    "storage fill": lambda x: x.untyped_storage().fill_(7),
    "storage copy": lambda x: x.untyped_storage().copy_(torch.full((4,), 9.0).untyped_storage()),
    "storage freed": lambda x: x.untyped_storage().resize_(0),
    "resize_": lambda x: x.resize_(2).fill_(9),
    "set_": lambda x: x.set_(torch.full((4,), 5.0)),
    "index": lambda x: x.__setitem__(0, 5.0),
    "mask": lambda x: x.__setitem__(x > 1, 5.0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0]),), torch.tensor(9.0)),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([0]), torch.tensor([9.0])),
    "view": lambda x: x.view(2, 2)[1:].fill_(8),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "optimizer": optimizer_step,
    "numpy alias taken later": lambda x: x.numpy().fill(3),
    "shared memory later": lambda x: x.share_memory_().fill_(7),
    "address asked for later": lambda x: ctypes.memset(x.data_ptr(), 1, 4),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_no_way_of_writing_to_the_original_reaches_the_snapshot(write):
    original = torch.arange(4.0)
    snapshot = share_copy_on_write(original)
    assert is_shared(snapshot)
    write(original)
    assert snapshot.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "alias", [torch.Tensor.detach, lambda x: x.view(2, 2), lambda x: x[1:], lambda x: x.data]
)
def test_a_write_through_an_alias_that_was_there_before_does_not_reach_it(alias):
    original = torch.arange(4.0)
    before = alias(original)
    snapshot = share_copy_on_write(original)
    before.fill_(9)
    assert snapshot.tolist() == [0, 1, 2, 3]


def test_a_numpy_alias_taken_before_neither_reaches_it_nor_loses_the_original():
    original = torch.arange(4.0)
    alias = original.numpy()
    snapshot = share_copy_on_write(original)
    alias[0] = 9
    original[1] = 8
    assert snapshot.tolist() == [0, 1, 2, 3]
    assert alias.tolist() == original.tolist() == [9, 8, 2, 3]


def test_a_write_to_the_snapshot_does_not_reach_the_original():
    original = torch.arange(4.0)
    share_copy_on_write(original).add_(1)
    assert original.tolist() == [0, 1, 2, 3]


def test_several_snapshots_of_one_tensor_are_each_of_their_moment():
    original, snapshots = torch.zeros(3), []
    for _ in range(3):
        snapshots.append(share_copy_on_write(original))
        original.add_(1)
    assert [snapshot[0].item() for snapshot in snapshots] == [0, 1, 2]


def test_nothing_is_copied_while_nobody_writes():
    original = torch.ones(1000)
    snapshots = [share_copy_on_write(original) for _ in range(3)]
    assert all(map(is_shared, [original, *snapshots]))


def test_a_snapshot_has_no_graph_and_leaves_the_one_it_is_from_alone():
    leaf = torch.ones(3, requires_grad=True)
    output = leaf * 2
    snapshot = share_copy_on_write(output)
    assert (snapshot.requires_grad, snapshot.grad_fn) == (False, None)
    output.sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]


def test_a_write_to_the_original_is_still_seen_by_autograd():
    leaf = torch.ones(3, requires_grad=True)
    output = leaf.exp()
    share_copy_on_write(output)
    output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_snapshot_keeps_no_tensor_alive():
    original = torch.ones(3, requires_grad=True) * 2
    gone = weakref.ref(original)
    snapshot = share_copy_on_write(original)
    del original
    gc.collect()
    assert gone() is None
    assert snapshot.tolist() == [2, 2, 2]


# Every kind of tensor


KINDS = {
    "bfloat16": lambda: torch.randn(3).bfloat16(),
    "float8": lambda: torch.randn(3).to(torch.float8_e4m3fn),
    "float64": lambda: torch.randn(3, dtype=torch.float64),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch._neg_view(torch.randn(3)),
    "bool": lambda: torch.tensor([True, False]),
    "int64": lambda: torch.tensor([2**62, -1]),
    "0-d": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.randn(3, 4).t(),
    "channels last": lambda: torch.randn(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 3).expand(5, 3),
    "half of a storage": lambda: torch.randn(10)[5:],
    "every other": lambda: torch.randn(10)[::2],
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_kind_of_tensor_is_shared_as_it_is(make):
    original = make()
    expected = original.clone()
    snapshot = share_copy_on_write(original)
    assert is_shared(snapshot)
    assert (snapshot.dtype, snapshot.shape, snapshot.stride()) == (
        original.dtype,
        original.shape,
        original.stride(),
    )
    original.untyped_storage().fill_(1)
    assert torch.equal(snapshot.to(torch.complex128), expected.to(torch.complex128))


def test_an_expanded_snapshot_takes_no_more_memory_than_its_original():
    assert share_copy_on_write(torch.ones(1).expand(1 << 20)).untyped_storage().nbytes() == 4


@pytest.mark.parametrize("position", [slice(0, 5), slice(-5, None)])
def test_a_small_view_does_not_keep_a_large_storage_alive(position):
    large = torch.zeros(1_000_000)
    snapshot = share_copy_on_write(large[position])
    assert not is_shared(large)
    assert snapshot.untyped_storage().nbytes() == 20
    large.fill_(1)
    assert snapshot.sum() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.zeros(3)),
        lambda: torch.zeros(3).share_memory_(),
        lambda: torch.frombuffer(bytearray(12), dtype=torch.float32),
        lambda: torch.nn.Parameter(torch.zeros(3)),
    ],
    ids=["numpy", "shared memory", "buffer", "parameter"],
)
def test_memory_that_cannot_be_shared_is_copied(make):
    original = make()
    snapshot = share_copy_on_write(original)
    assert type(snapshot) is torch.Tensor
    assert not is_shared(snapshot)
    assert not is_shared(original.data)
    original.data.fill_(1)
    assert (snapshot.sum(), snapshot.requires_grad) == (0, False)


def test_a_parameter_stays_where_it_is():
    parameter = torch.nn.Parameter(torch.zeros(3))
    address = parameter.data_ptr()
    share_copy_on_write(parameter)
    with torch.no_grad():
        parameter.add_(1)
    assert parameter.data_ptr() == address


def test_a_snapshot_of_inference_mode_can_be_written_to_after_it():
    with torch.inference_mode():
        original = torch.zeros(3)
        snapshot = share_copy_on_write(original)
        original.add_(1)
    assert not snapshot.is_inference()
    assert snapshot.add_(2).tolist() == [2, 2, 2]
    assert share_copy_on_write(original).add_(1).tolist() == [2, 2, 2]


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor", "ignore:Sparse", "ignore:The PyTorch API of nested"
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3, 3).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["coo", "csr", "quantized", "mkldnn", "nested", "jagged"],
)
def test_other_layouts_are_copied_in_their_own(make):
    original = make()
    snapshot = share_copy_on_write(original)
    assert snapshot is not original
    assert (snapshot.layout, snapshot.dtype, snapshot.is_nested) == (
        original.layout,
        original.dtype,
        original.is_nested,
    )


def test_an_ordinary_subclass_becomes_a_plain_tensor():
    class Mine(torch.Tensor):
        pass

    original = torch.zeros(3).as_subclass(Mine)
    snapshot = share_copy_on_write(original)
    original.fill_(1)
    assert type(snapshot) is torch.Tensor
    assert snapshot.sum() == 0


# What has no values


def fake():
    with FakeTensorMode():
        return torch.ones(3)


def freed():
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: torch.ones(3, device="meta"),
            "a meta tensor of shape [3] has no values; materialise it first "
            "(e.g. model.to_empty(device='cpu'))",
        ),
        (fake, "a fake tensor of shape [3] has no values; capture outside of tracing and compiling"),
        (freed, "the storage of a tensor of shape [3] was freed; capture it while it is in use"),
    ],
)
@pytest.mark.parametrize("take", [share_copy_on_write, copy_tensor])
def test_what_has_no_values_is_refused_with_the_reason(make, told, take):
    with pytest.raises(UnsupportedValueError) as caught:
        take(make())
    assert str(caught.value) == told


def test_what_has_no_values_cannot_be_fetched_either():
    with pytest.raises(UnsupportedValueError, match="a meta tensor"):
        copy_tensor_to_host(torch.ones(3, device="meta"))


# Modes and transforms of the program


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.calls.append(function)
        return function(*arguments, **(keywords or {}))


def test_a_mode_of_the_program_does_not_see_the_snapshot():
    original = torch.zeros(3)
    with Counting() as mode:
        snapshot = share_copy_on_write(original)
    assert mode.calls == []
    original.add_(1)
    assert snapshot.sum() == 0


def test_a_value_within_a_function_transform_is_taken_from_below_it():
    seen = []

    def function(x):
        seen.append(share_copy_on_write(x))
        return (x * x).sum()

    assert torch.func.grad(function)(torch.ones(2)).tolist() == [2, 2]
    assert seen[0].tolist() == [1, 1]
    with pytest.raises(UnsupportedValueError, match="a tensor inside vmap"):
        torch.func.vmap(function)(torch.ones(2, 2))


# Devices


def test_sharing_is_tried_once_on_each_device():
    assert supports_copy_on_write(torch.device("cpu"))
    assert not supports_copy_on_write(torch.device("meta"))


def test_a_device_on_which_a_snapshot_would_not_hold_gets_a_copy(monkeypatch):
    monkeypatch.setattr(torch_snapshots, "_is_shareable", lambda tensor: False)
    original = torch.zeros(3)
    snapshot = share_copy_on_write(original)
    assert not is_shared(snapshot)
    original.add_(1)
    assert snapshot.sum() == 0


def test_a_snapshot_that_only_pretends_is_found_out(monkeypatch):
    monkeypatch.setattr(torch_snapshots, "_lazy_clone", lambda tensor: tensor.detach())
    assert not supports_copy_on_write.__wrapped__(torch.device("cpu"))
