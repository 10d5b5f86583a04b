"""The same tensor, unmodified: what counts, and what is seen."""

import weakref

import pytest
import torch

from tensortap.frameworks.torch import FRAMEWORK


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.data.add_(1),
        lambda x: x.detach().numpy().__setitem__(0, 7),
        lambda x: x[1:].mul_(3),
        lambda x: setattr(x, "data", x.data.double()),
    ],
    ids=["in-place", "data", "numpy", "view", "dtype"],
)
def test_every_way_to_change_it_is_seen(change, size):
    value = torch.ones(size)
    is_same = FRAMEWORK.mark(value)
    assert is_same(value)
    change(value)
    assert not is_same(value)


def test_an_equal_tensor_is_another_one():
    value = torch.ones(3)
    assert not FRAMEWORK.mark(value)(value.clone())
    assert not FRAMEWORK.mark(value)(value[:])


def test_a_change_in_inference_mode_is_seen():
    with torch.inference_mode():
        value = torch.ones(3)
        is_same = FRAMEWORK.mark(value)
        assert is_same(value)
        value.add_(1)
        assert not is_same(value)


def test_a_freed_tensors_address_is_not_taken_for_it():
    for _ in range(50):
        value = torch.zeros(8)
        is_same = FRAMEWORK.mark(value)
        del value
        assert not is_same(torch.zeros(8))
        assert not is_same(None)


def test_a_mark_does_not_keep_the_tensor_alive():
    value = torch.ones(3)
    found, is_same = weakref.ref(value), FRAMEWORK.mark(value)
    del value
    assert found() is None
    assert not is_same(torch.ones(3))


def test_a_meta_tensor_is_known_by_identity():
    value = torch.empty(3, device="meta")
    is_same = FRAMEWORK.mark(value)
    assert is_same(value)
    value.add_(1)
    assert not is_same(value)
