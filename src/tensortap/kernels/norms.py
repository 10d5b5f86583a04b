"""Sums of products and Euclidean norms in float64, without overflow and without starting threads."""

import math

import numpy as np

from tensortap.kernels.numbers import Array

# BLAS starts threads for longer products, which costs more than it saves while the cores are busy.
_RUN = 8192
_SAFE = (1e-280, 1e300)
_LEAST, _MOST = 1e-100, 1e100  # between them, numbers need no care


def dot(x: Array, y: Array) -> float:
    """The inner product of two flat, contiguous, real arrays."""
    whole = x.size - x.size % _RUN
    rest = float(np.dot(x[whole:], y[whole:]))
    if not whole:
        return rest
    runs = np.matmul(x[:whole].reshape(-1, 1, _RUN), y[:whole].reshape(-1, _RUN, 1))
    return float(runs.sum()) + rest


def total(x: Array) -> float:
    """The sum of a flat float64 array."""
    return float(x.sum())


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
        self.add_squares(part * part, part)

    def add_squares(self, squares: float, part: float | None = None) -> None:
        """The sum of squares, with the part they are of where it is known."""
        if _SAFE[0] < squares < _SAFE[1]:
            self._squares += squares
        else:
            self._extreme = math.hypot(self._extreme, math.sqrt(squares) if part is None else part)

    def join(self, other: "Norm") -> None:
        self._squares += other._squares
        self._extreme = math.hypot(self._extreme, other._extreme)

    @property
    def value(self) -> float:
        return math.hypot(math.sqrt(self._squares), self._extreme)


class Sum:
    """A running sum that may lie beyond the reach of float64: a number times a power of two."""

    __slots__ = ("_exponent", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._exponent = 0

    def add(self, part: float, exponent: int = 0) -> None:
        if exponent == self._exponent:
            self._value += part
        elif part and (not self._value or exponent > self._exponent):
            self._value = part + math.ldexp(self._value, max(self._exponent - exponent, -2000))
            self._exponent = exponent
        elif part:
            self._value += math.ldexp(part, max(exponent - self._exponent, -2000))

    def join(self, other: "Sum") -> None:
        self.add(other._value, other._exponent)

    def over(self, *divisors: float) -> float:
        """The sum divided by each of these in turn."""
        value, exponent = self._value, self._exponent
        if not exponent:
            for divisor in divisors:
                if not _LEAST < divisor < _MOST:
                    break
                value /= divisor
            else:
                if _SAFE[0] < abs(value) < _SAFE[1] or not self._value:
                    return value
            value = self._value
        for divisor in divisors:
            small, power = math.frexp(divisor)
            value, shift = math.frexp(value / small)
            exponent += shift - power
        try:
            return math.ldexp(value, exponent)
        except OverflowError:
            return math.copysign(math.inf, value)


def sum_of(x: Array) -> tuple[float, int]:
    """The sum of a flat array, as a number and a power of two."""
    whole = total(x)
    if math.isfinite(whole) or not x.size:
        return whole, 0
    small, exponent = scaled(x)
    return total(small), exponent


def product_of(x: Array, y: Array) -> tuple[float, int]:
    """The inner product of two flat arrays, as a number and a power of two."""
    whole = dot(x, y)
    if _SAFE[0] < abs(whole) < _SAFE[1] or not x.any() or not y.any():
        return whole, 0
    (x_small, x_exponent), (y_small, y_exponent) = scaled(x), scaled(y)
    return dot(x_small, y_small), x_exponent + y_exponent


def scaled(x: Array) -> tuple[Array, int]:
    """The numbers divided by a power of two so that the largest lies below one, and its exponent."""
    _, exponent = math.frexp(float(np.max(np.abs(x))))
    return np.ldexp(x, -exponent), exponent


def _scaled_norm(x: Array) -> float:
    # Without an array of the sizes: scratch is counted.
    peak = max(float(x.max(initial=0.0)), -float(x.min(initial=0.0)))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    small, exponent = scaled(x)
    return float(np.ldexp(math.sqrt(dot(small, small)), exponent))
