"""Statistics in blocks are those of the whole array in float64."""

import json
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.proof import examples

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels.decode import decode
from tensortap.kernels.statistics import Statistics, statistics

pytestmark = pytest.mark.usefixtures("way")

FLOATS = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]), hnp.array_shapes(max_dims=3, max_side=20)
)


def reference(values):
    """The same in plain float64 numpy, over the finite values."""
    real = np.abs(values.astype(np.complex128)) if values.dtype.kind == "c" else values.astype(np.float64)
    finite = real[np.isfinite(real)]
    with np.errstate(all="ignore"):
        return finite, int(np.isnan(real).sum()), int(np.isinf(real).sum())


def bits_of(dtype, count=500):
    raw = np.random.default_rng(1).integers(0, 256, count * 16, dtype=np.uint8)
    if dtype == "bool":
        return raw[:count] > 128
    return raw.view(DTYPE_TABLE[dtype].storage)[:count]


@pytest.mark.parametrize("dtype", DTYPE_TABLE)
def test_every_type_agrees_with_float64(dtype):
    bits = bits_of(dtype)
    values = decode(bits, dtype)
    with np.errstate(all="ignore"):
        finite, nan, inf = reference(values)
    found = statistics(bits, dtype, block=64)
    assert (found.count, found.nan, found.inf, found.finite) == (500, nan, inf, finite.size)
    assert float(found.min) == finite.min()
    assert float(found.max) == finite.max()
    scale = float(np.abs(finite).max())
    assert found.norm == pytest.approx(scale * float(np.linalg.norm(finite / scale)), rel=1e-12)
    assert found.mean == pytest.approx(scale * float((finite / scale).mean()), abs=scale * 1e-13)
    assert found.std == pytest.approx(scale * float((finite / scale).std()), rel=1e-9)


@settings(max_examples=examples(80), deadline=None)
@given(FLOATS)
def test_any_floats_agree_with_float64(values):
    finite, nan, inf = reference(values)
    found = statistics(values, values.dtype.name)
    assert (found.count, found.nan, found.inf) == (values.size, nan, inf)
    if not finite.size:
        assert found.min is found.max is found.mean is found.std is None
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    scale = float(np.abs(finite).max()) or 1.0
    if scale < 1e-290:
        return
    assert found.mean == pytest.approx(math.fsum(finite / scale / finite.size) * scale, abs=scale * 1e-12)
    assert found.norm == pytest.approx(scale * float(np.linalg.norm(finite / scale)), rel=1e-12)


@settings(max_examples=examples(50), deadline=None)
@given(FLOATS, st.integers(1, 50))
def test_the_block_size_does_not_matter(values, block):
    dtype = values.dtype.name
    one, many = statistics(values, dtype), statistics(values, dtype, block=block)
    assert (one.count, one.min, one.max, one.nan, one.inf) == (
        many.count,
        many.min,
        many.max,
        many.nan,
        many.inf,
    )
    assert one.norm == pytest.approx(many.norm, rel=1e-12)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_keep_their_exact_ends(values):
    found = statistics(np.array(values, np.int64), "int64", block=3)
    assert (found.min, found.max) == (min(values), max(values))
    assert isinstance(found.min, int)


def test_the_ends_of_uint64_are_exact():
    found = statistics(np.array([2**64 - 1, 2**60 + 1], np.uint64), "uint64")
    assert (found.min, found.max) == (2**60 + 1, 2**64 - 1)


def test_bools_count_as_zero_and_one():
    found = statistics(np.array([True, False, True, True]), "bool")
    assert found == Statistics(4, 0, 1, 0.75, found.std, math.sqrt(3))
    assert type(found.max) is int


def test_complex_numbers_count_by_their_absolute_value():
    found = statistics(np.array([3 + 4j, 0j], np.complex64), "complex64")
    assert (found.min, found.max, found.mean, found.norm) == (0.0, 5.0, 2.5, 5.0)


def test_the_absolute_value_of_large_complex64_does_not_overflow():
    found = statistics(np.array([3e38 + 3e38j], np.complex64), "complex64")
    assert found.inf == 0
    assert found.max == pytest.approx(3e38 * math.sqrt(2))


