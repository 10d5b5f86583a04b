"""Whether parts one after another may be a whole, by a few numbers of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensortap.comparison.glimpse import absolute_distance, finite_norm
from tensortap.kernels.decode import Array

_PART_SAMPLE_SIZE = 256


class SampledConcatenation:
    """A whole of which several parts are tried at several places; each part at each place is seen once."""

    def __init__(self, full: Array, axis: int) -> None:
        self._full, self._axis = full, axis
        self._norm = finite_norm(full)
        self._squares: dict[tuple[int, int], float] = {}

    def could_match(self, parts: Sequence[Array], most: float) -> bool:
        """False where the parts leave more than that of the whole, nearly for sure."""
        start, square = 0, 0.0
        for part in parts:
            square += self._squared_error(part, start)
            start += part.shape[self._axis]
        return math.sqrt(square) <= 2 * most * self._norm

    def _squared_error(self, part: Array, start: int) -> float:
        key = id(part), start
        if key not in self._squares:
            self._squares[key] = self._sample_squared_error(part, start)
        return self._squares[key]

    def _sample_squared_error(self, part: Array, start: int) -> float:
        sample = np.unravel_index(
            np.random.default_rng(0).integers(0, part.size, _PART_SAMPLE_SIZE), part.shape
        )
        positions = tuple(index + start if axis == self._axis else index for axis, index in enumerate(sample))
        gap = absolute_distance(self._full[positions].astype(np.float64), part[sample].astype(np.float64))
        return gap**2 * part.size / _PART_SAMPLE_SIZE
