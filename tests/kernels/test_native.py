"""The compiled kernels say what their twin says: counts, places and bounds exactly, sums to rounding."""

import math
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.proof import examples

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels import native
from tensortap.kernels.decode import decode
from tensortap.kernels.differences import is_within_tolerance, measure_differences
from tensortap.kernels.per_axis import relative_l2_per_index
from tensortap.kernels.statistics import statistics

pytestmark = pytest.mark.skipif(not native.available, reason=native.unavailable_reason)
SETTINGS = settings(
    max_examples=examples(75),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)
VARIANTS = native.library.variants() if native.available else []
EXACTLY = ("count", "mismatches", "absolute", "relative", "nan", "inf", "disagreeing", "both_nan")


def by_twin(call):
    library, native.library = native.library, None
    try:
        return call()
    finally:
        native.library = library


def elements(dtype):
    """Any bits of the type, and those that are numbers with something special about them more often."""
    storage = np.dtype(DTYPE_TABLE[dtype].storage)
    if storage.kind != "f":
        return hnp.from_dtype(storage)
    ends = np.finfo(storage)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, ends.max, -ends.max, ends.tiny, ends.smallest_subnormal]
    odd = [math.nan, math.inf, -math.inf]
    return st.sampled_from([storage.type(x) for x in special + odd]) | hnp.from_dtype(storage)


@st.composite
def arrays(draw, dtype, shape):
    """Contiguous, transposed or with gaps; filled by one value with a few others, or each on its own."""
    values = draw(hnp.arrays(DTYPE_TABLE[dtype].storage, shape, elements=elements(dtype)))
    how = draw(st.sampled_from(["as it is", "transposed", "apart"]))
    if how == "transposed" and shape:
        return np.asfortranarray(values)
    if how == "apart" and shape:
        room = np.zeros((*shape[:-1], 2 * shape[-1]), values.dtype)
        room[..., ::2] = values
        return room[..., ::2]
    return values


@st.composite
def pairs(draw):
    dtypes = st.sampled_from(sorted(DTYPE_TABLE))
    a_dtype = draw(dtypes)
    b_dtype = a_dtype if draw(st.integers(0, 3)) else draw(dtypes)
    shape = draw(SHAPES)
    a = draw(arrays(a_dtype, shape))
    b = draw(arrays(b_dtype, shape))
    if a_dtype == b_dtype and draw(st.booleans()):
        b = np.where(draw(hnp.arrays(bool, shape)), b, a)
    return a, a_dtype, b, b_dtype


def assert_sums_agree(found, expected, scale):
    """To rounding of sums of numbers of that size; infinity and nothing are themselves."""
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
            assert one == other or (math.isnan(one) and math.isnan(other))
        else:
            assert abs(one - other) <= 1e-12 * max(abs(other), scale)


def assert_agree(found, expected):
    for name in (*EXACTLY, "above", "below"):
        assert getattr(found, name) == getattr(expected, name), name
    for one, other in ((found.a, expected.a), (found.b, expected.b)):
        assert (one.min, one.max, type(one.min)) == (other.min, other.max, type(other.min))
        scale = max(abs(float(other.min or 0)), abs(float(other.max or 0)))
        assert_sums_agree((one.mean,), (other.mean,), scale)
        assert_sums_agree((one.norm,), (other.norm,), 0.0)
    gap = float(expected.absolute.size) if expected.absolute else 0.0
    assert_sums_agree((found.mean, found.bias), (expected.mean, expected.bias), gap)
    assert_sums_agree((found.relative_l2,), (expected.relative_l2,), 0.0)
    assert found.ulps == expected.ulps


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.law
@SETTINGS
@given(
    pair=pairs(),
    atol=st.sampled_from([1e-8, 0.0, 1.0, 1e-40, math.inf]),
    rtol=st.sampled_from([1e-5, 0.0, 0.5, 1e30]),
    equal_nan=st.booleans(),
)
def test_differences_are_those_of_the_twin(variant, pair, atol, rtol, equal_nan):
    native.library.choose(variant)
    tolerance = {"atol": atol, "rtol": rtol, "equal_nan": equal_nan}
    found = measure_differences(*pair, **tolerance, ulps=True)
    assert_agree(found, by_twin(lambda: measure_differences(*pair, **tolerance, ulps=True)))
    assert is_within_tolerance(*pair, **tolerance) == (found.mismatches == 0)
    native.library.choose(VARIANTS[0])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.law
