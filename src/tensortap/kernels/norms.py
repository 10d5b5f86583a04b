"""Dot products and Euclidean norms in float64, without overflow and without starting threads."""

import math

import numpy as np

from tensortap.kernels.decode import Array

# BLAS starts threads for longer products, which costs more than it saves while the cores are busy.
_BLAS_CHUNK = 8192
_SAFE_SQUARES = (1e-280, 1e300)
_MIN_DIVISOR, _MAX_DIVISOR = 1e-100, 1e100  # between them, dividing is safe


def dot(x: Array, y: Array) -> float:
    """The dot product of two flat, contiguous, real arrays."""
    chunked = x.size - x.size % _BLAS_CHUNK
    rest = float(np.dot(x[chunked:], y[chunked:]))
    if not chunked:
        return rest
    runs = np.matmul(x[:chunked].reshape(-1, 1, _BLAS_CHUNK), y[:chunked].reshape(-1, _BLAS_CHUNK, 1))
    return float(runs.sum()) + rest


def sum_float64(x: Array) -> float:
    """The sum of a flat float64 array."""
    return float(x.sum())


def norm(x: Array) -> float:
    squares = dot(x, x)
    return math.sqrt(squares) if _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1] else _scaled_norm(x)


class RunningNorm:
    """The Euclidean norm of everything added, as a running sum of squares; values whose squares would
    overflow or underflow are kept apart."""

    __slots__ = ("_extreme", "_squares")

    def __init__(self) -> None:
        self._squares = 0.0
        self._extreme = 0.0

    def add(self, part: float) -> None:
        self.add_squares(part * part, part)

    def add_squares(self, squares: float, part: float | None = None) -> None:
        """Add a sum of squares; `part` is the norm it belongs to, if known."""
        if _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1]:
            self._squares += squares
        else:
            self._extreme = math.hypot(self._extreme, math.sqrt(squares) if part is None else part)

    def join(self, other: "RunningNorm") -> None:
        self._squares += other._squares
        self._extreme = math.hypot(self._extreme, other._extreme)

    @property
    def value(self) -> float:
        return math.hypot(math.sqrt(self._squares), self._extreme)


class ScaledSum:
    """A running sum that may exceed the range of float64: a mantissa and a power of two."""

    __slots__ = ("_exponent", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._exponent = 0

    def add(self, part: float, exponent: int = 0) -> None:
        if exponent == self._exponent:
            self._set_sum(self._value, part, exponent)
        elif part and (not self._value or exponent > self._exponent):
            shifted = math.ldexp(self._value, max(self._exponent - exponent, -2000))
            self._set_sum(part, shifted, exponent)
        elif part:
            shifted = math.ldexp(part, max(exponent - self._exponent, -2000))
            self._set_sum(self._value, shifted, self._exponent)

    def _set_sum(self, x: float, y: float, exponent: int) -> None:
        """Two numbers of that exponent, summed; halved where the sum of finite ones would overflow."""
        value = x + y
        if math.isinf(value) and math.isfinite(x) and math.isfinite(y):
            value, exponent = x / 2 + y / 2, exponent + 1
        self._value, self._exponent = value, exponent

    def join(self, other: "ScaledSum") -> None:
        self.add(other._value, other._exponent)

    def divided_by(self, *divisors: float) -> float:
        """The sum divided by each divisor in turn."""
        value, exponent = self._value, self._exponent
        if not exponent:
            for divisor in divisors:
                if not _MIN_DIVISOR < divisor < _MAX_DIVISOR:
                    break
                value /= divisor
            else:
                if _SAFE_SQUARES[0] < abs(value) < _SAFE_SQUARES[1] or not self._value:
                    return value
            value = self._value
        value, shift = math.frexp(value)  # first: the mantissa of a divisor may be less than one
        exponent += shift
        for divisor in divisors:
            small, power = math.frexp(divisor)
            value, shift = math.frexp(value / small)
            exponent += shift - power
        try:
            return math.ldexp(value, exponent)
        except OverflowError:
            return math.copysign(math.inf, value)


def scaled_sum(x: Array) -> tuple[float, int]:
    """The sum of a flat array, as a mantissa and a power of two."""
    total = sum_float64(x)
    if math.isfinite(total) or not x.size:
        return total, 0
    small, exponent = scale_down(x)
    return sum_float64(small), exponent


def scaled_dot(x: Array, y: Array) -> tuple[float, int]:
    """The dot product of two flat arrays, as a mantissa and a power of two."""
    product = dot(x, y)
    if _SAFE_SQUARES[0] < abs(product) < _SAFE_SQUARES[1] or not x.any() or not y.any():
        return product, 0
    (x_small, x_exponent), (y_small, y_exponent) = scale_down(x), scale_down(y)
    return dot(x_small, y_small), x_exponent + y_exponent


def scale_down(x: Array) -> tuple[Array, int]:
    """The array divided by a power of two so that the largest magnitude is below one, and the exponent."""
    _, exponent = math.frexp(float(np.max(np.abs(x))))
    return np.ldexp(x, -exponent), exponent


def _scaled_norm(x: Array) -> float:
    # Without an array of the magnitudes: scratch memory is limited.
    peak = max(float(x.max(initial=0.0)), -float(x.min(initial=0.0)))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    small, exponent = scale_down(x)
    return float(np.ldexp(math.sqrt(dot(small, small)), exponent))
