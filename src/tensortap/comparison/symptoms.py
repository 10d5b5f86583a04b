"""The shape of a difference: what, if anything, can be said for sure of how B came from A.

Each detector is a predicate: a sentence where it is sure, nothing where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensortap.comparison import regions
from tensortap.comparison.glimpse import SampledFit, relative_distance
from tensortap.comparison.heads import sample_rows
from tensortap.comparison.layouts import find_layout
from tensortap.comparison.roundings import ROUNDINGS
from tensortap.kernels.numbers import Array

_MIN_NUMBERS = 8  # numbers: of fewer, nothing is said
_MAX_RESIDUAL = 0.02  # so much of a difference may remain unexplained
_CLEAR_FACTOR = 3.0  # by how much the next best must be worse
_LARGE = 0.1  # of the whole: what is smaller is not taken for another order
_MAX_SHIFT = 8  # rows that something may have moved
_MAX_ROWS = 8192
_LARGE_SIZE = 1 << 16  # numbers: of so many a part is looked at first
_SAMPLE = 512
_HUGE = 1e150  # beyond it, a number has no square
_MAX_EXACT_INTEGER = 1 << 53  # integers: beyond it, a float64 leaves some out


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a detector is sure of."""

    name: str
    told: str


class DifferenceView:
    """Two arrays of one shape as float64, and what several detectors ask of them."""

    def __init__(self, a: Array, b: Array) -> None:
        self._given = a, b
        self.a, self.b = a.astype(np.float64), b.astype(np.float64)
        odd = ~((np.abs(self.a) < _HUGE) & (np.abs(self.b) < _HUGE))
        self.is_finite = not odd.any() or bool(np.array_equal(self.a[odd], self.b[odd], equal_nan=True))
        self.x, self.y = (np.where(odd, 0.0, one) if odd.any() else one for one in (self.a, self.b))

    @cached_property
    def apart(self) -> Array:
        """Of integers that a float64 cannot hold, as exactly as of others."""
        if not any(_exceeds_float64(one) for one in self._given):
            return np.asarray(self.y - self.x)
        a, b = (one.astype(object) for one in self._given)
        return np.asarray(b - a).astype(np.float64)

    @cached_property
    def size(self) -> float:
        return _norm(self.apart)

    @cached_property
    def is_constant(self) -> bool:
        return bool((self.x == self.x.flat[0]).all())

    @cached_property
    def gain(self) -> float:
        """What a factor is more than one."""
        square = float(np.vdot(self.x, self.x))
        return float(np.vdot(self.x, self.apart)) / square if square else 0.0

    @property
    def factor(self) -> float:
        return 1 + self.gain

    @cached_property
    def rests(self) -> tuple[float, float]:
        """What a factor leaves of the difference, and what a summand does."""
        apart = self.size or 1.0
        return _norm(self.apart - self.gain * self.x) / apart, _norm(self.apart - self.apart.mean()) / apart

    @cached_property
    def norm(self) -> float:
        return max(_norm(self.x), _norm(self.y))

    @property
    def is_large(self) -> bool:
        return self.size > _LARGE * self.norm


def find_symptoms(a: Array, b: Array) -> list[Symptom]:
    """All that is sure, the simplest first; nothing for equal arrays, few numbers, or other shapes."""
    if a.shape != b.shape or a.size < _MIN_NUMBERS or "c" in (a.dtype.kind, b.dtype.kind):
        return []
    look = DifferenceView(a, b)
    if not look.is_finite:
        return _run_detectors(look, {"masked": detect_masked})
    return _run_detectors(look, DETECTORS) if look.size else []


def _run_detectors(look: DifferenceView, detectors: dict[str, Callable[[DifferenceView], str]]) -> list[Symptom]:
    found: list[Symptom] = []
    for name, detector in detectors.items():
        # What explains all of it needs no place; what was moved is a permutation, too.
        if name in _EXPLAINED_BY_WHOLE and any(one.name in _EXPLAINING_ALL for one in found):
            continue
        told = detector(look)
        if told:
            found.append(Symptom(name, told))
    return found