@SETTINGS
@given(data=st.data(), dtype=st.sampled_from(sorted(DTYPE_TABLE)), shape=SHAPES)
def test_statistics_are_those_of_the_twin(variant, data, dtype, shape):
    native.library.choose(variant)
    bits = data.draw(arrays(dtype, shape))
    found, expected = statistics(bits, dtype), by_twin(lambda: statistics(bits, dtype))
    native.library.choose(VARIANTS[0])
    for name in ("count", "min", "max", "nan", "inf"):
        assert getattr(found, name) == getattr(expected, name), name
    assert type(found.min) is type(expected.min)
    scale = max(abs(float(expected.min or 0)), abs(float(expected.max or 0)))
    assert_sums_agree((found.mean, found.std), (expected.mean, expected.std), scale * 1e3)
    assert_sums_agree((found.norm,), (expected.norm,), 0.0)


@pytest.mark.law
@SETTINGS
@given(pair=pairs(), data=st.data())
def test_an_axis_is_that_of_the_twin(pair, data):
    shape = pair[0].shape
    if not shape:
        return
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    found, expected = relative_l2_per_index(*pair, axis), by_twin(lambda: relative_l2_per_index(*pair, axis))
    assert found.shape == (shape[axis],)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2", "int64", "uint8"]
)
def test_arrays_of_many_blocks_agree_with_the_twin(variant, dtype):
    native.library.choose(variant)
    raw = np.random.default_rng(1).integers(0, 256, 8 * 70_001, dtype=np.uint8)
    a = raw.view(DTYPE_TABLE[dtype].storage)[:70_001].copy()
    b = a.copy()
    b[30_000:60_000] = np.roll(b, 1)[30_000:60_000]
    assert_agree(
        measure_differences(a, dtype, b, dtype, ulps=True),
        by_twin(lambda: measure_differences(a, dtype, b, dtype, ulps=True)),
    )
    found, expected = statistics(a, dtype), by_twin(lambda: statistics(a, dtype))
    assert (found.nan, found.inf, found.min, found.max) == (
        expected.nan, expected.inf, expected.min, expected.max,
    )  # fmt: skip
    native.library.choose(VARIANTS[0])


@pytest.mark.parametrize("fill", [math.nan, math.inf, 0.0, 1e-45, 1e300])
@pytest.mark.parametrize("first", [0, 1, 2047, 2048, 9_990])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_odd_numbers_anywhere_are_counted_where_they_are(fill, first, dtype):
    b = np.random.default_rng(0).standard_normal(10_000)
    a = b.copy()
    a[first::7] = fill
    with np.errstate(over="ignore"):
        pair = a.astype(dtype), dtype, b.astype(dtype), dtype
    assert_agree(measure_differences(*pair), by_twin(lambda: measure_differences(*pair)))


def test_the_number_of_threads_changes_nothing():
    a = np.random.default_rng(0).standard_normal(5_000_000).astype(np.float32)
    b = a + np.float32(1e-3)
    one, two = (measure_differences(a, "float32", b, "float32", ulps=True, threads=count) for count in (1, 2))
    assert one == two


def test_no_more_threads_are_started_than_asked_for(monkeypatch):
    seen = set()
    library = native.library

    class Watched:
        def differences(self, *given):
            seen.add(threading.get_ident())
            return library.differences(*given)

    monkeypatch.setattr(native, "library", Watched())
    a = np.zeros(8 << 20, np.float32)
    measure_differences(a, "float32", a.copy(), "float32", threads=1)
    assert seen == {threading.get_ident()}
    seen.clear()
    measure_differences(a, "float32", a.copy(), "float32", threads=3)
    assert len(seen) <= 3
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        measure_differences(a, "float32", a, "float32", threads=0)


