"""Symptoms of a difference: B is A scaled, shifted, rounded, transposed, permuted, masked...

Each detector returns a sentence if it is certain, else an empty string."""

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

_MIN_NUMBERS = 8  # smaller arrays show no symptom
_MAX_RESIDUAL = 0.02  # unexplained share of the difference
_CLEAR_FACTOR = 3.0  # the next best explanation must be so much worse
_LARGE = 0.1  # relative L2: smaller differences are no reordering
_MAX_SHIFT = 8  # rows
_MAX_ROWS = 8192
_LARGE_SIZE = 1 << 16  # larger arrays are tested on a sample first
_SAMPLE = 512
_HUGE = 1e150  # the square of larger numbers overflows
_MAX_EXACT_INTEGER = 1 << 53  # float64 cannot represent all larger integers


@dataclass(frozen=True, slots=True)
class Symptom:
    """A certain property of a difference."""

    name: str
    description: str


class DifferenceView:
    """Two arrays of one shape as float64, and quantities that several detectors need."""

    def __init__(self, a: Array, b: Array) -> None:
        self._arrays = a, b
        self.a, self.b = a.astype(np.float64), b.astype(np.float64)
        odd = ~((np.abs(self.a) < _HUGE) & (np.abs(self.b) < _HUGE))
        self.is_finite = not odd.any() or bool(np.array_equal(self.a[odd], self.b[odd], equal_nan=True))
        self.x, self.y = (np.where(odd, 0.0, array) if odd.any() else array for array in (self.a, self.b))

    @cached_property
    def difference(self) -> Array:
        """b - a, exact also for integers that float64 cannot represent."""
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
        """The best-fitting factor minus 1."""
        square = float(np.vdot(self.x, self.x))
        return float(np.vdot(self.x, self.difference)) / square if square else 0.0

    @property
    def factor(self) -> float:
        return 1 + self.gain

    @cached_property
    def residuals(self) -> tuple[float, float]:
        """The share of the difference that the best factor leaves, and that the best offset leaves."""
        norm = self.difference_norm or 1.0
        scaled = _norm(self.difference - self.gain * self.x) / norm
        shifted = _norm(self.difference - self.difference.mean()) / norm
        return scaled, shifted

    @cached_property
    def norm(self) -> float:
        return max(_norm(self.x), _norm(self.y))

    @property
    def is_large(self) -> bool:
        return self.difference_norm > _LARGE * self.norm


def find_symptoms(a: Array, b: Array) -> list[Symptom]:
    """All certain symptoms, the simplest first; none for equal or small arrays, or of different shapes."""
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
        # A difference that is fully explained needs no region; a shift is a permutation, too.
        if name in _SKIPPED_IF_EXPLAINED and any(symptom.name in _FULL_EXPLANATIONS for symptom in symptoms):
            continue
        description = detector(view)
        if description:
            symptoms.append(Symptom(name, description))
    return symptoms


def detect_rounded(view: DifferenceView) -> str:
    """One side is exactly the other, rounded to a lower precision."""
    for source, rounded, name in ((view.x, view.y, "B"), (view.y, view.x, "A")):
        dtypes = [dtype for dtype, round_to in ROUNDINGS.items() if _is_rounded(round_to, source, rounded)]
        if dtypes and np.count_nonzero(source != rounded) >= _MIN_NUMBERS:
            return f"{name} is the other rounded to {' or '.join(dtypes)}, in every number"
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
    """The same numbers, shifted by a few rows."""
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
    """The same rows in another order, each identified with certainty."""
    if not view.is_large:
        return ""
    for axis, length in enumerate(view.x.shape):
        order = _row_permutation(view, axis) if 2 <= length <= _MAX_ROWS else None
        if order is not None:
            width = _block_width(order)
            unit = f"blocks of {width}" if width > 1 else "rows"
            moved = int(np.count_nonzero(order != np.arange(length))) // width
            return f"{moved} {unit} of B stand elsewhere along axis {axis}: the same, in another order"
    return ""


def detect_part(view: DifferenceView) -> str:
    """The region of the difference along each axis: the tail, a shard, a row, a block."""
    return regions.describe_region(view.difference, view.x)


def detect_masked(view: DifferenceView) -> str:
    """Numbers masked on one side only, in a block or along diagonals."""
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
_SKIPPED_IF_EXPLAINED = ("moved", "transposed", "permuted", "part")
_FULL_EXPLANATIONS = ("zeros", "rounded", "scaled", "offset", "bias", "moved", "transposed")


def _explains(residual: float, other_residual: float) -> bool:
    """Whether the residual is small, and much smaller than that of the other explanation."""
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
    # If the vacated rows did not change, nothing was shifted.
    if _norm(x[vacated] - y[vacated]) <= _LARGE * _norm(x[vacated]):
        return False
    x, y = (x[:-rows], y[rows:]) if rows > 0 else (x[-rows:], y[:rows])
    if x.size > _LARGE_SIZE and not SampledFit(x, y, view.norm).could_match((), (), _MAX_RESIDUAL):
        return False
    is_enough = x.size >= _MIN_NUMBERS and _norm(x - x.mean(axis=0)) > _LARGE * _norm(x) > 0
    return is_enough and _norm(x - y) <= _MAX_RESIDUAL * _norm(x)


def _row_permutation(view: DifferenceView, axis: int) -> Array | None:
    """For each row of B its row in A; None if the match is not one to one."""
    if view.x.size > _LARGE_SIZE:
        order = _nearest_rows(*(sample_rows(values, axis) for values in (view.x, view.y)))
        is_match = (
            order is not None and relative_distance(np.take(view.x, order, axis), view.y) <= _MAX_RESIDUAL
        )
        return order if is_match else None
    x, y = (np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1) for values in (view.x, view.y))
    return _nearest_rows(x, y) if x.shape[1] > 1 else None


def _nearest_rows(x: Array, y: Array) -> Array | None:
    # A few rows rule out most arrays.
    if len(y) > _MIN_NUMBERS * _MIN_NUMBERS and _matching_rows(x, y[:_MIN_NUMBERS]) is None:
        return None
    order = _matching_rows(x, y)
    if order is None or len(np.unique(order)) < len(order) or np.array_equal(order, np.arange(len(y))):
        return None
    return order


def _matching_rows(x: Array, y: Array) -> Array | None:
    """For each row of y its row in x; None if any is uncertain."""
    squares = (x**2).sum(1), (y**2).sum(1)
    distances = np.sqrt(np.maximum(squares[1][:, None] + squares[0][None] - 2 * (y @ x.T), 0))
    nearest, next_best = np.partition(distances, 1, axis=1)[:, :2].T
    scale = np.sqrt(squares[1])
    is_sure = (nearest <= _MAX_RESIDUAL * scale) & (next_best > 5 * _MAX_RESIDUAL * scale)
    return distances.argmin(axis=1) if is_sure.all() else None


def _block_width(order: Array) -> int:
    """The width of the largest blocks that keep their order."""
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
    """Rounds a float32 to a mantissa with that many bits less, to nearest, ties to even."""

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
    """Descriptions of all certain symptoms; none for equal or unreadable values."""
    metrics = finding.metrics
    if metrics is None or metrics.is_identical or metrics.reason or metrics.is_opaque:
        return []
    try:
        a, b = (load_numbers(entry.reference) for entry in (finding.pair.a, finding.pair.b))
    except (OSError, ValueError, TypeError, KeyError, TensortapError):
        return []
    return [] if a is None or b is None else [symptom.description for symptom in find_symptoms(a, b)]
