"""Pairs of arrays with a label: what was done to the second."""

import numpy as np

NOTHING = (
    "noise", "much noise", "unrelated", "dropout", "bf16 product", "mixed", "relu", "large row", "few",
    "nearly constant", "relu of few rows", "transposed and scaled", "huge",
)  # fmt: skip
# Which detectors may speak of what was done, the one that must first. Where a few rows were permuted or a
# part is all that changed, that it is a part is true as well.
SPEAKING = {
    "rounded": ("rounded",),
    "scaled": ("scaled",),
    "offset": ("offset",),
    "bias": ("bias",),
    "moved": ("moved",),
    "transposed": ("transposed",),
    "permuted": ("permuted", "part"),
    "tail": ("part",),
    "shard": ("part",),
    "row": ("part",),
    "masked": ("masked",),
    "masked weights": ("masked", "part"),
    "positions": ("offset",),
    "long integers": ("offset",),
    "rows again": ("part",),
    "zeros": ("zeros",),
}
SINGLE = np.float32


def bf16(numbers):
    words = numbers.astype(SINGLE).view(np.uint32).astype(np.uint64)
    return (((words + 0x7FFF + ((words >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(SINGLE)


def made(label, seed):
    """Two arrays that differ as the label says."""
    random = np.random.default_rng([seed, *map(ord, label)])
    shape = random.integers(6, 20, random.integers(2, 4)).tolist()
    a = (random.standard_normal(shape) + random.choice((0, 0.5))).astype(SINGLE)
    return MAKERS[label](a, random)


def little(numbers, random):
    """Noise as another order of additions makes it."""
    return (numbers * (1 + 1e-6 * random.standard_normal(numbers.shape))).astype(SINGLE)


def _rounded(a, random):
    return a, bf16(a) if random.random() < 0.5 else a.astype(np.float16).astype(SINGLE)


def _moved(a, random):
    return a, little(np.roll(a, random.choice((1, -1, 2)), random.integers(a.ndim)), random)


def _transposed(a, random):
    size = random.integers(6, 20)
    square = random.standard_normal((size, size)).astype(SINGLE)
    return square, little(square.T.copy(), random)


def _permuted(a, random):
    axis = int(random.integers(a.ndim))
    rows = np.arange(a.shape[axis])
    mixed = rows
    while any((np.roll(rows, n) == mixed).all() for n in range(-8, 9)):
        mixed = random.permutation(rows)
    return a, little(np.take(a, mixed, axis), random)


def _part(a, random, what):
    axis = int(random.integers(a.ndim))
    a = np.take(a, range(a.shape[axis] // 4 * 4), axis)
    b = little(a, random)
    rows = np.moveaxis(b, axis, 0)
    length = len(rows)
    start = int(random.integers(1, length))
    quarter = length // 4 * int(random.integers(4))
    chosen = {"tail": slice(start, None), "row": start, "shard": slice(quarter, quarter + length // 4)}[what]
    rows[chosen] += random.standard_normal(rows[chosen].shape).astype(SINGLE)
    return a, b


def _masked(a, random):
    size = int(random.integers(6, 16))
    scores = random.standard_normal((2, 3, size, size)).astype(SINGLE)
    row, column = np.arange(size)[:, None], np.arange(size)
    causal = np.where(column > row, -np.inf, scores)
    others = (
        np.where(column > row + 1, -np.inf, scores),
        np.where((row >= size // 2) & (column < 2), -np.inf, causal),
        np.where(column > row - 1, -np.inf, scores),
    )
    return causal, others[random.integers(3)]


def _masked_weights(a, random):
    """Attention's: what is hidden is zero, and the rest of a row adds up to one all the same."""
    size = int(random.integers(6, 16))
    scores = np.exp(random.standard_normal((2, 3, size, size)))
    row, column = np.arange(size)[:, None], np.arange(size)
    both = [np.where(column <= row + more, scores, 0) for more in (0, random.integers(1, 4))]
    return tuple((one / one.sum(-1, keepdims=True)).astype(SINGLE) for one in both)


def _positions(a, random):
    """A few rows of the same integers, that begin with a zero."""
    rows = np.tile(np.arange(random.integers(8, 30)), (random.integers(2, 9), 1))
    return rows, rows + random.integers(1, 4)


def _long_integers(a, random):
    """More than a float64 holds."""
    rows = random.integers(0, 2**62, a.shape)
    return rows, rows + random.integers(1, 4)


def _rows_again(a, random):
    """The second half is the first once more."""
    a = random.standard_normal((2 * random.integers(1, 4), 16)).astype(SINGLE)
    half = len(a) // 2
    return a, np.concatenate([a[:half], little(a[:half], random)])


def _relu_of_few_rows(a, random):
    return _relu(a[: random.integers(2, 6)], random)


def _transposed_and_scaled(a, random):
    square, turned = _transposed(a, random)
    return square, turned * SINGLE(random.choice((0.92, 1.04, 1.08)))


def _bf16_product(a, random):
    weight = random.standard_normal((a.shape[-1], a.shape[-1])).astype(SINGLE)
    return a @ weight, bf16(bf16(a) @ bf16(weight))


def _mixed(a, random):
    return a, (a * 1.1 + 0.1 + 0.1 * random.standard_normal(a.shape)).astype(SINGLE)


def _relu(a, random):
    more = 0.1 * random.standard_normal(a.shape)
    return np.maximum(a, 0), np.maximum(a + more, 0).astype(SINGLE)


def _large_row(a, random):
    a[0] *= 1000
    return a, (a * (1 + 0.01 * random.standard_normal(a.shape))).astype(SINGLE)


def _few(a, random):
    a = a.reshape(-1)[: random.integers(2, 30)]
    return a, (a * (1 + 1e-7 * random.standard_normal(a.shape))).astype(SINGLE)


def _nearly_constant(a, random):
    """Times a number and plus a number are the same here."""
    a = (5 + 1e-6 * random.standard_normal(a.shape)).astype(SINGLE)
    more = random.standard_normal(a.shape)
    return a, ((a * 1.02 if random.random() < 0.5 else a + 0.1) * (1 + 1e-5 * more)).astype(SINGLE)


MAKERS = {
    "rounded": _rounded,
    "scaled": lambda a, random: (a, little(a * SINGLE(random.choice((0.5, -1, 1.01, 1.3))), random)),
    "offset": lambda a, random: (a, little(a + SINGLE(random.choice((0.1, -1, 3))), random)),
    "bias": lambda a, random: (a, little(a + random.standard_normal(a.shape[-1]).astype(SINGLE), random)),
    "moved": _moved,
    "transposed": _transposed,
    "permuted": _permuted,
    "tail": lambda a, random: _part(a, random, "tail"),
    "shard": lambda a, random: _part(a, random, "shard"),
    "row": lambda a, random: _part(a, random, "row"),
    "masked": _masked,
    "masked weights": _masked_weights,
    "positions": _positions,
    "long integers": _long_integers,
    "rows again": _rows_again,
    "zeros": lambda a, random: (a, np.zeros_like(a)),
    "noise": lambda a, random: (a, little(a, random)),
    "much noise": lambda a, random: (a, (a + 0.05 * random.standard_normal(a.shape)).astype(SINGLE)),
    "unrelated": lambda a, random: (a, random.standard_normal(a.shape).astype(SINGLE)),
    "dropout": lambda a, random: (a, np.where(random.random(a.shape) < 0.3, 0, a)),
    "bf16 product": _bf16_product,
    "mixed": _mixed,
    "relu": _relu,
    "large row": _large_row,
    "few": _few,
    "nearly constant": _nearly_constant,
    "relu of few rows": _relu_of_few_rows,
    "transposed and scaled": _transposed_and_scaled,
    "huge": lambda a, random: (a.astype(np.float64) * 1e200, a.astype(np.float64) * 2e200),
}