def detect_rounded(look: DifferenceView) -> str:
    """One side is the other, rounded to a shorter type: every number, exactly."""
    for one, other, name in ((look.x, look.y, "B"), (look.y, look.x, "A")):
        types = [what for what, cut in ROUNDINGS.items() if _is_rounded(cut, one, other)]
        if types and np.count_nonzero(one != other) >= _MIN_NUMBERS:
            return f"{name} is the other rounded to {' or '.join(types)}, in every number"
    return ""


def detect_zeros(look: DifferenceView) -> str:
    for one, other, name in ((look.x, look.y, "B"), (look.y, look.x, "A")):
        if not other.any() and np.count_nonzero(one) >= _MIN_NUMBERS:
            return f"{name} is all zeros"
    return ""


def detect_scaled(look: DifferenceView) -> str:
    if look.is_constant or not look.y.any() or np.count_nonzero(look.x) < _MIN_NUMBERS:
        return ""
    rest, other = look.rests
    is_sure = abs(look.factor) >= _MAX_RESIDUAL and _explains(rest, other)
    return f"B is A times {look.factor:.4g}" if is_sure else ""


def detect_offset(look: DifferenceView) -> str:
    if look.is_constant:
        return ""
    other, rest = look.rests
    return f"B is A plus {look.apart.mean():.4g}" if _explains(rest, other) else ""


def detect_bias(look: DifferenceView) -> str:
    """One vector is added to every row."""
    if look.x.ndim < 2 or look.x.shape[-1] < 2 or look.x.size < 4 * look.x.shape[-1] or detect_offset(look):
        return ""
    rows = look.apart.reshape(-1, look.x.shape[-1])
    values = look.x.reshape(rows.shape)
    vector = rows.mean(axis=0)
    is_same_row = _norm(values - values.mean(axis=0)) <= _LARGE * _norm(values)
    told = f"the same vector is added to every row of B (norm {_norm(vector):.4g}), as a bias is"
    return told if not is_same_row and _is_explained(look, rows - vector) else ""


