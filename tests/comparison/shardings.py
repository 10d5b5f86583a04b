"""Random shardings with the way that made them, and pairs of arrays with what was done to them."""

import numpy as np

SECTIONS = ((1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1))
SHARDINGS = ("replicate", "shard", "partial", "mean", "zigzag", "fused", "mesh")
NOISES = (0.0, 2.0**-24, 2.0**-9, 1e-2, 3e-2)


def sharding(seed):
    """A whole, its pieces with noise of their own, and the whole that they make without it."""
    random = np.random.default_rng(seed)
    kind, count = str(random.choice(SHARDINGS)), int(random.choice((2, 4)))
    shape = random.integers(3, 20, random.integers(1, 4)).tolist()
    dim, is_balanced = int(random.integers(len(shape))), bool(random.integers(2))
    sections = SECTIONS[random.integers(len(SECTIONS))]
    count = 4 if kind == "mesh" else count
    shape = _fitted(kind, shape, dim, count, sections, random)
    whole = random.standard_normal(shape) + random.choice((0, 0, 1))
    pieces, words = _cut(kind, whole, dim, count, sections, is_balanced, random)
    noise = float(random.choice(NOISES)) * np.sqrt(np.mean(whole**2))
    return whole, [piece + noise * random.standard_normal(piece.shape) for piece in pieces], words


def _fitted(kind, shape, dim, count, sections, random):
    shape = list(shape)
    if kind == "zigzag":
        shape[dim] = int(random.integers(2 * count, 40))
    elif kind == "fused":
        shape[dim] = sum(sections) * int(random.integers(count, 12))
    elif kind == "shard":
        shape[dim] = max(shape[dim], count)
    elif kind == "mesh":
        shape = [4 * int(random.integers(1, 4)) for _ in shape]
    return shape


def _cut(kind, whole, dim, count, sections, is_balanced, random):
    if kind == "replicate":
        return [whole] * count, "replicate"
    if kind in ("partial", "mean"):
        parts = [random.standard_normal(whole.shape) for _ in range(count - 1)]
        total = whole * (count if kind == "mean" else 1)
        return [*parts, total - sum(parts)], "partial(mean)" if kind == "mean" else "partial(sum)"
    if kind == "shard":
        return chunks(whole, dim, count, is_balanced), f"shard({dim})"
    if kind == "zigzag":
        parts = chunks(whole, dim, 2 * count, is_balanced)
        made = [np.concatenate([parts[n], parts[2 * count - 1 - n]], dim) for n in range(count)]
        return made, f"shard({dim}) zigzag"
    if kind == "fused":
        return _fused(whole, dim, count, sections, is_balanced)
    return _mesh(whole, dim, random)


def _fused(whole, dim, count, sections, is_balanced):
    ends = np.cumsum(sections)[:-1] * (whole.shape[dim] // sum(sections))
    parts = [chunks(section, dim, count, is_balanced) for section in np.split(whole, ends, dim)]
    made = [np.concatenate([part[n] for part in parts], dim) for n in range(count)]
    return made, f"shard({dim}) fused {':'.join(map(str, sections))}"


def _mesh(whole, dim, random):
    other = (dim + 1) % whole.ndim
    words = {"replicate": None, "partial(sum)": None, f"shard({dim})": dim, f"shard({other})": other}
    outer, inner = random.choice(list(words), 2, replace=False).tolist()

    def split(value, word):
        if word == "replicate":
            return [value, value]
        if word == "partial(sum)":
            part = random.standard_normal(value.shape)
            return [part, value - part]
        return np.split(value, 2, words[word])

    pieces = [piece for half in split(whole, outer) for piece in split(half, inner)]
    return pieces, f"{outer} x {inner} of a 2 x 2 mesh"


def chunks(value, dim, count, is_balanced=False):
    """As numpy's array_split cuts, or as torch's chunk does."""
    if is_balanced:
        return np.array_split(value, count, dim)
    step = -(-value.shape[dim] // count)
    return [
        np.take(value, range(min(step * n, value.shape[dim]), min(step * (n + 1), value.shape[dim])), dim)
        for n in range(count)
    ]