def test_other_threads_run_while_the_library_computes():
    a = np.zeros(1 << 26, np.uint8)
    started, ended = threading.Event(), threading.Event()
    turns = []

    def count():
        started.set()
        while not ended.is_set():
            turns.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    started.wait()
    before = len(turns)
    native.library.statistics(*native.as_native(a, "uint8"), 0, a.size)
    during = len(turns) - before
    ended.set()
    thread.join()
    assert during > 0


def test_flushing_subnormal_numbers_to_zero_does_not_change_what_is_found():
    import torch

    a, b = np.full(1000, 1e-40, np.float32), np.zeros(1000, np.float32)
    assert torch.set_flush_denormal(True)
    try:
        found = measure_differences(a, "float32", b, "float32", atol=0)
    finally:
        torch.set_flush_denormal(False)
    assert (found.mismatches, found.above) == (1000, 1000)
    assert found.absolute.size == float(a[0])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: f.statistics(np.zeros(3), 99, None, 0, 3), "no number type has the code 99"),
        (lambda f: f.statistics(np.zeros(3, np.uint8), 13, None, 0, 3), "no number type has the code 13"),
        (lambda f: f.statistics(np.zeros(3), 11, None, 0, 4), "24 bytes do not hold the numbers from 0 to 4"),
        (lambda f: f.statistics(np.zeros(3), 11, None, 2, 1), "24 bytes do not hold the numbers from 2 to 1"),
        (lambda f: f.choose("sse9"), "no variant 'sse9' for this processor"),
    ],
)
def test_what_would_read_outside_the_array_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call(native.library)


def test_a_nearly_equal_pair_has_the_angle_of_float64():
    a = np.random.default_rng(0).standard_normal(100_000)
    b = a + 1e-7 * np.random.default_rng(1).standard_normal(100_000)
    found = measure_differences(a, "float64", b, "float64")
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    expected = 1 - (x @ y) / np.sqrt((x @ x) * (y @ y))
    assert found.cosine_distance == pytest.approx(float(expected), rel=1e-3)
    assert found.gain == pytest.approx(float((x @ y) / (y @ y) - 1), abs=1e-15)


@pytest.mark.parametrize("dtype", [name for name, row in DTYPE_TABLE.items() if row.family == "float"])
def test_neighbours_are_one_number_apart(dtype):
    width = DTYPE_TABLE[dtype].itemsize
    low = np.array([1, 5, 40], DTYPE_TABLE[dtype].storage if width > 2 else f"<u{width}").astype(f"<u{width}")
    high = (low + 1).astype(low.dtype)
    bits = [codes.view(DTYPE_TABLE[dtype].storage) for codes in (low, high)]
    assert (decode(bits[0], dtype) < decode(bits[1], dtype)).all()
    found = measure_differences(bits[0], dtype, bits[1], dtype, ulps=True).ulps
    assert (found.max, found.counts[1], found.quantile(0.5)) == (1, 3, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16"])
def test_numbers_may_begin_at_any_byte(dtype):
    storage = np.dtype(DTYPE_TABLE[dtype].storage)
    raw = np.random.default_rng(0).integers(0, 256, 8 * 40_000 + 1, dtype=np.uint8)
    apart = raw[1:].view(storage)
    assert not apart.flags.aligned
    b = np.roll(apart, 1)
    pair, moved = (apart, dtype, b, dtype), (apart.copy(), dtype, b, dtype)
    assert_agree(measure_differences(*pair), measure_differences(*moved))
    assert statistics(apart, dtype).max == statistics(apart.copy(), dtype).max
    np.testing.assert_allclose(relative_l2_per_index(*pair, 0), relative_l2_per_index(*moved, 0), rtol=1e-12)
