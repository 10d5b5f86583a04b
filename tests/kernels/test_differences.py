"""Differences of numbers: the formula of the whole array in float64, whatever the type, size and strides."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.proof import examples, sampled

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels import differences as module
from tensortap.kernels.accumulator import DEFAULT_ATOL, LargestDifference
from tensortap.kernels.decode import decode
from tensortap.kernels.differences import is_within_tolerance, measure_differences

pytestmark = pytest.mark.usefixtures("way")

FLOATS = [name for name, row in DTYPE_TABLE.items() if row.family == "float"]
NUMBERS = st.floats(width=32) | st.sampled_from([0.0, 1.0, 1.00001, -1.0, math.inf, -math.inf, math.nan])
PAIRS = st.integers(1, 30).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=NUMBERS)] * 2))
RTOLS = st.sampled_from([0.0, 1e-40, 1e-5, 0.5, 3.0, 1e30])
ATOLS = st.just(math.inf) | RTOLS


def of(a, b, **options):
    return measure_differences(a, a.dtype.name, b, b.dtype.name, **options)


def are_within(a, b, **options):
    return is_within_tolerance(a, a.dtype.name, b, b.dtype.name, **options)


def mismatches(a, b, atol, rtol, equal_nan):
    """The rule, one number after the other, in float64."""
    count = 0
    for x, y in zip(a.astype(float).ravel().tolist(), b.astype(float).ravel().tolist(), strict=True):
        if math.isnan(x) and math.isnan(y):
            count += not equal_nan
        elif math.isinf(x) or math.isinf(y) or math.isnan(x) or math.isnan(y):
            count += x != y
        else:
            count += not abs(x - y) <= atol + rtol * abs(y)
    return count


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(PAIRS, ATOLS, RTOLS, st.booleans(), st.integers(1, 40))
@example((np.float32([1e-40]), np.float32([2e-40])), 0.0, 0.5, False, 40)
def test_the_count_is_that_of_the_rule(pair, atol, rtol, equal_nan, block):
    a, b = pair
    expected = mismatches(a, b, atol, rtol, equal_nan)
    options = {"atol": atol, "rtol": rtol, "equal_nan": equal_nan, "block": block}
    assert of(a, b, **options).mismatches == expected
    assert are_within(a, b, **options) == (expected == 0)


@pytest.mark.law
@settings(max_examples=examples(50), deadline=None)
@given(PAIRS, ATOLS)
def test_float32_against_float64_follows_the_same_rule(pair, atol):
    a, b = pair[0], pair[1].astype(np.float64)
    assert of(a, b, atol=atol, rtol=1e-3).mismatches == mismatches(a, b, atol, 1e-3, False)
    assert are_within(a, b, atol=atol, rtol=1e-3) == (mismatches(a, b, atol, 1e-3, False) == 0)


@pytest.mark.law
@settings(max_examples=examples(50), deadline=None)
@given(PAIRS)
def test_the_largest_absolute_difference_does_not_depend_on_the_order(pair):
    there, back = of(*pair), of(*reversed(pair))
    assert (there.absolute is None) == (back.absolute is None)
    if there.absolute is not None:
        assert there.absolute == LargestDifference(
            back.absolute.size, back.absolute.index, back.absolute.b, back.absolute.a
        )
    assert there.nan == back.nan[::-1]
    assert there.inf == back.inf[::-1]
    assert (there.disagreeing, there.both_nan) == (back.disagreeing, back.both_nan)


@pytest.mark.law
@settings(max_examples=examples(50), deadline=None)
@given(PAIRS, st.integers(1, 40))
def test_the_block_size_does_not_matter(pair, block):
    one, many = of(*pair), of(*pair, block=block)
    for field in ("count", "mismatches", "absolute", "relative", "nan", "inf", "disagreeing", "both_nan"):
        assert getattr(one, field) == getattr(many, field)
    assert one.mean == pytest.approx(many.mean, rel=1e-12)
    assert one.relative_l2 == pytest.approx(many.relative_l2, rel=1e-12)


def test_everything_is_said_about_a_small_pair():
    found = of(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [3.0, 2.0]]))
    assert (found.count, found.mismatches) == (4, 2)
    assert found.absolute == LargestDifference(2.0, (1, 1), 4.0, 2.0)
    assert found.relative == LargestDifference(1.0, (1, 1), 4.0, 2.0)
    assert found.mean == 0.625
    assert found.relative_l2 == pytest.approx(math.sqrt(4.25 / (1 + 6.25 + 9 + 4)))


def test_a_difference_from_zero_is_infinite_in_proportion_and_zero_from_zero_is_none():
    found = of(np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, 2.0]))
    assert found.relative == LargestDifference(1.0, (2,), 0.0, 2.0)
    assert of(np.array([0.0, 3.0]), np.array([0.0, 0.0])).relative.size == math.inf


def test_the_same_numbers_differ_nowhere():
    found = of(np.arange(5.0), np.arange(5.0))
    assert (found.mismatches, found.absolute, found.relative, found.relative_l2) == (0, None, None, 0.0)


def test_infinities_and_nan_are_counted_on_each_side():
    a = np.array([np.nan, np.inf, -np.inf, np.inf, 1.0, np.nan])
    b = np.array([np.nan, np.inf, np.inf, 1.0, np.nan, 0.0])
    found = of(a, b, equal_nan=True)
    assert (found.nan, found.inf) == ((2, 2), (3, 2))
    assert (found.disagreeing, found.both_nan, found.mismatches) == (4, 1, 4)
    assert of(a, b).mismatches == 5


def test_a_finite_number_is_never_within_reach_of_infinity():
    assert not are_within(np.array([1.0]), np.array([np.inf]), rtol=1.0)
    assert not are_within(np.array([np.inf]), np.array([1.0]), rtol=0.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_float_type_is_compared_by_value(dtype):
    bits = np.arange(256 if DTYPE_TABLE[dtype].itemsize == 1 else 2000).astype(DTYPE_TABLE[dtype].storage)
    wide = decode(bits, dtype).astype(np.float64)
    assert is_within_tolerance(bits, dtype, wide, "float64", atol=0, rtol=0, equal_nan=True)
    assert is_within_tolerance(bits, dtype, bits, dtype, equal_nan=True)
    assert is_within_tolerance(bits, dtype, bits, dtype) == (not np.isnan(wide).any())
    assert (
        measure_differences(bits, dtype, wide, "float64", equal_nan=True).nan == (np.isnan(wide).sum(),) * 2
    )


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_differ_by_their_distance(dtype):
    a, b = np.array([3 + 4j, 1j], dtype), np.array([0, 1j], dtype)
    assert of(a, b).absolute == LargestDifference(5.0, (0,), 3 + 4j, 0j)
    assert are_within(a, b, atol=5.0)
    assert not are_within(a, b, atol=4.9)
    assert not are_within(np.array([complex(np.nan, 0)], dtype), np.array([complex(np.nan, 0)], dtype))


def test_real_against_complex_is_compared_as_complex():
    assert are_within(np.array([1.0, 2.0]), np.array([1 + 0j, 2 + 0j]))
    assert not are_within(np.array([1, 2]), np.array([1 + 0j, 2 + 1j]))


INTEGERS = [name for name, row in DTYPE_TABLE.items() if row.family == "int"]


def integers(dtype):
    ends = np.iinfo(dtype)
    edges = st.sampled_from([ends.min, ends.min + 1, 0, 1, ends.max - 1, ends.max])
    return edges | st.integers(ends.min, ends.max)


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(
    st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.sampled_from([DEFAULT_ATOL, 0.0, 3.7])
)
def test_integers_are_compared_as_python_would(data, a_dtype, b_dtype, atol):
    length = data.draw(st.integers(1, 6))
    left = data.draw(st.lists(integers(a_dtype), min_size=length, max_size=length))
    right = data.draw(st.lists(integers(b_dtype), min_size=length, max_size=length))
    a, b = np.array(left, a_dtype), np.array(right, b_dtype)
    gaps = [abs(x - y) for x, y in zip(left, right, strict=True)]
    limit = 0 if atol == DEFAULT_ATOL else math.floor(atol)
    found = of(a, b, atol=atol, block=2)
    assert found.mismatches == sum(gap > limit for gap in gaps)
    assert are_within(a, b, atol=atol) == (found.mismatches == 0)
    if max(gaps):
        at = gaps.index(max(gaps))
        assert found.absolute == LargestDifference(max(gaps), (at,), left[at], right[at])
        assert found.mean == pytest.approx(sum(gaps) / length)
    else:
        assert found.absolute is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([2**60]), np.array([2**60 + 1])),
        (np.array([2**63], np.uint64), np.array([-(2**63)])),
        (np.array([2**64 - 1], np.uint64), np.array([-1])),
        (np.array([-(2**63)]), np.array([2**63 - 1])),
    ],
)
def test_integers_that_floats_confuse_are_told_apart(a, b):
    assert not are_within(a, b)
    assert of(a, b).absolute.size == abs(int(a[0]) - int(b[0]))


def test_a_tolerance_of_ones_own_counts_for_integers():
    a, b = np.array([10, 20]), np.array([11, 20])
    assert not are_within(a, b)
    assert are_within(a, b, atol=1)
    assert are_within(a, b, rtol=0.1)
    assert not are_within(a, b, rtol=0.05)
    assert are_within(np.array([-(2**63)]), np.array([2**63 - 1]), atol=math.inf)


def test_bools_are_zero_and_one():
    flags = np.array([True, False])
    assert are_within(flags, np.array([1, 0]))
    assert are_within(flags, np.array([1.0, 0.0]))
    assert of(flags, ~flags).mismatches == 2


@pytest.mark.parametrize("dtype", DTYPE_TABLE)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
def test_every_type_and_shape_equals_itself(dtype, shape):
    bits = np.ones(shape, DTYPE_TABLE[dtype].storage)
    assert is_within_tolerance(bits, dtype, bits.copy(), dtype)
    assert measure_differences(bits, dtype, bits.copy(), dtype).count == math.prod(shape)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) against \(2, 1\)"):
        are_within(np.zeros(2), np.zeros((2, 1)))


def test_strides_do_not_matter():
    a = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    b = a + np.float32(1e-3) * (a > 1)
    apart, together = of(a.T, np.ascontiguousarray(b.T)), of(a.T.copy(), b.T.copy())
    assert (apart.mismatches, apart.absolute) == (together.mismatches, together.absolute)
    assert apart.relative_l2 == pytest.approx(together.relative_l2)
    assert are_within(a[::2, ::3], a[::2, ::3].copy())


def test_numbers_too_large_to_square_are_compared():
    found = of(np.array([3e200, 1e308]), np.array([1e200, 1e308]))
    assert found.mismatches == 1
    assert found.absolute.size == 2e200
    assert found.relative_l2 == pytest.approx(2e-108)


def test_numbers_too_far_apart_for_float64_are_infinitely_apart():
    assert of(np.array([1.7e308]), np.array([-1.7e308])).absolute.size == math.inf


def test_a_mismatch_in_the_first_block_ends_the_search(monkeypatch):
    seen = []
    walk = module.iterate_blocks
    monkeypatch.setattr(
        module, "iterate_blocks", lambda *given: (seen.append(1) or each for each in walk(*given))
    )
    a, b = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
    b[0] = 1
    assert not are_within(a, b)
    assert len(seen) == 1


def peak_of(function):
    function()
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "zeros.bin"
    with open(path, "wb") as stream:
        stream.truncate(200_000_000)
    return path


def test_200_megabytes_on_disk_take_less_than_2_mebibytes_of_memory(large_file):
    a, b = np.memmap(large_file, np.float32, "r"), np.memmap(large_file, np.float32, "r")
    assert peak_of(lambda: are_within(a, b)) <= 2 << 20
    assert peak_of(lambda: measure_differences(a, "float32", b, "float32")) <= 2 << 20


@pytest.mark.parametrize(
    "dtype",
    sampled(
        ["float32", "float64", "int64", "complex64", "complex128", "float16", "bool"],
        ["float32", "complex64", "float16", "bool"],
    ),
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_any_type_and_stride_takes_less_than_2_mebibytes_of_memory(dtype, is_apart):
    storage = DTYPE_TABLE[dtype].storage
    raw = np.random.default_rng(0).integers(0, 255, 16 << 20, dtype=np.uint8)
    a = (raw[: 1 << 20] > 9) if dtype == "bool" else raw.view(storage)
    a = a[: a.size // 1000 * 1000].reshape(-1, 1000)
    b = a[::-1] if is_apart else a[::-1].copy()
    assert peak_of(lambda: measure_differences(a, dtype, b, dtype)) <= 2 << 20


def test_bias_order_gain_and_both_sides_are_told():
    b = np.array([1.0, 2.0, -2.0, 4.0])
    found = of(np.array([2.0, 2.0, -4.0, 8.0]), b)
    assert (found.bias, found.above, found.below) == (0.75, 2, 1)
    assert (found.a.min, found.a.max, found.a.mean, found.b.norm) == (-4.0, 8.0, 2.0, 5.0)
    scaled = of(1.5 * b, b)
    assert scaled.gain == pytest.approx(0.5)
    assert scaled.cosine_distance == pytest.approx(0.0, abs=1e-15)
    assert of(-b, b).cosine_distance == pytest.approx(2.0)
    assert (of(b, 0 * b).gain, of(b, 0 * b).cosine_distance) == (None, None)


@pytest.mark.parametrize("scale", [1e-180, 1e180])
def test_gain_and_angle_are_known_beyond_the_reach_of_squares(scale):
    found = of(scale * np.array([3.0, 1.0]), scale * np.array([2.0, 0.0]))
    assert found.gain == pytest.approx(0.5)
    assert found.cosine_distance == pytest.approx(1 - 3 / math.sqrt(10))


def test_distances_are_counted_in_numbers_of_the_type():
    b = np.array([1.0, -1.0, 0.0, 2.0, np.nan], np.float32)
    a = np.array([np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, 3.0, 1.0], np.float32)
    found = of(a, b, ulps=True).ulps
    assert (sum(found.counts), found.counts[0], found.counts[1]) == (4, 2, 1)
    assert (found.max, found.quantile(0.5), found.quantile(0.75), found.quantile(1)) == (2**22, 0, 1, 2**22)
    assert of(a, b).ulps is None
    assert of(a, b.astype(np.float64), ulps=True).ulps is None
