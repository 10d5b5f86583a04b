"""Many pairs in one call: each is accounted for as if it were alone."""

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
from tensortap.kernels.accumulator import compare_pairs, last_axis_length
from tensortap.kernels.differences import measure_differences
from tensortap.kernels.per_axis import worst_row_and_column

pytestmark = pytest.mark.skipif(not native.available, reason=native.unavailable_reason)
VARIANTS = native.library.variants() if native.available else []
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)


@pytest.fixture(params=VARIANTS)
def variant(request):
    native.library.choose(request.param)
    yield request.param
    native.library.choose(VARIANTS[0])


@st.composite
def pairs(draw):
    dtypes = st.sampled_from(sorted(DTYPE_TABLE))
    a_dtype = draw(dtypes)
    b_dtype = a_dtype if draw(st.integers(0, 3)) else draw(dtypes)
    shape = draw(SHAPES)
    a, b = (draw(hnp.arrays(DTYPE_TABLE[dtype].storage, shape)) for dtype in (a_dtype, b_dtype))
    if a_dtype == b_dtype and draw(st.booleans()):
        b = np.where(draw(hnp.arrays(bool, shape)), b, a)
    return a, a_dtype, b, b_dtype


def noisy(shape, dtype="float32", seed=0):
    draw = np.random.default_rng(seed)
    b = draw.standard_normal(shape)
    return (b + 1e-3 * draw.standard_normal(shape)).astype(dtype), dtype, b.astype(dtype), dtype


def worst(pair, found):
    """The worst row and column, as one pair alone is measured."""
    a, a_dtype, b, b_dtype = pair
    x, y = (side.reshape(-1, side.shape[-1]) for side in (a, b))
    if found.a.norm > found.b.norm:
        x, a_dtype, y, b_dtype = y, b_dtype, x, a_dtype
    return worst_row_and_column(x, a_dtype, y, b_dtype)


def assert_is_that_of_one(told, pair):
    found = measure_differences(*pair)
    assert (told.above, told.below, told.disagreeing) == (found.above, found.below, found.disagreeing)
    assert ((told.a_nan, told.b_nan), (told.a_inf, told.b_inf)) == (found.nan, found.inf)
    assert math.sqrt(told.a_squares) == pytest.approx(found.a.norm, rel=1e-12)
    assert math.sqrt(told.b_squares) == pytest.approx(found.b.norm, rel=1e-12)
    assert told.largest == (found.absolute.size if found.absolute else 0)
    if found.absolute is None or not told.worst_row >= 0:
        return
    assert np.unravel_index(told.position, pair[0].shape) == found.absolute.index
    (row, _), (column, _) = worst(pair, found)
    assert (told.row, told.column) == pytest.approx((row, column), rel=1e-9)


@pytest.mark.law
@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(given_pairs=st.lists(pairs(), max_size=4))
def test_each_pair_is_accounted_for_as_if_it_were_alone(variant, given_pairs):
    found = compare_pairs(given_pairs)
    assert len(found) == len(given_pairs)
    for told, pair in zip(found, given_pairs, strict=True):
        if told is not None:
            assert_is_that_of_one(told, pair)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(300, 7), (3, 70, 33), (2, 9000), (4100, 2)])
def test_ordinary_numbers_of_any_shape_are_taken(variant, dtype, shape):
    pair = noisy(shape, dtype)
    (told,) = compare_pairs([pair])
    assert_is_that_of_one(told, pair)
    (_, row), (_, column) = worst(pair, measure_differences(*pair))
    assert (told.worst_row, told.worst_column) == (row, column)


def test_numbers_that_are_not_finite_on_both_sides_do_not_count_in_rows_and_columns(variant):
    a, dtype, b, _ = noisy((40, 60))
    a[3, 5] = b[3, 5] = np.nan
    a[7] = b[7] = np.inf
    (told,) = compare_pairs([(a, dtype, b, dtype)])
    assert (told.finite, told.a_nan, told.a_inf) == (39 * 60 - 1, 1, 60)
    assert_is_that_of_one(told, (a, dtype, b, dtype))


