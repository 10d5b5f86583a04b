"""How two values differ, and the same of what the kernels found in many pairs at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tensortap.comparison.masks import mask_threshold
from tensortap.kernels.accumulator import LargestDifference, cosine_distance_from_shares, unravel_index
from tensortap.kernels.batched import PairDifferences, PairLayout, PairReport

_NORM_TOLERANCE = 1e-12  # by so much the order of adding up may move a norm


class _LazyReport:
    """What the kernels reported of a pair: most of it is asked for of few pairs, and made when it is."""

    __slots__ = ("_report", "_shape")
    _report: PairReport | None
    _shape: tuple[int, ...]

    if not TYPE_CHECKING:  # it would let any name pass

        def __getattr__(self, name: str) -> Any:
            # Only what was left open comes here: `metrics_from_report` fills the others.
            if name not in _LAZY_FIELDS:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            for field_name, value in zip(
                _LAZY_FIELDS, _unpack_report(self._report, self._shape), strict=True
            ):
                setattr(self, field_name, value)
            return getattr(self, name)


# Not frozen: one is made for every pair, and freezing takes seven times as long. Nobody changes it.
@dataclass(slots=True)
class Metrics(_LazyReport):
    """How two values differ. Everything relative speaks of the larger side, so it is the same seen from
    either. `row` and `column` are the worst along the last axis and across it, with their positions.

    `reason` says why nothing was measured: another shape, another structure. `is_opaque` means that the
    values are neither numbers nor text, so that a difference between them says nothing."""

    count: int = 0
    is_identical: bool = False
    is_discrete: bool = False
    relative_l2: float = 0.0
    row: float = 0.0
    column: float = 0.0
    worst_row: int = -1
    worst_column: int = -1
    absolute: LargestDifference | None = None
    cosine_distance: float | None = None
    gain: float | None = None
    bias: float = 0.0
    mismatches: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0  # not finite on one side, something else on the other
    masked: int = 0  # of those: minus infinity on one side, a number on the other
    norms: tuple[float, float] = (0.0, 0.0)
    part: str = ""  # of a nested value: the leaf that differs most
    reason: str = ""
    is_opaque: bool = False

    @property
    def is_nonfinite(self) -> bool:
        """Whether a NaN or an infinity that nobody meant stands against something else."""
        return self.disagreeing > self.masked

    def __reduce__(self) -> tuple[Any, ...]:
        """Short, as it was reported: it may come from another process."""
        report = getattr(self, "_report", None)
        if report is not None:
            return _build_metrics, (report, self._shape, self.count)
        return Metrics, tuple(getattr(self, field.name) for field in fields(self))


_LAZY_FIELDS = (
    "worst_row", "worst_column", "absolute", "cosine_distance", "gain", "bias",
    "mismatches", "nan", "inf", "norms", "part",
)  # fmt: skip


def metrics_from_report(report: PairReport, terms: PairLayout) -> Metrics | None:
    """The same as `measure_operands`, of what the kernels found in many pairs at once; None where it takes
    another look: there are masks, or numbers that are not finite on one side, or neither is the larger."""
    if terms.are_integers:
        return _discrete_metrics_from_account(PairDifferences._make(report), terms.shape)
    a_lowest, b_lowest = mask_threshold(terms.a_dtype), mask_threshold(terms.b_dtype)
    if report[_LARGEST] and are_norms_tied(math.sqrt(report[_A_SQUARES]), math.sqrt(report[_B_SQUARES])):
        return None
    if report[_DISAGREEING] or report[_A_MIN] <= a_lowest or report[_B_MIN] <= b_lowest:
        return None
    return _build_metrics(report, terms.shape, terms.size)


# Where these stand in a report: to make an account of each would take as long as all else.
_DISAGREEING, _GAP_SQUARES, _A_SQUARES, _B_SQUARES, _A_MIN, _B_MIN, _LARGEST, _ROW, _COLUMN = map(
    PairDifferences._fields.index,
    ("disagreeing", "gap_squares", "a_squares", "b_squares", "a_min", "b_min", "largest", "row", "column"),
)


def _build_metrics(report: PairReport, shape: tuple[int, ...], count: int) -> Metrics:
    x, y, largest = report[_A_SQUARES], report[_B_SQUARES], report[_LARGEST]
    metrics = Metrics.__new__(Metrics)
    metrics._report, metrics._shape = report, shape  # type: ignore[misc]  # slots of its base
    metrics.count = count
    metrics.is_identical, metrics.is_discrete, metrics.is_opaque = not largest, False, False
    metrics.relative_l2 = math.sqrt(report[_GAP_SQUARES]) / math.sqrt(x if x > y else y) if largest else 0.0
    metrics.row, metrics.column = report[_ROW], report[_COLUMN]
    metrics.disagreeing = metrics.masked = 0
    metrics.reason = ""
    return metrics


def _unpack_report(report: PairReport, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """What `_OPEN` names."""
    account = PairDifferences._make(report)
    norms = x, y = math.sqrt(account.a_squares), math.sqrt(account.b_squares)
    gap, longest = math.sqrt(account.gap_squares), max(norms)
    gain = cosine_distance = absolute = None
    if x and y:
        gain = account.product / y / y
        along = account.product / longest / longest
        cosine_distance = cosine_distance_from_shares(gap / longest, along, x / longest, y / longest)
    if account.largest:
        absolute = LargestDifference(
            account.largest, unravel_index(account.position, shape), account.a, account.b
        )
    bias = account.total / account.finite if account.finite else 0.0
    nan, inf = (account.a_nan, account.b_nan), (account.a_inf, account.b_inf)
    return (
        account.worst_row,
        account.worst_column,
        absolute,
        cosine_distance,
        gain,
        bias,
        0,
        nan,
        inf,
        norms,
        "",
    )


def _discrete_metrics_from_account(account: PairDifferences, shape: tuple[int, ...]) -> Metrics:
    differing = account.above + account.below
    if differing:
        index = unravel_index(account.position, shape)
        absolute = LargestDifference(int(account.largest), index, int(account.a), int(account.b))
    return Metrics(
        count=math.prod(shape),
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=absolute if differing else None,
        norms=(math.sqrt(account.a_squares), math.sqrt(account.b_squares)),
    )


def are_norms_tied(x: float, y: float) -> bool:
    """Whether nobody can tell which of two norms is the larger."""
    return abs(x - y) <= _NORM_TOLERANCE * x
