"""A walk in blocks sees every number once, in C order."""

import numpy as np
import pytest

from tensortap.kernels.decode import iterate_blocks

BASE = np.arange(2 * 30 * 7).reshape(2, 30, 7)
ARRAYS = {
    "contiguous": BASE,
    "transposed": BASE.T,
    "reversed": BASE[:, ::-1],
    "every other": BASE[..., ::2],
    "broadcast": np.broadcast_to(BASE[:, :1], BASE.shape),
    "0-d": np.array(5),
    "empty": BASE[:0],
    "empty and transposed": BASE[:, :0].T,
    "fortran": np.asfortranarray(BASE),
}


@pytest.mark.parametrize("size", [1, 13, 64, 10_000])
@pytest.mark.parametrize("name", ARRAYS)
def test_blocks_laid_end_to_end_are_the_array(name, size):
    array = ARRAYS[name]
    seen = [block.copy() for (block,) in iterate_blocks([array], size)]
    assert all(0 < block.size <= size for block in seen)
    assert np.array_equal(np.concatenate([*seen, array.ravel()[:0]]), array.ravel())


def test_two_arrays_are_cut_at_the_same_places():
    a, b = BASE[0].T, np.ascontiguousarray(BASE[0].T)
    for left, right in iterate_blocks([a, b], 16):
        assert np.array_equal(left, right)


def test_a_contiguous_array_is_not_copied():
    (block,) = next(iter(iterate_blocks([BASE], 8)))
    assert np.shares_memory(block, BASE)
