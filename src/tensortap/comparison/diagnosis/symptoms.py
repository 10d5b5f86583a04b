"""Scaled, shifted, rounded, .

The shape of a difference: what, if anything, can be said for sure of how B came from A.

Each detector is a predicate: a sentence where it is sure, nothing where it is not.

What numbers become when they are rounded to a shorter type.

What the values of one pair tell of how they came to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensortap.comparison.diagnosis import regions
from tensortap.comparison.diagnosis.verdict import Finding
from tensortap.comparison.layout.heads import sample_rows
from tensortap.comparison.layout.layouts import find_layout
from tensortap.comparison.layout.sampling import SampledFit, relative_distance
from tensortap.comparison.sharding.derived import load_numbers
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

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
    description: str


class DifferenceView:
    """Two arrays of one shape as float64, and what several detectors ask of them."""

    def __init__(self, a: Array, b: Array) -> None:
        self._arrays = a, b
        self.a, self.b = a.astype(np.float64), b.astype(np.float64)
        odd = ~((np.abs(self.a) < _HUGE) & (np.abs(self.b) < _HUGE))
        self.is_finite = not odd.any() or bool(np.array_equal(self.a[odd], self.b[odd], equal_nan=True))
        self.x, self.y = (np.where(odd, 0.0, array) if odd.any() else array for array in (self.a, self.b))

    @cached_property
    def difference(self) -> Array:
        """Of integers that a float64 cannot hold, as exactly as of others."""
        if not any(_exceeds_float64(array) for array in self._arrays):
            return np.asarray(self.y - self.x)
        a, b = (array.astype(object) for array in self._arrays)
        return np.asarray(b - a).astype(np.float64)

    @cached_property
    def difference_norm(self) -> float:
        return _norm(self.difference)

    @cached_property
    def is_constant(self) -> bool:
        return bool((self.x == self.x.flat[0]).all())

    @cached_property
    def gain(self) -> float:
        """What a factor is more than one."""
        square = float(np.vdot(self.x, self.x))
        return float(np.vdot(self.x, self.difference)) / square if square else 0.0

    @property
    def factor(self) -> float:
        return 1 + self.gain

    @cached_property
    def residuals(self) -> tuple[float, float]:
        """What a factor leaves of the difference, and what a summand does."""
        norm = self.difference_norm or 1.0
        return _norm(self.difference - self.gain * self.x) / norm, _norm(
            self.difference - self.difference.mean()
        ) / norm

    @cached_property
    def norm(self) -> float:
        return max(_norm(self.x), _norm(self.y))

    @property
    def is_large(self) -> bool:
        return self.difference_norm > _LARGE * self.norm


def find_symptoms(a: Array, b: Array) -> list[Symptom]:
    """All that is sure, the simplest first; nothing for equal arrays, few numbers, or other shapes."""
    if a.shape != b.shape or a.size < _MIN_NUMBERS or "c" in (a.dtype.kind, b.dtype.kind):
        return []
    view = DifferenceView(a, b)
    if not view.is_finite:
        return _run_detectors(view, {"masked": detect_masked})
    return _run_detectors(view, DETECTORS) if view.difference_norm else []


def _run_detectors(
    view: DifferenceView, detectors: dict[str, Callable[[DifferenceView], str]]
) -> list[Symptom]:
    symptoms: list[Symptom] = []
    for name, detector in detectors.items():
        # What explains all of it needs no place; what was moved is a permutation, too.
        if name in _EXPLAINED_BY_WHOLE and any(symptom.name in _EXPLAINING_ALL for symptom in symptoms):
            continue
        description = detector(view)
        if description:
            symptoms.append(Symptom(name, description))
    return symptoms


def detect_rounded(view: DifferenceView) -> str:
    """One side is the other, rounded to a shorter type: every number, exactly."""
    for source, rounded, name in ((view.x, view.y, "B"), (view.y, view.x, "A")):
        types = [dtype for dtype, round_to in ROUNDINGS.items() if _is_rounded(round_to, source, rounded)]
        if types and np.count_nonzero(source != rounded) >= _MIN_NUMBERS:
            return f"{name} is the other rounded to {' or '.join(types)}, in every number"
    return ""


def detect_zeros(view: DifferenceView) -> str:
    for values, zeros, name in ((view.x, view.y, "B"), (view.y, view.x, "A")):
        if not zeros.any() and np.count_nonzero(values) >= _MIN_NUMBERS:
            return f"{name} is all zeros"
    return ""


def detect_scaled(view: DifferenceView) -> str:
    if view.is_constant or not view.y.any() or np.count_nonzero(view.x) < _MIN_NUMBERS:
        return ""
    residual, offset_residual = view.residuals
    is_sure = abs(view.factor) >= _MAX_RESIDUAL and _explains(residual, offset_residual)
    return f"B is A times {view.factor:.4g}" if is_sure else ""


def detect_offset(view: DifferenceView) -> str:
    if view.is_constant:
        return ""
    scale_residual, residual = view.residuals
    return f"B is A plus {view.difference.mean():.4g}" if _explains(residual, scale_residual) else ""


def detect_bias(view: DifferenceView) -> str:
    """One vector is added to every row."""
    if view.x.ndim < 2 or view.x.shape[-1] < 2 or view.x.size < 4 * view.x.shape[-1] or detect_offset(view):
        return ""
    rows = view.difference.reshape(-1, view.x.shape[-1])
    values = view.x.reshape(rows.shape)
    vector = rows.mean(axis=0)
    is_same_row = _norm(values - values.mean(axis=0)) <= _LARGE * _norm(values)
    description = f"the same vector is added to every row of B (norm {_norm(vector):.4g}), as a bias is"
    return description if not is_same_row and _is_explained(view, rows - vector) else ""


def detect_moved(view: DifferenceView) -> str:
    """The same numbers, a few rows further."""
    if not view.is_large:
        return ""
    for axis, length in enumerate(view.x.shape):
        for rows in range(1, min(_MAX_SHIFT, length // 2) + 1):
            for sign in (1, -1):
                if _is_shifted(view, axis, sign * rows):
                    return f"B is A moved by {sign * rows:+d} along axis {axis}"
    return ""


def detect_transposed(view: DifferenceView) -> str:
    fit = find_layout(view.x, view.y) if view.is_large else None
    if fit is None or fit.layout is None or fit.error > _MAX_RESIDUAL:
        return ""
    return f"B is A up to {fit.layout.description}"


def detect_permuted(view: DifferenceView) -> str:
    """The same rows in another order, each found without doubt."""
    if not view.is_large:
        return ""
    for axis, length in enumerate(view.x.shape):
        order = _row_permutation(view, axis) if 2 <= length <= _MAX_ROWS else None
        if order is not None:
            width = _block_width(order)
            what = f"blocks of {width}" if width > 1 else "rows"
            moved_rows = int(np.count_nonzero(order != np.arange(length))) // width
            return f"{moved_rows} {what} of B stand elsewhere along axis {axis}: the same, in another order"
    return ""


def detect_part(view: DifferenceView) -> str:
    """Only the tail, one part, one row, a block: where along each axis the difference lies."""
    return regions.describe_region(view.difference, view.x)


def detect_masked(view: DifferenceView) -> str:
    """Numbers that one side alone hides, in a block or along diagonals."""
    return regions.describe_mask(view.a, view.b)


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


def _explains(residual: float, other_residual: float) -> bool:
    """Whether little is left, and much less than another explanation leaves."""
    return residual <= _MAX_RESIDUAL and _CLEAR_FACTOR * residual < other_residual


def _is_explained(view: DifferenceView, residual: Array) -> bool:
    return _norm(residual) <= _MAX_RESIDUAL * view.difference_norm


def _is_rounded(round_to: Callable[[Array], Array], source: Array, rounded: Array) -> bool:
    if source.size > _LARGE_SIZE and not np.array_equal(
        round_to(source.reshape(-1)[:_SAMPLE]), rounded.reshape(-1)[:_SAMPLE]
    ):
        return False
    return bool(np.array_equal(round_to(source), rounded))


def _is_shifted(view: DifferenceView, axis: int, rows: int) -> bool:
    x, y = np.moveaxis(view.x, axis, 0), np.moveaxis(view.y, axis, 0)
    vacated = slice(0, rows) if rows > 0 else slice(rows, None)
    # Where nothing was moved away, the others hold these rows once more.
    if _norm(x[vacated] - y[vacated]) <= _LARGE * _norm(x[vacated]):
        return False
    x, y = (x[:-rows], y[rows:]) if rows > 0 else (x[-rows:], y[:rows])
    if x.size > _LARGE_SIZE and not SampledFit(x, y, view.norm).could_match((), (), _MAX_RESIDUAL):
        return False
    is_enough = x.size >= _MIN_NUMBERS and _norm(x - x.mean(axis=0)) > _LARGE * _norm(x) > 0
    return is_enough and _norm(x - y) <= _MAX_RESIDUAL * _norm(x)


def _row_permutation(view: DifferenceView, axis: int) -> Array | None:
    """Which row of A each row of B is; None where one has no partner, or two."""
    if view.x.size > _LARGE_SIZE:
        order = _nearest_rows(*(sample_rows(values, axis) for values in (view.x, view.y)))
        is_match = (
            order is not None and relative_distance(np.take(view.x, order, axis), view.y) <= _MAX_RESIDUAL
        )
        return order if is_match else None
    x, y = (np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1) for values in (view.x, view.y))
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
    return numbers.dtype.kind in "iu" and bool(
        (np.abs(numbers.astype(np.float64)) >= _MAX_EXACT_INTEGER).any()
    )


def _norm(numbers: Array | Sequence[float]) -> float:
    return float(np.linalg.norm(numbers))


def _round_mantissa(bits: int) -> Callable[[Array], Array]:
    """Rounds a float32 to the nearest, with that many bits less; ties go to even."""

    def round_mantissa(numbers: Array) -> Array:
        with np.errstate(over="ignore"):
            words = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
        half = (1 << (bits - 1)) - 1 + ((words >> np.uint64(bits)) & np.uint64(1))
        rounded = ((words + half) >> np.uint64(bits)) << np.uint64(bits)
        return rounded.astype(np.uint32).view(np.float32).astype(np.float64)

    return round_mantissa


def _to_half(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16).astype(np.float64)


def _to_single(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(np.float64)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "float32": _to_single,
    "float16": _to_half,
    "tf32": _round_mantissa(13),
    "bfloat16": _round_mantissa(16),
}


def describe_symptoms(finding: Finding) -> list[str]:
    """Sentences that are sure; none for what is equal, and none where the values cannot be read any more."""
    metrics = finding.metrics
    if metrics is None or metrics.is_identical or metrics.reason or metrics.is_opaque:
        return []
    try:
        a, b = (load_numbers(entry.reference) for entry in (finding.pair.a, finding.pair.b))
    except (OSError, ValueError, TypeError, KeyError, TensortapError):
        return []
    return [] if a is None or b is None else [symptom.description for symptom in find_symptoms(a, b)]