def detect_moved(look: DifferenceView) -> str:
    """The same numbers, a few rows further."""
    if not look.is_large:
        return ""
    for axis, length in enumerate(look.x.shape):
        for rows in range(1, min(_MAX_SHIFT, length // 2) + 1):
            for sign in (1, -1):
                if _is_shifted(look, axis, sign * rows):
                    return f"B is A moved by {sign * rows:+d} along axis {axis}"
    return ""


def detect_transposed(look: DifferenceView) -> str:
    found = find_layout(look.x, look.y) if look.is_large else None
    if found is None or found.layout is None or found.error > _MAX_RESIDUAL:
        return ""
    return f"B is A up to {found.layout.description}"


def detect_permuted(look: DifferenceView) -> str:
    """The same rows in another order, each found without doubt."""
    if not look.is_large:
        return ""
    for axis, length in enumerate(look.x.shape):
        order = _row_permutation(look, axis) if 2 <= length <= _MAX_ROWS else None
        if order is not None:
            width = _block_width(order)
            what = f"blocks of {width}" if width > 1 else "rows"
            moved_rows = int(np.count_nonzero(order != np.arange(length))) // width
            return f"{moved_rows} {what} of B stand elsewhere along axis {axis}: the same, in another order"
    return ""


def detect_part(look: DifferenceView) -> str:
    """Only the tail, one part, one row, a block: where along each axis the difference lies."""
    return regions.describe_region(look.apart, look.x)


def detect_masked(look: DifferenceView) -> str:
    """Numbers that one side alone hides, in a block or along diagonals."""
    return regions.describe_mask(look.a, look.b)


DETECTORS: dict[str, Callable[[DifferenceView], str]] = {
    "zeros": detect_zeros,
    "rounded": detect_rounded,
    "scaled": detect_scaled,
    "offset": detect_offset,
    "bias": detect_bias,
    "moved": detect_moved,
    "transposed": detect_transposed,
    "permuted": detect_permuted,
    "part": detect_part,
    "masked": detect_masked,
}
_EXPLAINED_BY_WHOLE = ("moved", "transposed", "permuted", "part")
_EXPLAINING_ALL = ("zeros", "rounded", "scaled", "offset", "bias", "moved", "transposed")


def _explains(rest: float, other: float) -> bool:
    """Whether little is left, and much less than another explanation leaves."""
    return rest <= _MAX_RESIDUAL and _CLEAR_FACTOR * rest < other


def _is_explained(look: DifferenceView, left: Array) -> bool:
    return _norm(left) <= _MAX_RESIDUAL * look.size


def _is_rounded(cut: Callable[[Array], Array], one: Array, other: Array) -> bool:
    if one.size > _LARGE_SIZE and not np.array_equal(cut(one.reshape(-1)[:_SAMPLE]), other.reshape(-1)[:_SAMPLE]):
        return False
    return bool(np.array_equal(cut(one), other))


def _is_shifted(look: DifferenceView, axis: int, rows: int) -> bool:
    x, y = np.moveaxis(look.x, axis, 0), np.moveaxis(look.y, axis, 0)
    left = slice(0, rows) if rows > 0 else slice(rows, None)
    # Where nothing was moved away, the others hold these rows once more.
    if _norm(x[left] - y[left]) <= _LARGE * _norm(x[left]):
        return False
    x, y = (x[:-rows], y[rows:]) if rows > 0 else (x[-rows:], y[:rows])
    if x.size > _LARGE_SIZE and not SampledFit(x, y, look.norm).could_match((), (), _MAX_RESIDUAL):
        return False
    is_enough = x.size >= _MIN_NUMBERS and _norm(x - x.mean(axis=0)) > _LARGE * _norm(x) > 0
    return is_enough and _norm(x - y) <= _MAX_RESIDUAL * _norm(x)


def _row_permutation(look: DifferenceView, axis: int) -> Array | None:
    """Which row of A each row of B is; None where one has no partner, or two."""
    if look.x.size > _LARGE_SIZE:
        order = _nearest_rows(*(sample_rows(one, axis) for one in (look.x, look.y)))
        is_right = order is not None and relative_distance(np.take(look.x, order, axis), look.y) <= _MAX_RESIDUAL
        return order if is_right else None
    x, y = (np.moveaxis(one, axis, 0).reshape(one.shape[axis], -1) for one in (look.x, look.y))
    return _nearest_rows(x, y) if x.shape[1] > 1 else None


def _nearest_rows(x: Array, y: Array) -> Array | None:
    # A few rows tell most of what is no other order.
    if len(y) > _MIN_NUMBERS * _MIN_NUMBERS and _matching_rows(x, y[:_MIN_NUMBERS]) is None:
        return None
    order = _matching_rows(x, y)
    if order is None or len(np.unique(order)) < len(order) or np.array_equal(order, np.arange(len(y))):
        return None
    return order


def _matching_rows(x: Array, y: Array) -> Array | None:
    """The row of x that each of y is; None where one is not sure."""
    squares = (x**2).sum(1), (y**2).sum(1)
    distances = np.sqrt(np.maximum(squares[1][:, None] + squares[0][None] - 2 * (y @ x.T), 0))
    nearest, next_best = np.partition(distances, 1, axis=1)[:, :2].T
    scale = np.sqrt(squares[1])
    is_sure = (nearest <= _MAX_RESIDUAL * scale) & (next_best > 5 * _MAX_RESIDUAL * scale)
    return distances.argmin(axis=1) if is_sure.all() else None


def _block_width(order: Array) -> int:
    """The widest blocks that stay together."""
    for width in (size for size in range(len(order) // 2, 1, -1) if len(order) % size == 0):
        blocks = order.reshape(-1, width)
        if (blocks[:, 0] % width == 0).all() and (np.diff(blocks, axis=1) == 1).all():
            return width
    return 1


def _exceeds_float64(numbers: Array) -> bool:
    return numbers.dtype.kind in "iu" and bool((np.abs(numbers.astype(np.float64)) >= _MAX_EXACT_INTEGER).any())


def _norm(numbers: Array | Sequence[float]) -> float:
    return float(np.linalg.norm(numbers))
