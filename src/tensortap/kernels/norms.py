"""Sums of products and Euclidean norms in float64, without overflow and without starting threads."""

import math
from functools import lru_cache

import numpy as np

from tensortap.kernels.numbers import Array

# BLAS starts threads for longer products, which costs more than it saves while the cores are busy.
_RUN = 8192
_SAFE = (1e-280, 1e300)


def dot(x: Array, y: Array) -> float:
    """The inner product of two flat, contiguous, real arrays."""
    whole = x.size - x.size % _RUN
    rest = float(np.dot(x[whole:], y[whole:]))
    if not whole:
        return rest
    runs = np.matmul(x[:whole].reshape(-1, 1, _RUN), y[:whole].reshape(-1, _RUN, 1))
    return float(runs.sum()) + rest


def total(x: Array) -> float:
    """The sum of a flat, contiguous float64 array; as a product with ones it is several times faster."""
    whole = x.size - x.size % _RUN
    rest = float(x[whole:].sum())
    if not whole:
        return rest
    runs = np.matmul(x[:whole].reshape(-1, 1, _RUN), _ones())
    return float(runs.sum()) + rest


def norm(x: Array) -> float:
    squares = dot(x, x)
    return math.sqrt(squares) if _SAFE[0] < squares < _SAFE[1] else _scaled_norm(x)


class Norm:
    """The Euclidean norm of everything added, as a running sum of squares; what would overflow or
    vanish when squared is kept apart."""

    __slots__ = ("_extreme", "_squares")

    def __init__(self) -> None:
        self._squares = 0.0
        self._extreme = 0.0

    def add(self, part: float) -> None:
        squares = part * part
        if _SAFE[0] < squares < _SAFE[1]:
            self._squares += squares
        else:
            self._extreme = math.hypot(self._extreme, part)

    @property
    def value(self) -> float:
        return math.hypot(math.sqrt(self._squares), self._extreme)


def scaled(x: Array) -> tuple[Array, int]:
    """The numbers divided by a power of two so that the largest lies below one, and its exponent."""
    _, exponent = math.frexp(float(np.max(np.abs(x))))
    return np.ldexp(x, -exponent), exponent


def _scaled_norm(x: Array) -> float:
    peak = float(np.max(np.abs(x), initial=0.0))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    small, exponent = scaled(x)
    return float(np.ldexp(math.sqrt(dot(small, small)), exponent))


@lru_cache(maxsize=1)
def _ones() -> Array:
    return np.ones((_RUN, 1))
