"""Tiles are what lies below them: the lowest, the highest, the mean, and whatever is not finite."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.comparison.sides.leaf import Operand
from tensortap.viewer.data import tiles
from tensortap.viewer.data.tensor import MappedTensor, TensorDifference
from tensortap.viewer.data.tiles import TileRefinement


def tensor(array, dtype=None):
    return MappedTensor(Operand(array, dtype or str(array.dtype)))


def by_hand(array, level):
    """The same, block after block."""
    size = 1 << level
    rows, columns = range(0, array.shape[0], size), range(0, array.shape[1], size)
    blocks = [[array[y : y + size, x : x + size] for x in columns] for y in rows]
    return [np.array([[how(block) for block in row] for row in blocks]) for how in (np.min, np.max, np.mean)]


@given(
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.integers(1, 6),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)), max_size=3),
)
def test_a_tile_is_the_min_max_and_mean_of_each_block(shape, level, is_turned, holes):
    array = np.random.default_rng(0).standard_normal(shape)
    for y, x in holes:
        array[int(y * shape[0]), int(x * shape[1])] = np.nan
    grid = tensor(array.T.copy()).grid("1,0", "") if is_turned else tensor(array).grid("", "")
    made = tiles.compute_tile(grid, level, 0, 0)
    assert made.is_exact
    for found, expected in zip((made.low, made.high, made.mean), by_hand(array, level), strict=True):
        np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-5, atol=1e-6)
    assert ((made.flags & tiles.NAN) > 0).tolist() == np.isnan(made.low).tolist()


def test_what_is_not_finite_is_marked_and_one_does_not_hide_the_other():
    array = np.zeros((8, 8), np.float32)
    array[0, 0], array[1, 1] = np.nan, np.inf
    array[4, 4] = -np.inf
    made = tiles.compute_tile(tensor(array).grid("", ""), 2, 0, 0)
    assert made.flags.tolist() == [[tiles.NAN | tiles.POSITIVE, 0], [0, tiles.NEGATIVE]]
    assert made.low[1, 1] == -np.inf
    assert np.isnan(made.mean[0, 0])


def test_tiles_side_by_side_make_the_whole():
    array = np.random.default_rng(0).standard_normal((300, 600)).astype(np.float32)
    grid = tensor(array).grid("", "")
    assert tiles.count_levels(grid.shape) == 3
    rows = [np.hstack([tiles.read_elements(grid, y, x) for x in range(3)]) for y in range(2)]
    np.testing.assert_array_equal(np.vstack(rows), array)


class Counting:
    """A grid that counts what is read of it."""

    def __init__(self, grid):
        self._grid, self.read_bytes = grid, 0
        self.shape, self.cost, self.needs_float64, self.is_column_major = grid.shape, grid.cost, False, False

    def read(self, rows, columns):
        part = self._grid.read(rows, columns)
        self.read_bytes += part.nbytes
        return part


def test_a_large_tile_reads_no_more_than_its_budget_and_says_so():
    array = np.broadcast_to(np.arange(4096, dtype=np.float32), (4096, 4096))
    grid = Counting(tensor(np.ascontiguousarray(array[:1024])).grid("", ""))
    made = tiles.compute_tile(grid, 4, 0, 0, sample_bytes=1 << 20, exact_bytes=0)
    assert not made.is_exact
    assert grid.read_bytes <= 1 << 20
    assert made.low[0].tolist() == list(range(0, 4096, 16))


def test_columns_that_lie_far_apart_are_sampled_too():
    array = np.random.default_rng(0).standard_normal((64, 512, 256)).astype(np.float32)
    grid = tensor(array).grid("0,1", ":,:,3")
    made = tiles.compute_tile(grid, 4, 0, 0, sample_bytes=1 << 18, exact_bytes=0)
    assert not made.is_exact
    assert made.shape == (4, 32)
    assert np.isfinite(made.mean).all()


@pytest.mark.parametrize("axes", ["", "1,0"])
def test_a_sampled_view_becomes_exact_in_the_background(axes):
    array = np.random.default_rng(0).standard_normal((515, 700)).astype(np.float32)
    array[514, 699] = np.nan
    grid = tensor(array).grid(axes, "")
    seen = array.T if axes else array
    told = []
    refined = TileRefinement(lambda work: work() is None, threading.Event())
    assert refined.exact_tile("view", 5, 0, 0) is None
    refined.request("view", grid, lambda: told.append(True))
    assert told == [True]
    made = refined.exact_tile("view", 5, 0, 0)
    for found, expected in zip((made.low, made.high, made.mean), by_hand(seen, 5), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert made.flags[-1, -1] == tiles.NAN


def test_nothing_is_gone_through_once_the_viewer_closes():
    is_over = threading.Event()
    is_over.set()
    refined = TileRefinement(lambda work: work() is None, is_over)
    refined.request("view", tensor(np.zeros((64, 64), "f4")).grid("", ""), lambda: pytest.fail("told"))
    assert refined.exact_tile("view", 4, 0, 0) is None


@pytest.mark.parametrize(("level", "y", "x"), [(0, 9, 0), (0, 0, -1), (1, 1, 0), (-1, 0, 0), (99, 0, 0)])
def test_a_tile_that_does_not_exist_is_refused(level, y, x):
    with pytest.raises(ValueError, match="there is no tile"):
        tiles.tile_span((100, 100), level, y, x)


def test_tiles_of_a_difference_are_the_difference():
    a = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    b = a.copy()
    b[3, 4] += 0.5
    grid = TensorDifference(tensor(a), tensor(b), "value").grid("", "")
    np.testing.assert_allclose(tiles.read_elements(grid, 0, 0), b.astype(float) - a)
    made = tiles.compute_tile(grid, 2, 0, 0)
    assert np.argwhere(made.high > 0).tolist() == [[0, 1]]
