"""Summaries: the kernels' numbers, at torch's speed, fetched together."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.torch import FRAMEWORK
from tensortap.frameworks.torch_summary import (
    Summary,
    fetch_summaries,
    is_finite,
    pending_statistics,
    summarise_tensor,
)
from tensortap.kernels import native
from tensortap.kernels.statistics import Statistics, statistics

NAN, INF = float("nan"), float("inf")
NUMBERS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True, params=["compiled", "by torch"])
def way(request):
    """Without the compiled kernels torch sums up real numbers itself."""
    library = native.library
    if request.param == "by torch":
        native.library = None
    elif library is None:
        pytest.skip(native.unavailable_reason)
    yield
    native.library = library


def by_kernels(tensor):
    return statistics(FRAMEWORK.bits(tensor), FRAMEWORK.describe(tensor).dtype)


def assert_agree(tensor):
    found, expected = summarise_tensor(tensor).statistics, by_kernels(tensor)
    assert (found.count, found.nan, found.inf) == (expected.count, expected.nan, expected.inf)
    assert (found.min is None) == (expected.min is None)
    if expected.min is None:
        return
    assert found.min == pytest.approx(expected.min, rel=1e-6)
    assert found.max == pytest.approx(expected.max, rel=1e-6)
    size = max(abs(expected.min), abs(expected.max))
    assert found.mean == pytest.approx(expected.mean, abs=1e-6 * size)
    assert found.norm == pytest.approx(expected.norm, rel=1e-5)
    assert found.std == pytest.approx(expected.std, rel=1e-4, abs=1e-6 * size)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (40, 50), (0,), (3, 0)])
def test_a_summary_agrees_with_the_kernels_in_every_type(dtype, shape):
    generator = torch.Generator().manual_seed(1)
    assert_agree((torch.rand(shape, generator=generator) * 100).to(dtype))


@pytest.mark.parametrize("odd", [[NAN], [INF], [-INF, NAN], [NAN] * 20])
@pytest.mark.parametrize(
    "dtype", [one for one in NUMBERS if one.is_floating_point or one.is_complex], ids=str
)
def test_odd_numbers_are_counted_and_the_others_summed_up(dtype, odd):
    tensor = torch.arange(20.0)
    tensor[: len(odd)] = torch.tensor(odd)
    assert_agree(tensor.to(dtype))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(1000, generator=torch.Generator().manual_seed(1)) + 1e4,
        torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 1e-3 + 1e3,
        torch.full((1000,), 0.1),
        torch.tensor([torch.finfo(torch.float32).min, 0.0, 1.0]),
        torch.full((100,), 3e38),
        torch.full((1000,), 1e-22),
        torch.tensor([1e-40, -1e-40]),
        torch.tensor([1e300, -1e300], dtype=torch.float64),
        torch.tensor([1e-300, 1e-301], dtype=torch.float64),
        torch.tensor([1e300j, 1e300], dtype=torch.complex128),
        torch.tensor([complex(NAN, INF), complex(1, NAN), 1 + 1j]),
        torch.zeros(10),
        torch.tensor([-0.0]),
    ],
    ids=str,
)
def test_numbers_at_the_edge_are_no_exception(tensor):
    found, expected = summarise_tensor(tensor).statistics, by_kernels(tensor)
    assert_agree(tensor)
    if expected.mean:
        assert found.std == pytest.approx(expected.std, rel=1e-3, abs=1e-7 * abs(expected.mean))


def test_large_integers_keep_their_exact_bounds():
    found = summarise_tensor(torch.tensor([2**62 + 1, -(2**62) - 3])).statistics
    assert (found.min, found.max) == (-(2**62) - 3, 2**62 + 1)
    found = summarise_tensor(torch.tensor([2**64 - 1, 1], dtype=torch.uint64)).statistics
    assert (found.min, found.max) == (1, 2**64 - 1)
    assert type(summarise_tensor(torch.tensor([True])).statistics.max) is int


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_a_summary_agrees_with_the_kernels_whatever_the_numbers(values):
    assert_agree(torch.tensor(values, dtype=torch.float32))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1:],
        lambda x: x[:1].expand(5, 8),
        lambda x: x.requires_grad_() * 2,
        lambda x: torch.nn.Parameter(x),
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).conj().imag,
    ],
)
def test_views_are_summed_up_as_they_are(view):
    assert_agree(view(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))))


def test_a_summary_says_what_it_is_of():
    found = summarise_tensor(torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.bfloat16))
    assert (found.shape, found.dtype, found.device, found.count) == ((1, 3), "bfloat16", "cpu", 3)
    assert (found.min, found.max, found.mean, found.nan, found.inf) == (1, 6, 3, 0, 0)
    assert found.is_finite
    assert repr(found) == "Summary(bfloat16[1, 3] 1 .. 6, s=2.16)"
    with pytest.raises(AttributeError) as caught:
        _ = found.median
    assert str(caught.value) == "a summary has no 'median'; it has min, max, mean, std, norm, nan and inf"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, NAN, INF, -INF], "Summary(float32[4] 1 .. 1, s=0, 1 NaN, 2 Inf)"),
        ([NAN], "Summary(float32[1], 1 NaN, 0 Inf)"),
        ([], "Summary(float32[0])"),
    ],
)
def test_odd_numbers_show(values, shown):
    assert repr(summarise_tensor(torch.tensor(values))) == shown


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.eye(2).to_sparse(), "a sparse_coo tensor has no summary; keep='clone' keeps it whole"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "a quantized tensor has no summary; keep='clone' keeps it whole",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "a nested tensor has no summary; keep='clone' keeps it whole",
        ),
        (
            lambda: torch.ones(2, device="meta"),
            "a meta tensor of shape [2] has no values; materialise it first "
            "(e.g. model.to_empty(device='cpu'))",
        ),
    ],
)
def test_what_has_no_summary_is_refused_by_name(make, told):
    with pytest.raises(UnsupportedValueError) as caught:
        summarise_tensor(make())
    assert str(caught.value) == told


def test_summing_up_changes_nothing():
    tensor = torch.randn(10, requires_grad=True)
    before, state = tensor.detach().clone(), torch.get_rng_state()
    summarise_tensor(tensor * 2)
    summarise_tensor(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == 0
    assert torch.equal(torch.get_rng_state(), state)


# What waits on a device


def waiting(tensor):
    """As on a device other than the host."""
    return Summary(FRAMEWORK.describe(tensor), tensor.numel(), pending_statistics(tensor))


class Reads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.count += "stack" in str(function)
        assert "_local_scalar_dense" not in str(function)
        return function(*arguments, **(keywords or {}))


def test_many_summaries_are_fetched_at_once():
    tensors = [torch.arange(float(size)) for size in (3, 4, 5)]
    summaries = [waiting(tensor) for tensor in tensors]
    assert all(summary.pending is not None for summary in summaries)
    with Reads() as reads:
        fetch_summaries([*summaries, summarise_tensor(torch.ones(2))])
    assert reads.count == 1
    assert [summary.pending for summary in summaries] == [None] * 3
    for summary, tensor in zip(summaries, tensors, strict=True):
        assert summary.max == tensor.max()
        assert summary.std == pytest.approx(tensor.std(correction=0).item(), rel=1e-5)


def test_a_summary_fetches_itself_when_it_is_asked():
    summary = waiting(torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert summary.pending is not None
    assert summary.norm == 5
    assert summary.pending is None


def test_odd_numbers_are_counted_on_the_device():
    summary = waiting(torch.tensor([1.0, NAN, INF, 2.0]))
    assert (summary.nan, summary.inf, summary.is_finite) == (1, 1, False)
    assert (summary.min, summary.mean) == (None, None)
    assert math.isnan(summary.norm)
    assert repr(summary) == "Summary(float32[4], 1 NaN, 1 Inf)"


def test_nothing_to_read_is_no_error():
    fetch_summaries([])
    fetch_summaries([summarise_tensor(torch.ones(2))])


# Finite or not


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_finite_numbers_of_every_type_are_finite(dtype):
    assert is_finite(torch.ones(3).to(dtype))
    assert is_finite(torch.ones(0).to(dtype))


def test_a_number_is_finite_in_its_own_type():
    assert is_finite(torch.tensor([1e300], dtype=torch.float64))
    assert is_finite(torch.tensor([1e300 + 1e300j], dtype=torch.complex128))
    assert is_finite(torch.tensor(torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16))


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_odd_number_anywhere_is_enough(odd, at):
    tensor = torch.zeros(3)
    tensor[at] = odd
    for value in (
        tensor,
        tensor.double(),
        tensor.half(),
        tensor.to(torch.complex64),
        tensor.to_sparse(),
        tensor[::2],
    ):
        if value.shape == tensor.shape or at != 1:
            assert not is_finite(value)


def test_numpy_agrees_about_the_spread():
    values = np.random.default_rng(1).normal(50, 0.01, 100_000).astype(np.float32)
    assert summarise_tensor(torch.from_numpy(values)).std == pytest.approx(
        float(values.astype(float).std()), rel=1e-3
    )


def test_statistics_of_the_host_are_there_at_once():
    assert isinstance(summarise_tensor(torch.ones(2)).statistics, Statistics)
    assert summarise_tensor(torch.ones(2)).pending is None