def test_what_needs_more_care_is_left_to_the_way_of_one():
    long, apart = noisy(native.CHUNK_SIZE + 2), noisy((8, 8))
    extreme = noisy((8, 8), "float64")
    huge = 1e200 * extreme[0], "float64", 1e200 * extreme[2], "float64"
    odd = np.frombuffer(bytearray(257), np.float32, 64, 1), "float32", np.ones(64, np.float32), "float32"
    strided = apart[0][::2], "float32", apart[2][::2], "float32"
    complex_pair = noisy((4, 4), "complex64")
    empty = np.zeros((0, 3), np.float32), "float32", np.zeros((0, 3), np.float32), "float32"
    other = np.zeros(3, np.float32), "float32", np.zeros(4, np.float32), "float32"
    for pair in (long, huge, odd, strided, complex_pair, empty, other):
        assert compare_pairs([pair]) == [None]
    assert compare_pairs([huge, apart])[1] is not None


def test_without_the_library_every_pair_is_compared_by_itself(monkeypatch):
    monkeypatch.setattr(native, "library", None)
    assert compare_pairs([noisy((4, 4))]) == [None]


def test_the_arrays_are_let_go_of(variant):
    memory = bytearray(1024)
    a = np.frombuffer(memory, np.float32)
    kind = native.dtype_code("float32")
    assert len(native.library.measured([(a, *kind, a, *kind, 256, 16, False)])) == 1
    for bad in ((a, *kind, a, *kind, 257, 0, False), (a, *kind, a, *kind, 256, 7, False), (a, 1), 3):
        with pytest.raises((ValueError, TypeError)):
            native.library.measured([(a, *kind, a, *kind, 256, 16, False), bad])
    del a
    memory += b"x"  # refused while anyone still looks at it


def test_what_would_read_outside_the_arrays_is_refused():
    a, kind = np.zeros(4, np.float32), native.dtype_code("float32")
    with pytest.raises(ValueError, match="16 bytes do not hold the numbers from 0 to 5"):
        native.library.measured([(a, *kind, a, *kind, 5, 0, False)])
    with pytest.raises(ValueError, match="4 numbers are no rows of 3"):
        native.library.measured([(a, *kind, a, *kind, 4, 3, False)])
    with pytest.raises(ValueError, match="an axis of 2 numbers needs as many sums"):
        native.library.axes(a, *kind, a, *kind, 0, 4, 2, 2, True, *(np.zeros(n) for n in (2, 2, 2, 3)))
    with pytest.raises(ValueError, match="2 rows of 2 do not hold 6 numbers"):
        native.library.axes(a, *kind, a, *kind, 0, 6, 2, 2, True, *(np.zeros(2) for _ in range(4)))


def test_other_threads_run_while_small_pairs_are_compared():
    pair = noisy((64, 64))
    jobs = [pair] * 2000
    started, ended, turns = threading.Event(), threading.Event(), []

    def count():
        started.set()
        while not ended.is_set():
            turns.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    started.wait()
    kind = native.dtype_code("float32")
    rows = [(a, *kind, b, *kind, a.size, 64, False) for a, _, b, _ in jobs]
    before = len(turns)
    native.library.measured(rows)
    during = len(turns) - before
    ended.set()
    thread.join()
    assert during > 0


def test_rows_and_columns_need_two_axes():
    shapes = [(), (5,), (1, 5), (5, 1), (2, 5), (3, 1, 4), (1, 1, 4)]
    assert [last_axis_length(shape) for shape in shapes] == [
        0, 0, 0, 0, 5, 4, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [3, 40, 70_000])
def test_rows_and_columns_of_long_arrays_are_those_of_the_twin_for_any_number_of_threads(columns):
    a, dtype, b, _ = noisy((3_000_000 // columns, columns))
    a[1] *= 2
    one, two = (worst_row_and_column(a, dtype, b, dtype, threads=count) for count in (1, 2))
    library, native.library = native.library, None
    try:
        twin = worst_row_and_column(a, dtype, b, dtype)
    finally:
        native.library = library
    assert one == two
    assert [place for _, place in one] == [place for _, place in twin]
    assert [size for size, _ in one] == pytest.approx([size for size, _ in twin], rel=1e-12)