@pytest.mark.parametrize("dtype", DTYPE_TABLE)
def test_nothing_has_no_statistics(dtype):
    found = statistics(np.zeros((3, 0), DTYPE_TABLE[dtype].storage), dtype)
    assert found == Statistics(0, None, None, None, None, 0.0)


def test_only_nan_has_counts_alone():
    found = statistics(np.array([np.nan, np.inf, -np.inf]), "float64")
    assert found == Statistics(3, None, None, None, None, 0.0, nan=1, inf=2)


def test_a_single_number_has_no_spread():
    found = statistics(np.array(0.1, np.float32), "float32")
    assert (found.count, found.std, found.min) == (1, 0.0, float(np.float32(0.1)))


def test_a_small_spread_around_a_large_mean_is_not_lost():
    values = 1e6 + 1e-4 * np.random.default_rng(0).standard_normal(200_000)
    assert statistics(values, "float64").std == pytest.approx(values.std(), rel=1e-6)


def test_a_mean_that_moves_from_block_to_block_is_in_the_spread():
    values = np.repeat([0.0, 1000.0], 100_000).astype(np.float32)
    assert statistics(values, "float32").std == pytest.approx(500.0)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1.7e308])
def test_numbers_at_the_ends_of_float64_neither_overflow_nor_vanish(scale):
    values = np.full(1000, scale)
    found = statistics(values, "float64", block=300)
    assert found.mean == pytest.approx(scale, rel=1e-3)
    if scale < 1e300:
        assert found.norm == pytest.approx(scale * math.sqrt(1000), rel=1e-3)


def test_strides_do_not_matter():
    values = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    assert statistics(values.T[::3], "float32") == statistics(values.T[::3].copy(), "float32")


def test_torch_agrees_on_bfloat16():
    tensor = torch.randn(1000, dtype=torch.bfloat16)
    found = statistics(tensor.view(torch.uint16).numpy(), "bfloat16")
    assert found.mean == pytest.approx(tensor.double().mean().item(), abs=1e-12)
    assert found.std == pytest.approx(tensor.double().std(correction=0).item())


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "zeros.bin"
    with open(path, "wb") as stream:
        stream.truncate(200_000_000)
    return path


def peak_of(function):
    function()
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_200_megabytes_on_disk_take_less_than_2_mebibytes_of_memory(large_file):
    mapped = np.memmap(large_file, np.float32, "r")
    assert peak_of(lambda: statistics(mapped, "float32")) <= 2 << 20


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64", "float16", "bfloat16", "complex128"])
def test_any_type_and_stride_takes_less_than_2_mebibytes_of_memory(dtype):
    storage = DTYPE_TABLE[dtype].storage
    raw = np.random.default_rng(0).integers(0, 255, 24 << 20, dtype=np.uint8).view(storage)
    apart = raw[: raw.size // 1000 * 1000].reshape(-1, 1000).T
    assert peak_of(lambda: statistics(apart, dtype)) <= 2 << 20


def test_statistics_are_stored_by_name_and_come_back():
    summary = statistics(np.array([1.0, -3.0, np.nan, np.inf]), "float64")
    stored = json.loads(json.dumps(summary.to_dict()))
    assert Statistics.from_stored(stored) == summary
    assert (summary.absmax, stored["nan"], stored["inf"]) == (3, 1, 1)


def test_a_name_that_this_version_does_not_know_is_skipped():
    summary = statistics(np.arange(4.0), "float64")
    assert Statistics.from_stored({**summary.to_dict(), "median": 1.5}) == summary


def test_statistics_without_counts_of_nonfinite_numbers_have_none():
    stored = statistics(np.arange(4.0), "float64").to_dict()
    del stored["nan"], stored["inf"]
    assert Statistics.from_stored(stored) == statistics(np.arange(4.0), "float64")


def test_a_list_is_read_in_the_order_of_version_0_1():
    assert Statistics.from_stored([4, 0, 3, 1.5, 1.1, 3.7, 0, 0, "new"]) == Statistics(4, 0, 3, 1.5, 1.1, 3.7)


@pytest.mark.parametrize(
    "stored",
    [None, 3, "x", [], [1, 2], ["x"] * 8, {}, {"count": 3}, [-1, 0, 0, 0, 0, 0, 0, 0], [1] * 4 + [[]] * 4],
)
def test_what_are_no_statistics_are_none(stored):
    assert Statistics.from_stored(stored) is None
