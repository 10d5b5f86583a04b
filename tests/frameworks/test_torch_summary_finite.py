"""Whether a tensor holds NaN or Inf, without touching it."""

import pytest
import torch

from tensortap.frameworks.torch_summary import (
    describe_untraced,
    is_readable,
    is_surely_finite,
    tensor_statistics,
)


def is_finite(x):
    return is_surely_finite(x, describe_untraced(x))


TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_sum_finds_every_number_that_is_none(dtype):
    for odd in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(1000, dtype=dtype)
        assert is_finite(x)
        x[617] = odd
        assert not is_finite(x)


def test_opposite_infinities_do_not_cancel():
    assert not is_finite(torch.tensor([torch.inf, -torch.inf]))


def test_what_the_program_would_notice_is_not_summed():
    x = torch.ones(3)
    seen = []
    with torch.overrides.TorchFunctionMode():
        assert not is_readable(x)
    assert is_readable(x)
    torch.func.vmap(lambda y: seen.append(is_readable(y)) or y)(x)
    assert seen == [False]


def test_memory_that_was_freed_is_not_read():
    x = torch.ones(100)
    x.untyped_storage().resize_(0)
    assert not is_readable(x)
    assert tensor_statistics(torch.ones(2, device="meta")) is None


def test_views_and_expanded_tensors_are_ordinary():
    x = torch.ones(3)
    assert is_readable(x.expand(4, 3))
    assert is_readable(torch.ones(4, 6).t()[1:])
    assert is_finite(x.requires_grad_().expand(4, 3))
